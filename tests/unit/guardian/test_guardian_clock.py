"""Candidates of the guardian after the machine's clock was set."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.model import Process
from memwatchd.guardian.machine import CLOCK_SET_SECONDS, MAX_BOOT_TIMES, BootTimes, Machine

STAT = "cpu 1 2 3\nbtime {}\n"
# A board without a battery boots in 1970.
IN_1970, NOW = 30, 1_796_000_000
TICKS = 100_00  # of 100 Hz: 100 s after the boot


class Clock:
    """A procfs with one process, and the time of its boot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.offset = folder, 0.0
        (folder / "500").mkdir()
        columns = ["500", "(train.py)", "S", *["1"] * 18, str(TICKS), "999", "4096", *["0"] * 28]
        (folder / "500/stat").write_text(" ".join(columns) + "\n")
        self.set(IN_1970)

    def set(self, unix: float) -> None:
        (self.folder / "stat").write_text(STAT.format(int(unix)))
        self.offset = unix


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def process(boot_time: float) -> Process:
    return Process(500, boot_time + 100, "train.py", 1 << 30, 1 << 30, "rss")


@pytest.mark.parametrize("seconds", [CLOCK_SET_SECONDS, 4.0, NOW - IN_1970])
def test_process_is_a_candidate_after_the_clock_was_set(clock: Clock, seconds: float) -> None:
    """NTP sets it after the start. The start times that the daemon tells follow within a minute."""
    machine = Machine(clock.folder, lambda: clock.offset)
    assert machine.read(process(IN_1970)) is not None
    clock.set(IN_1970 + seconds)
    before, after = machine.read(process(IN_1970)), machine.read(process(IN_1970 + seconds))
    machine.close()
    assert before is not None
    assert after is not None
    assert (before.start_time, after.start_time) == (IN_1970 + 100, int(IN_1970 + seconds) + 100)


def test_number_that_belongs_to_another_process_is_no_candidate(clock: Clock) -> None:
    machine = Machine(clock.folder, lambda: clock.offset)
    found = machine.read(process(IN_1970 - 60))
    machine.close()
    assert found is None


def test_last_times_of_the_boot_are_known(clock: Clock) -> None:
    times = BootTimes(clock.folder, lambda: clock.offset)
    for number in range(MAX_BOOT_TIMES + 1):
        clock.set(1000 * number)
        times.read()
    assert times.read() == (3000, 2000, 1000)


def test_file_is_read_only_after_the_clock_was_set(clock: Clock) -> None:
    times, before = BootTimes(clock.folder, lambda: clock.offset), clock.offset
    (clock.folder / "stat").write_text(STAT.format(77))
    clock.offset = before + CLOCK_SET_SECONDS / 2
    assert times.read() == (IN_1970,)
    clock.offset = before - CLOCK_SET_SECONDS
    assert times.read() == (77, IN_1970)
