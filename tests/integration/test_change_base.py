"""Commit with which a change is compared, in checkouts of several kinds."""

from pathlib import Path

import pytest

from support.change_base import Base, Repository, changed_files, find_base
from support.function_changes import Versions
from support.small_suite import SmallSuite

pytestmark = pytest.mark.process


@pytest.fixture
def suite(tmp_path: Path) -> SmallSuite:
    return SmallSuite(tmp_path / "checkout")


def base_of(suite: SmallSuite, named: str = "") -> Base:
    return find_base(Repository(suite.root), named)


def test_branch_is_compared_with_its_merge_base(suite: SmallSuite) -> None:
    first = suite.commit()
    suite.git("branch", "main")
    suite.commit()

    assert base_of(suite) == Base(first, "merge base with main")


def test_upstream_is_preferred_to_a_local_branch(suite: SmallSuite) -> None:
    first = suite.commit()
    suite.git("update-ref", "refs/remotes/origin/main", first)
    suite.commit()
    suite.git("branch", "main")
    suite.commit()

    assert base_of(suite) == Base(first, "merge base with origin/main")


def test_clone_whose_upstream_is_head_is_compared_with_twenty_commits_before(suite: SmallSuite) -> None:
    commits = [suite.commit() for _ in range(3)]
    suite.git("update-ref", "refs/remotes/origin/main", commits[-1])

    assert base_of(suite) == Base(commits[0], "no upstream: the oldest commit of this clone")


def test_base_without_an_upstream_is_twenty_commits_and_six_hours_back(
    suite: SmallSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    for number in range(25):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1_790_000_000 + (number > 2) * 6 * 3600} +0000")
        commits.append(suite.commit())

    found = base_of(suite)
    assert found == Base(commits[2], "no upstream: at least 20 commits and 6 hours before HEAD")


def test_named_base_is_used(suite: SmallSuite) -> None:
    first = suite.commit()
    suite.commit()

    assert base_of(suite, "HEAD~1") == Base(first, "CHANGE_BASE=HEAD~1")


def test_unknown_named_base_is_an_error(suite: SmallSuite) -> None:
    suite.commit()

    with pytest.raises(SystemExit, match="CHANGE_BASE=nowhere names no commit"):
        base_of(suite, "nowhere")


def test_everything_counts_as_changed_without_an_older_commit(suite: SmallSuite) -> None:
    suite.write("tests/test_a.py", "def test_a(): pass\n")
    suite.commit()

    base = base_of(suite)
    assert base.commit == ""
    assert changed_files(Repository(suite.root), base) == {"tests/test_a.py": Versions("", "def test_a(): pass\n")}


def test_renamed_file_is_compared_with_its_text_before(suite: SmallSuite) -> None:
    text = "".join(f"def test_{n}(): pass\n" for n in range(9))
    suite.write("tests/test_a.py", text)
    suite.write("tests/test_same.py", "def test_x(): pass\n")
    first = suite.commit()
    suite.git("mv", "tests/test_a.py", "tests/test_b.py")
    suite.write("tests/test_b.py", text + "def test_new(): pass\n")
    suite.commit()
    suite.write("tests/test_c.py", "def test_untracked(): pass\n")

    assert changed_files(Repository(suite.root), Base(first, "")) == {
        "tests/test_b.py": Versions(text, text + "def test_new(): pass\n"),
        "tests/test_c.py": Versions("", "def test_untracked(): pass\n"),
    }
