"""Workers of pytest: the tests that each gets, and the share of the test files that each imports first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.scheduling import scopes_of
from support.shared_compilation import import_share, share_of


def test_tests_of_a_file_stay_together() -> None:
    assert scopes_of(["a.py::one", "a.py::two[x::y]", "b.py::one"]) == {
        "a.py::one": "a.py",
        "a.py::two[x::y]": "a.py",
        "b.py::one": "b.py",
    }


def test_tests_moved_away_from_their_file_are_given_one_by_one() -> None:
    """Those that measure come last, and each worker waits for its turn."""
    scopes = scopes_of(["a.py::one", "b.py::one", "a.py::measures", "a.py::measures too"])

    assert [scopes[f"a.py::{name}"] for name in ("one", "measures", "measures too")] == [
        "a.py",
        "a.py::measures",
        "a.py::measures too",
    ]


class Config:
    """The part of a worker's configuration that is used."""

    def __init__(self, folder: Path, **worker: object) -> None:
        self.args = [str(folder)]
        self.workerinput = worker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in "abcde":
        (tmp_path / f"test_share_{name}.py").write_text("IS_IMPORTED = True\n")
    (tmp_path / "share_helper.py").write_text("")
    return tmp_path


def test_each_file_is_in_one_share(folder: Path) -> None:
    shares = [share_of([str(folder), f"{folder}/test_share_a.py::test_x"], number, 3) for number in range(3)]

    assert sorted(path.name for share in shares for path in share) == [f"test_share_{name}.py" for name in "abcde"]
    assert [len(share) for share in shares] == [2, 2, 1]


def test_file_that_fails_is_left_to_the_collection(folder: Path) -> None:
    """Its error is raised again there. One that asks to be skipped is no error of the others."""
    (folder / "test_share_a.py").write_text("import nothing_of_this_name\n")
    (folder / "test_share_c.py").write_text("import pytest\npytest.skip('x', allow_module_level=True)\n")

    import_share(Config(folder, workerid="gw0", workercount=2))  # type: ignore[arg-type]

    names = [name for name in sys.modules if name.startswith("test_share_")]
    del sys.modules["test_share_e"]
    assert names == ["test_share_e"]
