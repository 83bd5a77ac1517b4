"""Test the wheel built from the source distribution, installed away from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from packaging.requirements import Requirement
from packaging.version import Version

from memwatch import __version__
from support.daemon_process import clean_environment
from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGES = {"memwatch": "daemon/memwatch", "memwatchd": "daemon/memwatchd", "memwatch_web": "web/memwatch_web"}


class Built(Struct, frozen=True):
    """The two files of a release."""

    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build as `make build` does: the wheel comes from the source distribution, so both are complete."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(next(folder.glob("*.whl")), next(folder.glob("*.tar.gz")))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of a new environment with the wheel. Dependencies are added by path.

    A .pth file in a folder that was added by a .pth file is not read, so the editable checkout stays outside.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder)
    done = run(*pip, "install", "--no-deps", "--no-index", built.wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_wheel_holds_exactly_the_files_of_the_three_packages(built: Built) -> None:
    """No ignore rule drops a template, a vendored *.min.js, its licence or py.typed; no test is shipped.

    Beside the packages there are only the unit files that install-service needs.
    """
    expected = {
        f"{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in files_of(ROOT / folder)
    } | {f"memwatchd/unit/memwatchd.{kind}" for kind in ("service", "slice", "sysusers", "toml")}

    names = built.wheel_names()

    information = f"memwatchd-{__version__}.dist-info/"
    assert {name for name in names if not name.startswith(information)} == expected
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    assert any(name.endswith(".min.js") for name in expected)
    assert any(name.startswith("memwatch_web/templates/") for name in expected)


def test_wheel_build_is_reproducible(built: Built, tmp_path: Path) -> None:
    """Two builds are identical, so a user can verify a release by building it."""
    again = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)

    assert again.returncode == 0, again.stderr
    assert next(tmp_path.glob("*.whl")).read_bytes() == built.wheel.read_bytes()
    assert next(tmp_path.glob("*.tar.gz")).read_bytes() == built.sdist.read_bytes()


def test_installed_wheel_installs_the_service(installed: Path, tmp_path: Path) -> None:
    """The unit files come from the installed package, not from the checkout."""
    code = "from memwatchd.install import unit_files; print(unit_files())"
    found = Path(run(installed / "python", "-c", code, cwd=tmp_path).stdout.strip())

    assert found.is_relative_to(installed.parent)
    assert (found / "memwatchd.service").read_text() == (ROOT / "systemd/memwatchd.service").read_text()


def test_wheel_has_complete_metadata(built: Built) -> None:
    """Version from memwatch.__version__, a pure wheel for any Python from 3.10 on, all licences, two programs."""
    information = f"memwatchd-{__version__}.dist-info"
    with zipfile.ZipFile(built.wheel) as archive:
        metadata = archive.read(f"{information}/METADATA").decode()
        programs = archive.read(f"{information}/entry_points.txt").decode()
    vendored = ROOT / "web/memwatch_web/static/vendor"
    licences = {path.relative_to(ROOT).as_posix() for path in vendored.iterdir() if "LICENSE" in path.name}

    assert built.wheel.name == f"memwatchd-{__version__}-py3-none-any.whl"
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "memwatchd = memwatchd.cli:main" in programs
    assert "memwatch = memwatch.client.cli:main" in programs
    assert "\nProvides-Extra: opencl\n" in metadata
    assert licences
    assert {f"{information}/licenses/{name}" for name in licences | {"LICENSE"}} <= built.wheel_names()


def test_every_vendored_library_has_a_license_file() -> None:
    """htmx, uPlot and Swagger UI keep their licenses, under the name and version of their files."""
    names = {path.name for path in (ROOT / "web/memwatch_web/static/vendor").iterdir()}
    libraries = {name for name in names if name.endswith((".js", ".css"))}

    assert {"htmx", "uplot", "swagger"} <= {name.partition("-")[0] for name in libraries}
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
    assert version.stdout == f"memwatchd {__version__}\n"
    assert client.stdout == f"memwatch {__version__}\n"
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


def required_by(project: dict[str, Any]) -> list[str]:
    """Return the requirements of the project and of its extras."""
    return [*project["dependencies"], *extras_of(project)]


def extras_of(project: dict[str, Any]) -> list[str]:
    return [text for extra in project["optional-dependencies"].values() for text in extra]


def test_dependencies_of_extras_are_installed_for_tests() -> None:
    """The test group has all requirements of the extras, so that no test lacks one."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = extras_of(written["project"])

    assert extras
    assert set(extras) <= set(written["dependency-groups"]["test"])


def test_oldest_tested_dependencies_are_the_lower_bounds() -> None:
    """Each lower bound in pyproject.toml is the version `make test-lowest` installs, so no bound is a guess."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in required_by(project)]
    floors = {one.name: Version(spec.version) for one in wanted for spec in one.specifier if spec.operator == ">="}

    lowest = pins_of("constraints-lowest.txt")

    assert floors
    assert {name: lowest[name] for name in floors} == {name: {floor} for name, floor in floors.items()}


def test_newest_tested_dependencies_are_within_the_bounds() -> None:
    """Every pin of constraints.txt lies within what pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = pins_of("constraints.txt")

    for text in required_by(project):
        wanted = Requirement(text)
        assert newest[wanted.name], text
        assert all(pin in wanted.specifier for pin in newest[wanted.name]), text
