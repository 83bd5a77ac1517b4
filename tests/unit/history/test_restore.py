"""Restore of the run before: how it ended, and its last samples."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from memwatch.core.events import EventLog
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.history.notable_ticks import NotableTicks, Tick, pack
from memwatch.reporting.history.tier import Aggregates, RowBlock
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.records import ROWS, STARTED, STOPPED, TICK, pack_entry
from memwatch_monitor.history.restore import restore
from memwatch_monitor.history.ring_file import BLOCK, WHOLE, Stamp, open_ring_set, prepare
from memwatch_monitor.history.tiers import History

USED = "pool.ram.used_bytes"
WALL = 1_700_000_000.0
BOOT, OTHER_BOOT = b"boot".ljust(16), b"other boot".ljust(16)
# File, kind, run, boot time and payload of a record.
Written = tuple[str, int, int, float, bytes]
Writer = Callable[[int, float, float], Written]


def row(run: int, at: float, value: float) -> Written:
    columns = {USED: Aggregates(array("f", [value]), array("f", [value]), array("H", [0]))}
    return "fine", ROWS, run, at, pack_entry(RowBlock(array("d", [at]), columns))


def tick(run: int, at: float, value: float) -> Written:
    return "flight", TICK, run, at, pack(Tick(1, WALL + at, at, (), (), (), {USED: value}))


def started(run: int, at: float) -> Written:
    return "flight", STARTED, run, at, b""


def stopped(run: int, at: float) -> Written:
    return "flight", STOPPED, run, at, b""


def find_end(folder: Path, records: Sequence[Written], boot: bytes = BOOT) -> UncleanShutdown | None:
    """Write the records of earlier runs, and return how the last of them ended."""
    size = 4 * BLOCK * WHOLE
    rings = open_ring_set(folder, size, WALL)
    prepare(rings, Stamp(1, 0.0, WALL, BOOT))
    for name, kind, run, at, payload in records:
        rings.rings[name].append(kind, Stamp(run, at, WALL + at, BOOT), payload)
    for one in rings.rings.values():
        one.close()
    again = open_ring_set(folder, size, WALL)
    now = Stamp(9, 1000.0, WALL + 1000.0, boot)
    result = restore(again, History(), HolderHistory(), NotableTicks(), EventLog(), now)
    for one in again.rings.values():
        one.close()
    return result.unclean_shutdown


def samples_of(found: UncleanShutdown | None) -> list[tuple[float, float]]:
    assert found is not None
    return [(one.boottime, one.figures[USED]) for one in found.samples]


@pytest.mark.parametrize("write", [row, tick])
@pytest.mark.parametrize("is_older_run_clean", [True, False])
def test_unclean_end_has_only_samples_of_the_last_run(
    write: Writer, is_older_run_clean: bool, tmp_path: Path
) -> None:
    """A run may crash seconds after its start: the samples of the one before are no part of that crash."""
    older = [started(1, 90.0), write(1, 91.0, 10.0), write(1, 92.0, 11.0)]
    older += [stopped(1, 93.0)] if is_older_run_clean else []

    found = find_end(tmp_path, [*older, started(2, 95.0), write(2, 96.0, 20.0), write(2, 97.0, 21.0)])

    assert samples_of(found) == [(96.0, 20.0), (97.0, 21.0)]
    assert found is not None
    assert found.unix == WALL + 97.0


def test_unclean_end_joins_rows_and_ticks(tmp_path: Path) -> None:
    records = [started(1, 90.0), row(1, 91.0, 1.0), tick(1, 92.0, 2.0), row(1, 93.0, 3.0)]

    found = find_end(tmp_path, records)

    assert samples_of(found) == [(91.0, 1.0), (92.0, 2.0), (93.0, 3.0)]
    assert found is not None
    assert found.last is not None
    assert found.last.boottime == 92.0


@pytest.mark.parametrize(("age", "is_kept"), [(119.0, True), (120.0, True), (121.0, False)])
@pytest.mark.parametrize("write", [row, tick])
def test_samples_of_the_last_two_minutes_are_kept(write: Writer, age: float, is_kept: bool, tmp_path: Path) -> None:
    records = [started(1, 90.0), write(1, 500.0 - age, 1.0), write(1, 500.0, 2.0)]

    found = find_end(tmp_path, records)

    assert samples_of(found) == [*([(500.0 - age, 1.0)] if is_kept else []), (500.0, 2.0)]


def test_clean_end_is_not_reported(tmp_path: Path) -> None:
    assert find_end(tmp_path, [started(1, 90.0), row(1, 91.0, 1.0), stopped(1, 92.0)]) is None


def test_run_without_a_sample_ended_at_its_start(tmp_path: Path) -> None:
    found = find_end(tmp_path, [started(1, 80.0), row(1, 81.0, 1.0), started(2, 90.0)])

    assert found == UncleanShutdown(WALL + 90.0, False, (), None)


@pytest.mark.parametrize(("boot", "restarted"), [(BOOT, False), (OTHER_BOOT, True)], ids=["same", "other"])
def test_end_is_that_of_the_machine_after_another_boot(boot: bytes, restarted: bool, tmp_path: Path) -> None:
    found = find_end(tmp_path, [started(1, 90.0), row(1, 91.0, 1.0)], boot)

    assert found is not None
    assert found.machine_restarted is restarted
