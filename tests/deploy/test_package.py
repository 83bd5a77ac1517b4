"""Test the wheels built from the source distributions, installed away from the checkout."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from memwatch_web.pages.compiled_templates import write_compiled
from support.installed_share import DATA, DOCUMENTS, changed_files, dead_links, expected_files
from support.paths import ROOT
from support.requirements import DAEMON, extras_of, read_project, required_by
from support.requirements import LIBRARY as LIBRARY_PROJECT
from support.wheels import BUILD, PROJECTS, SAME_BUILD, Built, build, built_once, run

VERSION = BUILD.version
LIBRARY = {"memwatch": "daemon/memwatch"}
PACKAGES = {
    "memwatchd": "daemon/memwatchd",
    "memwatch_monitor": "daemon/memwatch_monitor",
    "memwatch_web": "web/memwatch_web",
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Build both packages as `make build` does. Wheels come from source distributions, so both are complete."""
    return {name: built_once(name, tmp_path_factory) for name in PROJECTS}


@pytest.fixture(scope="module")
def built(release: dict[str, Built]) -> Built:
    return release["memwatchd"]


@pytest.fixture(scope="module")
def installed(release: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of a new environment with both wheels. Dependencies are added by path.

    A .pth file in a folder that was added by a .pth file is not read, so the editable checkout stays outside.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder)
    done = run(*pip, "install", "--no-deps", "--no-index", *(one.wheel for one in release.values()), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def expected_in(packages: dict[str, str]) -> set[str]:
    return {
        f"{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for name, folder in packages.items()
        for path in files_of(ROOT / folder)
        if path.name != "README.md"  # of a room
    }


def test_wheels_hold_exactly_the_files_of_their_packages(release: dict[str, Built], tmp_path: Path) -> None:
    """No ignore rule drops a template, a vendored *.min.js, its licence or py.typed; no test is shipped.

    Beside the packages there are only the version of the build, compiled templates, and the files of `share`.
    """
    write_compiled(tmp_path)
    compiled = {f"memwatch_web/templates/compiled/{file.name}" for file in tmp_path.iterdir()}
    data = f"memwatchd-{VERSION}.data/data/share"
    shared = {f"{data}/{place.as_posix()}" for place in expected_files()}
    library = expected_in(LIBRARY) | {"memwatch/_build.py"}
    for name, expected in (("memwatch", library), ("memwatchd", expected_in(PACKAGES) | compiled | shared)):
        names = release[name].wheel_names()

        assert {one for one in names if not one.startswith(f"{name}-{VERSION}.dist-info/")} == expected
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    assert any(name.endswith(".min.js") for name in expected)
    assert any(name.startswith("memwatch_web/templates/") for name in expected)


@pytest.mark.long
@pytest.mark.parametrize("name", PROJECTS)
def test_wheel_build_is_reproducible(name: str, release: dict[str, Built], tmp_path: Path) -> None:
    """Two builds are identical, so a user can verify a release by building it."""
    again = build(name, tmp_path)

    assert again.wheel.read_bytes() == release[name].wheel.read_bytes()
    assert again.sdist.read_bytes() == release[name].sdist.read_bytes()


def test_installed_wheel_has_rules_dashboards_examples_and_pages(installed: Path) -> None:
    """In the folders that docs/start/install.md names, below that of the environment."""
    share = installed.parent / "share"
    page = (ROOT / "docs/start/install.md").read_text()

    assert "cd /opt/memwatchd/share/memwatchd/systemd\n" in page
    assert all(f"`/opt/memwatchd/share/{folder}`" in page for folder in (DATA, DOCUMENTS))
    assert {one.relative_to(share) for one in files_of(share)} == expected_files().keys()
    assert changed_files(share) == []


def test_links_of_the_installed_pages_lead_to_installed_files(installed: Path) -> None:
    share = installed.parent / "share"

    assert dead_links(share) == []
    (share / DOCUMENTS / "howto/alerts.md").rename(share / "elsewhere.md")
    assert any(one.endswith(": alerts.md") for one in dead_links(share))
    (share / "elsewhere.md").rename(share / DOCUMENTS / "howto/alerts.md")


def test_wheel_has_complete_metadata(built: Built) -> None:
    """Version of the commit, a pure wheel for any Python from 3.10 on, all licences, two programs."""
    information = f"memwatchd-{VERSION}.dist-info"
    metadata, programs = built.read("METADATA"), built.read("entry_points.txt")
    vendored = ROOT / "web/memwatch_web/static/vendor"
    licences = {
        path.relative_to(ROOT).as_posix() for path in vendored.iterdir() if re.search("LICENSE|NOTICE", path.name)
    }

    assert built.wheel.name == f"memwatchd-{VERSION}-py3-none-any.whl"
    assert f"\nVersion: {VERSION}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "memwatchd = memwatchd.cli:main" in programs
    assert "memwatch = memwatch.cli.cli:main" in programs
    assert "\nProvides-Extra: opencl\n" in metadata
    assert f"\nRequires-Dist: memwatch=={VERSION}\n" in metadata
    assert "file://" not in metadata
    assert licences
    assert {f"{information}/licenses/{name}" for name in licences | {"LICENSE"}} <= built.wheel_names()


def test_description_has_no_link_into_the_repository(release: dict[str, Built]) -> None:
    """On the page of an index, relative links and pictures lead nowhere, and comments are for our own tests.

    There is no public address yet. With one: add [project.urls] to both projects, and let these links lead there.
    """
    for name, one in release.items():
        metadata = Parser().parsestr(one.read("METADATA"))
        text = metadata.get_payload()

        assert isinstance(text, str)
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert text.lstrip().startswith(f"# {name}\n")
        assert not re.search(r"\]\((?!https?:|#)", text)
        assert "<!--" not in text
        assert metadata.get_all("Project-URL") is None
    assert "Install covers each kind of machine" in text
    assert "[[alerts.webhooks]]" in text


def test_library_needs_at_most_three_packages_on_linux(release: dict[str, Built]) -> None:
    """Every further one may be pinned to another version by a program beside it."""
    metadata = Parser().parsestr(release["memwatch"].read("METADATA"))
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]
    linux = {"sys_platform": "linux"}

    assert metadata["Version"] == VERSION
    on_linux = {one.name for one in needed if one.marker is None or one.marker.evaluate(linux)}
    assert on_linux == {"msgspec", "click", "nvidia-ml-py"}
    assert "memwatch = memwatch.cli.cli:main" in release["memwatch"].read("entry_points.txt")


