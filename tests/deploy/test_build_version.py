"""Version of a build: from git, from a source distribution, and without either. It sorts as the commits do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.version import Version

from memwatch_build import Build, debian_version, next_version
from support.paths import ROOT

NEEDED_PROGRAMS = ("git",)

WHO = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
BUILD_INFO = "daemon/memwatch/build_info.py"


class Checkout:
    """Small git repository with the version files of this one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "daemon/memwatch").mkdir(parents=True)
        for name in ("daemon/memwatch_build.py", BUILD_INFO):
            shutil.copy(ROOT / name, root / name)
        self.set_base("0.1.0")

    def set_base(self, version: str) -> None:
        lines = (ROOT / BUILD_INFO).read_text().splitlines()
        lines = [f'BASE_VERSION = "{version}"' if line.startswith("BASE_VERSION = ") else line for line in lines]
        (self.root / BUILD_INFO).write_text("\n".join(lines) + "\n")

    def git(self, *arguments: str) -> str:
        environ = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": "/dev/null"}
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout.strip()

    def commit(self, *tags: str) -> Build:
        """Commit everything, tag the commit, and return its build."""
        if not (self.root / ".git").exists():
            self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        for tag in tags:
            self.git("tag", tag)
        return self.build()

    def build(self) -> Build:
        return build_of(self.root)


def build_of(root: Path) -> Build:
    """Return the build as a build of this folder does."""
    spec = spec_from_file_location("memwatch_build_there", root / "daemon/memwatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Build = module.read_build()
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MEMWATCHD_BUILD_VERSION", "MEMWATCHD_BUILD_REVISION", "GIT_DIR"):
            patch.delenv(name, raising=False)
        yield Checkout(tmp_path / "checkout")


def test_builds_sort_as_their_commits(checkout: Checkout) -> None:
    """Before a release, at its tag, after it, and at the next one: for pip and for apt."""
    builds = [checkout.commit(), checkout.commit(), checkout.commit("v0.1.0"), checkout.commit(), checkout.commit()]
    checkout.set_base("0.1.1")
    builds += [checkout.commit(), checkout.commit("v0.1.1"), checkout.commit()]
    checkout.set_base("0.2.0rc1")
    builds += [checkout.commit(), checkout.commit("v0.2.0rc1"), checkout.commit()]
    checkout.set_base("0.2.0")
    builds += [checkout.commit("v0.2.0")]

    assert [one.version.partition("+")[0] for one in builds] == [
        *("0.1.0.dev1", "0.1.0.dev2", "0.1.0", "0.1.1.dev4", "0.1.1.dev5", "0.1.1.dev6", "0.1.1", "0.1.2.dev8"),
        *("0.2.0rc1.dev9", "0.2.0rc1", "0.2.0rc2.dev11", "0.2.0"),
    ]
    assert all(Version(one.version) < Version(other.version) for one, other in pairwise(builds))
    for one, other in pairwise(debian_version(build.version) for build in builds):
        assert subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=False).returncode == 0


def test_build_names_its_commit(checkout: Checkout) -> None:
    """With its time, for SOURCE_DATE_EPOCH."""
    development, release = checkout.commit(), checkout.commit("v0.1.0")
    commit, epoch = checkout.git("log", "-1", "--format=%H %ct").split()

    assert release == Build("0.1.0", commit, int(epoch))
    assert development.version == f"0.1.0.dev1+g{development.revision[:12]}"
    assert len(development.revision) == 40


@pytest.mark.parametrize("name", [BUILD_INFO, "new file"])
def test_changed_files_are_marked_and_are_no_release(checkout: Checkout, name: str) -> None:
    """Also a file that git does not know: it is part of the package."""
    commit = checkout.commit("v0.1.0").revision
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")

    assert checkout.build().version == f"0.1.1.dev1+g{commit[:12]}.dirty"
    assert checkout.build().revision == f"{commit}-dirty"


@pytest.mark.parametrize("tag", ["", "v0.1.0"])
def test_shallow_clone_has_no_count_unless_it_is_the_release(checkout: Checkout, tmp_path: Path, tag: str) -> None:
    checkout.commit()
    full = checkout.commit(*filter(None, [tag]))
    shallow = tmp_path / "shallow"
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(shallow))

    expected = full.version if tag else f"0.1.0.dev0+g{full.revision[:12]}"
    assert build_of(shallow) == full._replace(version=expected)


def test_archive_without_git_has_the_base_version(checkout: Checkout) -> None:
    """Also inside the repository of another project, whose commit is not this one's."""
    subprocess.run(["git", "init", "--quiet", str(checkout.root.parent)], check=True)

    assert checkout.build() == Build("0.1.0", "unknown", None)


def test_source_distribution_keeps_the_version_of_its_build(checkout: Checkout) -> None:
    """Even where git would answer: the distribution may have been unpacked and committed."""
    checkout.commit()
    written = "VERSION = '0.1.0.dev7+gabc'\nREVISION = 'abc'\nSOURCE_DATE_EPOCH = 9\n"
    (checkout.root / "daemon/memwatch/_build.py").write_text(written)

    assert checkout.build() == Build("0.1.0.dev7+gabc", "abc", 9)


def test_image_takes_the_version_from_its_arguments(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWATCHD_BUILD_VERSION", "0.1.0.dev7+gabc")
    monkeypatch.setenv("MEMWATCHD_BUILD_REVISION", "abc")
    assert checkout.build() == Build("0.1.0.dev7+gabc", "abc")

    monkeypatch.setenv("MEMWATCHD_BUILD_REVISION", "")
    assert checkout.build() == Build("0.1.0.dev7+gabc", "unknown")


def test_failing_git_gives_the_oldest_version_and_a_warning(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a release: the commit may be any."""
    checkout.commit("v0.1.0")
    (checkout.root / ".git/HEAD").write_text("damaged\n")
    assert checkout.build() == Build("0.1.0.dev0", "unknown", None)
    assert "the commit is not known, because git failed: fatal: not a git repository" in capsys.readouterr().err

    monkeypatch.setenv("PATH", str(checkout.root))
    assert checkout.build() == Build("0.1.0.dev0", "unknown", None)
    assert "No such file or directory: 'git'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "debian", "following"),
    [
        ("0.1.0", "0.1.0", "0.1.1"),
        ("0.2.0rc1", "0.2.0~rc1", "0.2.0rc2"),
        ("1.9", "1.9", "1.10"),
    ],
)
def test_version_is_converted_for_dpkg(version: str, debian: str, following: str) -> None:
    """The letters of the commit are not those of a pre-release."""
    assert debian_version(version) == debian
    assert debian_version(f"{version}.dev12+gabcdef.dirty") == f"{debian}~dev12+gabcdef.dirty"
    assert next_version(version) == following
