"""Builds that several workers need."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.once import make_once


class Maker:
    """Counts its calls, and fails at the first `failures` of them, after it has written a part."""

    def __init__(self, failures: int = 0) -> None:
        self.calls, self._failures = 0, failures

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / f"part{self.calls}").touch()
        if self.calls <= self._failures:
            raise OSError("no space left on device")


def test_second_worker_finds_what_the_first_has_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    maker = Maker()
    folders = {make_once(tmp_path_factory, "once-made", maker) for _ in range(2)}

    assert maker.calls == 1
    assert [one.name for one in folders.pop().iterdir()] == ["part1"]


def test_what_a_failed_attempt_has_left_is_removed(tmp_path_factory: pytest.TempPathFactory) -> None:
    maker = Maker(failures=1)
    with pytest.raises(OSError, match="no space left"):
        make_once(tmp_path_factory, "once-failed", maker)
    folder = make_once(tmp_path_factory, "once-failed", maker)

    assert maker.calls == 2
    assert [one.name for one in folder.iterdir()] == ["part2"]