def test_source_distributions_have_no_path_of_this_machine(release: dict[str, Built]) -> None:
    for name, one in release.items():
        with tarfile.open(one.sdist) as archive:
            information = archive.extractfile(f"{name}-{VERSION}/PKG-INFO")
            assert information is not None
            assert b"file://" not in information.read()


def test_both_packages_have_the_same_licence_and_python_versions() -> None:
    """The library is built from daemon/, which needs its own copy of the licence."""
    daemon, library = (read_project(path)["project"] for path in (DAEMON, LIBRARY_PROJECT))
    same = ("license", "requires-python", "authors")

    assert (ROOT / "daemon/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert [daemon[key] for key in same] == [library[key] for key in same]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("wheel", f"memwatch @ {(ROOT / 'daemon').as_uri()}"),
        ("sdist", f"memwatch=={VERSION}"),
        ("editable", "msgspec"),
    ],
    ids=("wheel", "sdist", "editable"),  # those of the parameters have the version, which a commit changes
)
def test_checkout_takes_the_library_from_its_own_folder(kind: str, wanted: str) -> None:
    """Never from an index, where this version may be another one."""
    code = (
        "from hatchling.metadata.core import ProjectMetadata; from hatchling.plugin.manager import PluginManager;"
        "print('\\n'.join(ProjectMetadata('.', PluginManager()).core.dependencies))"
    )
    done = run(sys.executable, "-c", code, cwd=ROOT, MEMWATCHD_BUILD=kind, **SAME_BUILD)

    assert any(line.startswith(wanted) for line in done.stdout.splitlines()), done.stdout + done.stderr
    assert ("memwatch" in done.stdout) == (kind != "editable")


