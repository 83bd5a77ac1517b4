"""Runs in the file of incidents: each writer has a higher number than those before it."""

from __future__ import annotations

from pathlib import Path

from memwatch_monitor.history.ring_file import RingFile, Stamp, boot_bytes
from memwatch_monitor.incidents.store import FILE, INCIDENT, IncidentStore
from support.fakes import FakeClock

SIZE = 1 << 16


def write_run(folder: Path) -> None:
    store = IncidentStore(folder, FakeClock(), "0a" * 16, SIZE)
    store.start()
    store.put("inc", b"an incident")
    store.stop(10.0)


def runs_in(folder: Path) -> list[int]:
    ring = RingFile(folder / FILE, SIZE)
    found = [record.stamp.run for record in ring.read().records]
    ring.close()
    return found


def test_each_start_of_the_daemon_is_the_next_run(tmp_path: Path) -> None:
    for _ in range(4):
        write_run(tmp_path)

    assert runs_in(tmp_path) == [1, 2, 3, 4]


def test_run_follows_the_highest_one_in_any_order_of_the_records(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / FILE, SIZE)
    ring.prepare(ring.read())
    for run in (5, 9, 7):
        ring.append(INCIDENT, Stamp(run, 1.0, 1_700_000_000.0, boot_bytes("0a" * 16)), b"an incident")
    ring.close()

    write_run(tmp_path)

    assert runs_in(tmp_path) == [5, 9, 7, 10]
