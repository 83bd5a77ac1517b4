"""Version of a checkout, read from git's files without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import memwatch
from memwatch import build_info
from memwatch.build_info import BASE_VERSION, read_build, read_commit

NEEDED_PROGRAMS = ("git",)

COMMIT = "1a2b3c4d5e6f" + "0" * 28


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of a branch."""
    (tmp_path / "daemon/memwatch").mkdir(parents=True)
    (tmp_path / "daemon/pyproject.toml").touch()
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text(f"{COMMIT}\n")
    return tmp_path


def test_checkout_names_its_commit_and_no_release(root: Path) -> None:
    assert read_build(root / "daemon/memwatch") == (f"{BASE_VERSION}.dev0+checkout.g1a2b3c4d5e6f", COMMIT)


def test_branch_is_also_read_from_packed_refs(root: Path) -> None:
    (root / ".git/refs/heads/main").unlink()
    (root / ".git/packed-refs").write_text(
        f"# pack-refs with: peeled\n{'f' * 40} refs/heads/not-main\n{COMMIT} refs/heads/main\n"
    )

    assert read_commit(root) == COMMIT


def test_detached_head_is_the_commit(root: Path) -> None:
    (root / ".git/HEAD").write_text(f"{COMMIT}\n")

    assert read_commit(root) == COMMIT


def test_worktree_has_its_own_head_and_the_branches_of_its_repository(root: Path, tmp_path: Path) -> None:
    private = root / ".git/worktrees/other"
    private.mkdir(parents=True)
    (private / "HEAD").write_text("ref: refs/heads/main\n")
    (private / "commondir").write_text("../..\n")
    worktree = tmp_path / "other"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {private}\n")

    assert read_commit(worktree) == COMMIT


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none\n", "ref: ../../../etc/passwd\n", "\xff", "12345\n"])
def test_unusable_head_leaves_the_commit_unknown(root: Path, head: str) -> None:
    (root / ".git/HEAD").write_text(head, encoding="latin-1")

    assert read_build(root / "daemon/memwatch") == (BASE_VERSION, "unknown")


def test_package_in_the_repository_of_another_project_is_no_checkout(root: Path) -> None:
    """A copy below the other project's root, without the project file beside it."""
    (root / "daemon/pyproject.toml").unlink()

    assert read_build(root / "daemon/memwatch") == (BASE_VERSION, "unknown")


@pytest.mark.process
def test_this_checkout_agrees_with_git() -> None:
    """These tests run from a checkout. From a source distribution, `unknown` is not shown."""
    here = Path(build_info.__file__).parents[2]
    done = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)

    assert memwatch.__version__ == build_info.__version__
    assert build_info.describe("memwatchd") == f"memwatchd {memwatch.__version__} (revision {build_info.REVISION})"
    if (here / ".git").exists():
        assert done.stdout.strip() == build_info.REVISION
