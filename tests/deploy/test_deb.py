"""The Debian package, built as `make deb` does: content, SBOM, and the programs in it. Takes two minutes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from closure import PYTHONS, ROOT, read_lock
from documents import MAINTAINER
from memwatch_build import debian_version
from support.daemon_process import clean_environment
from support.debian_package import MOMENT, DebianPackage, run, used_bytes
from support.installed_share import DATA, DOCUMENTS, changed_files, dead_links, expected_files, files_below
from support.wheels import BUILD, SAME_BUILD

pytest_plugins = ("support.debian_fixtures",)

pytestmark = pytest.mark.long
HOME = "usr/lib/memwatchd"
SBOM = "usr/share/doc/memwatchd/memwatchd.cdx.json"


def build(folder: Path, umask: int = 0o022) -> None:
    command = (sys.executable, ROOT / "deploy/package/deb.py", "--arch=amd64", f"--out={folder}")
    run(*command, umask=umask, **SAME_BUILD, **MOMENT)


@pytest.fixture(scope="module")
def package(debian_package: DebianPackage) -> Path:
    return debian_package.file


@pytest.fixture(scope="module")
def tree(debian_tree: Path) -> Path:
    return debian_tree


@pytest.fixture(scope="module")
def components(tree: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((tree / SBOM).read_text())["components"]
    return found


def test_sbom_is_exactly_what_is_in_the_package(tree: Path, components: list[dict[str, Any]]) -> None:
    """Each wheel and each vendored library has a component, and each component is there."""
    refs = [one["bom-ref"] for one in components]
    wheels = {ref.partition("?file_name=")[2].removesuffix(".whl") for ref in refs if ref.startswith("pkg:pypi/")}
    vendored = {f"{one['name']}-{one['version']}" for one in components if one["purl"].startswith("pkg:npm/")}
    static = next((tree / HOME / "wheels").glob("memwatchd-*")) / "memwatch_web/static/vendor"

    assert len(refs) == len(set(refs))
    assert {one.replace("%2B", "+") for one in wheels} == {one.name for one in (tree / HOME / "wheels").iterdir()}
    scripts = {one.stem.removesuffix(".min") for one in static.iterdir() if one.suffix in (".js", ".css")}
    assert vendored == scripts != set()


def test_sbom_names_versions_licences_and_hashes(tree: Path, components: list[dict[str, Any]]) -> None:
    """Those in the metadata of each wheel. The hashes are those of the lock, except of our own two wheels."""
    hashes = {(one.name, one.version): one.hashes for one in read_lock()}
    own = set()
    for one in components:
        if one["purl"].startswith("pkg:npm/"):
            continue
        folder = one["purl"].partition("?file_name=")[2].removesuffix(".whl").replace("%2B", "+")
        (metadata,) = (tree / HOME / "wheels" / folder).glob("*.dist-info/METADATA")
        assert f"\nVersion: {one['version']}\n" in metadata.read_text()
        assert one["licenses"][0]["license"]["name"]
        if one["name"] in ("memwatch", "memwatchd"):
            own.add((one["name"], one["version"]))
        else:
            assert one["hashes"][0]["content"] in hashes[one["name"], one["version"]]
    assert own == {("memwatch", BUILD.version), ("memwatchd", BUILD.version)}


def test_each_python_has_all_its_wheels(tree: Path) -> None:
    """The folders that a Python adds to its path exist, and each wheel is used by one Python at least."""
    used: set[str] = set()
    for python in PYTHONS:
        packages = tree / HOME / f"lib/python{python}/site-packages"
        lines = (packages / "memwatchd.pth").read_text().split()
        assert all((packages / line).is_dir() for line in lines)
        used |= {Path(line).name for line in lines}

    assert used == {one.name for one in (tree / HOME / "wheels").iterdir()}


def test_package_sends_chat_and_checks_passwords(tree: Path) -> None:
    """[[alerts.apprise]] and password hashes work without another installation."""
    code = (
        "import apprise, bcrypt; from memwatch.build_info import describe;"
        "assert apprise.Apprise().add('ntfys://topic');"
        "assert bcrypt.checkpw(b'x', bcrypt.hashpw(b'x', bcrypt.gensalt(4)));"
        "print(describe('memwatchd'), apprise.__file__)"
    )
    printed = run(tree / HOME / "bin/python3", "-I", "-c", code)

    assert printed.startswith(f"memwatchd {BUILD.version} (revision {BUILD.revision}) {tree}")


def test_package_is_built_without_the_tools_of_tests(debian_package: DebianPackage) -> None:
    """`make deb` installs build and hatchling, with what they need: 39 MB in November 2026, most of it pip."""
    python = debian_package.environment / "bin/python"
    listed = run(python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json")
    names = {one["name"] for one in json.loads(listed)}

    assert {"build", "hatchling"} <= names
    assert not names & {"memwatchd", "memwatch", "click", "msgspec", "pydantic", "pytest", "mypy"}
    assert used_bytes(debian_package.environment) <= 60_000_000


def test_package_has_rules_dashboards_examples_and_pages(tree: Path) -> None:
    """Those of the repository, in the folders of Debian, and every link of a page leads to one of them."""
    share = tree / "usr/share"
    own = {"doc/memwatchd/changelog.gz", "doc/memwatchd/copyright", "doc/memwatchd/memwatchd.cdx.json"}
    found = {one.relative_to(share) for place in (DATA, DOCUMENTS) for one in files_below(share / place)}

    assert found == {*expected_files(), *map(Path, own)}
    assert changed_files(share) == []
    assert dead_links(share) == []


def test_manual_pages_are_rendered_without_a_complaint(tree: Path) -> None:
    """As man(1) shows them, with the files that the package installs."""
    shown = {}
    for page in (tree / "usr/share/man").rglob("*.gz"):
        command = ["man", "--warnings", "--local-file", str(page)]
        environment = clean_environment(MANWIDTH="100", LC_ALL="C.UTF-8")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        shown[page.name] = done.stdout

    assert shown.keys() == {"memwatch.1.gz", "memwatchd.8.gz", "memwatchd-guardian.8.gz", "memwatchd.toml.5.gz"}
    named = re.findall(r"^ +(/(?:usr|etc)/\S+)$", shown["memwatchd.8.gz"], re.MULTILINE)
    assert len(named) >= 4
    assert [path for path in named if not (tree / path.lstrip("/")).exists()] == []


def test_control_names_version_and_dependencies(package: Path) -> None:
    """All Pythons of the lock, and no other: the newest distribution can install it."""
    fields = run("dpkg-deb", "--field", package)

    assert f"\nVersion: {debian_version(BUILD.version)}\n" in fields
    assert "python3 (>= 3.10), python3 (<< 3.16)" in fields


def test_lintian_finds_nothing_but_the_missing_address(package: Path) -> None:
    """The project has no mail address. The exceptions are those of the file in the package."""
    command = ["lintian", "--allow-root", "--tag-display-limit=0", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    found = {line.split()[2] for line in done.stdout.splitlines() if line.startswith(("E:", "W:"))}

    assert found == {"bogus-mail-host", "bogus-mail-host-in-debian-changelog"}, done.stdout + done.stderr
    assert MAINTAINER.endswith("@localhost>")


def test_copyright_names_each_distribution(tree: Path) -> None:
    text = (tree / "usr/share" / DOCUMENTS / "copyright").read_text()

    for folder in (tree / HOME / "wheels").iterdir():
        assert f"usr/lib/memwatchd/wheels/{folder.name}/*" in text or folder.name.startswith("memwatch")
    assert "Copyright: \n" not in text
    assert "License: unknown" not in text


def test_second_build_is_identical(package: Path, tmp_path: Path) -> None:
    """Also from the environment of the tests, with another umask, from which the mode of the root folder came."""
    build(tmp_path, umask=0o027)

    first, again = (hashlib.sha256(one.read_bytes()) for one in (package, tmp_path / package.name))
    assert again.hexdigest() == first.hexdigest()
    assert (tmp_path / "memwatchd.deb").resolve() == tmp_path / package.name
