"""Bytes written to disk in a day of virtual time: they must not grow, nor must the time that a kill loses."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch_monitor.history.ring_file import BLOCK
from memwatch_monitor.history.writer import FLUSH_SECONDS
from support.disk_day import DAY, run_day


@pytest.mark.parametrize(
    ("series", "moving", "megabytes"),
    [(16, 0, 6.5), (16, 6, 6.5), (100, 50, 9.9)],
)
def test_bytes_written_in_a_day_at_low_pressure_are_bounded(
    tmp_path: Path, series: int, moving: int, megabytes: float
) -> None:
    """0.4 MB of these are the largest processes, units and containers. No row waits for more than a minute."""
    day = run_day(tmp_path, series, moving, hours=1.0)

    assert 0.95 * megabytes < day.megabytes < megabytes
    assert day.written["flight"] == day.written["events"] == 0
    assert FLUSH_SECONDS - 1 < day.unwritten_seconds < FLUSH_SECONDS + 0.001


def test_blocks_of_rows_are_full(tmp_path: Path) -> None:
    """Written each minute, 100 series of which half move take two blocks, the second of them nearly empty."""
    day = run_day(tmp_path, 100, 50, hours=0.5)

    assert day.written["fine"] < 0.8 * 2 * BLOCK * DAY / FLUSH_SECONDS