def test_every_vendored_library_has_a_license_file() -> None:
    """htmx and Swagger UI keep their licenses, under the name and version of their files."""
    names = {path.name for path in (ROOT / "web/memwatch_web/static/vendor").iterdir()}
    libraries = {name for name in names if name.endswith((".js", ".css"))}

    assert {"htmx", "swagger"} <= {name.partition("-")[0] for name in libraries}
    for library in libraries:
        first = library.partition("-")[0]
        assert any(name.startswith(first) and "LICENSE" in name for name in names), library


def test_source_distribution_holds_the_tests(built: Built) -> None:
    """It holds tests, constraints, the Makefile and documentation, and no files of an environment."""
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"Makefile", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= names
    assert {"tests/deploy/test_package.py", "tests/constraints.txt", "systemd/memwatchd.toml"} <= names
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or name.startswith("out/")]


def test_installed_program_reads_this_machine(installed: Path, tmp_path: Path) -> None:
    """`memwatchd --once --json` runs the code of the wheel."""
    where = run(installed / "python", "-c", "import memwatch_web; print(memwatch_web.__file__)", cwd=tmp_path)
    version = run(installed / "memwatchd", "--version", cwd=tmp_path)
    once = run(installed / "memwatchd", "--once", "--json", cwd=tmp_path)
    client = run(installed / "memwatch", "--version", cwd=tmp_path)

    assert where.stdout.startswith(str(installed.parent)), where.stdout + where.stderr
    assert version.stdout == f"memwatchd {VERSION} (revision {BUILD.revision})\n"
    assert client.stdout == f"memwatch {VERSION} (revision {BUILD.revision})\n"
    assert once.returncode == 0, once.stderr
    pool = json.loads(once.stdout)["pools"][0]
    assert pool["id"] == "ram"
    assert pool["used_bytes"] + pool["available_bytes"] == pool["size_bytes"] > 0


def pins_of(name: str) -> dict[str, set[Version]]:
    """Return the pinned versions of each package; several if Python versions need different ones."""
    pins: dict[str, set[Version]] = {}
    for line in (ROOT / "tests" / name).read_text().splitlines():
        pin = Requirement(line)
        (only,) = pin.specifier
        assert only.operator == "==", line
        assert pin.url is None, line
        pins.setdefault(pin.name, set()).add(Version(only.version))
    return pins


def test_dependencies_of_extras_are_installed_for_tests() -> None:
    """The test group has all requirements of the extras, so that no test lacks one."""
    extras = extras_of(DAEMON)

    assert extras
    assert set(extras) <= {one for one in read_project(DAEMON)["dependency-groups"]["test"] if isinstance(one, str)}


def test_oldest_tested_dependencies_are_the_lower_bounds() -> None:
    """Each lower bound in pyproject.toml is the version `make test-lowest` installs, so no bound is a guess."""
    wanted = [Requirement(text) for path in (DAEMON, LIBRARY_PROJECT) for text in required_by(path)]
    floors = {one.name: Version(spec.version) for one in wanted for spec in one.specifier if spec.operator == ">="}

    lowest = pins_of("constraints-lowest.txt")

    assert floors
    assert {name: lowest[name] for name in floors} == {name: {floor} for name, floor in floors.items()}


def test_newest_tested_dependencies_are_within_the_bounds() -> None:
    """Every pin of constraints.txt lies within what pyproject.toml allows."""
    newest = pins_of("constraints.txt")

    for text in (*required_by(DAEMON), *required_by(LIBRARY_PROJECT)):
        wanted = Requirement(text)
        assert newest[wanted.name], text
        assert all(pin in wanted.specifier for pin in newest[wanted.name]), text
