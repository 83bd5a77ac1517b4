"""Event numbers across runs: no number names two events. Important events are on disk at once."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.budget import ROOT
from memwatch_monitor.history import writer
from memwatch_monitor.history.restore import MAX_UNWRITTEN
from support.alert_machine import AlertMachine
from support.daemon_process import RunningDaemon, running_daemon
from support.fakes import GIB
from support.ingest_client import post
from support.state_copy import events_on_disk
from support.store_machine import Machine, Running
from support.waiting import MAX_WAIT_SECONDS, wait_until

KILLS = 5
MEDIUM_KIB = 16_500_000


def kill(daemon: RunningDaemon) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.process.wait(MAX_WAIT_SECONDS)


def numbers_of(run: Running) -> list[int]:
    return [event.seq for event in run.monitor.events.since(0)]


def test_no_number_names_two_events_after_kills(tmp_path: Path) -> None:
    """A client that records each number it sees, of marks too, sees none with two texts."""
    machine = AlertMachine.of(tmp_path)
    seen: dict[int, set[str]] = {}
    generator = random.Random(35)
    for number in range(KILLS):
        with running_daemon(tmp_path, *machine.arguments, f"--state-dir={tmp_path / 'state'}") as daemon:
            post(daemon, "/api/v1/marks", {"text": "imports the API"})
            until, count = time.monotonic() + generator.uniform(0.1, 0.6), 0
            while time.monotonic() < until:
                text = f"run {number} step {count}"
                seq = post(daemon, "/api/v1/marks", {"text": text})[1]["seq"]
                seen.setdefault(seq, set()).add(text)
                count += 1
            for event in daemon.get("/api/v1/events?limit=1000").json:
                seen.setdefault(event["seq"], set()).add(event["text"])
            kill(daemon)

    assert len(seen) > 5 * KILLS
    assert {seq: texts for seq, texts in seen.items() if len(texts) > 1} == {}


def test_numbers_continue_without_a_gap_after_a_clean_stop(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    first.monitor.events.mark(machine.clock.wall(), "epoch 1", ROOT)
    first.keeper.stop(30.0)

    second = machine.start()
    second.tick(GIB)

    assert numbers_of(second) == [1, 2, 3]


def test_numbers_skip_those_of_a_killed_run(tmp_path: Path) -> None:
    """The killed run gave away numbers that are on no disk."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    for number in range(MAX_UNWRITTEN):
        first.monitor.events.mark(machine.clock.wall(), f"step {number}", ROOT)
    used = numbers_of(first)[-1]
    first.kill()

    second = machine.start()
    second.tick(GIB)

    assert numbers_of(second)[-1] > used


@pytest.mark.parametrize("lost", [["events"], ["flight"], ["events", "flight"]])
def test_numbers_of_damaged_files_are_not_used_again(tmp_path: Path, lost: list[str]) -> None:
    """After a clean stop, the file with the numbers is overwritten with noise."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    for number in range(50):
        first.monitor.events.mark(machine.clock.wall(), f"step {number}", ROOT)
    used = numbers_of(first)[-1]
    first.keeper.stop(30.0)
    for name in lost:
        path = machine.folder / f"{name}.ring"
        path.write_bytes(random.Random(1).randbytes(path.stat().st_size))

    second = machine.start()
    second.tick(GIB)

    new = [event.seq for event in second.monitor.events.since(0) if event.kind in ("history", "started")]
    assert min(seq for seq in new if seq != 1) > used


@contextmanager
def failing_disk() -> Iterator[None]:
    """Let the kernel refuse every write beyond the first block of a file (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_runs_without_a_disk_share_no_number(tmp_path: Path) -> None:
    """Three runs cannot write from their start; each gives its events other numbers."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    first.keeper.stop(30.0)
    seen = numbers_of(first)
    for _ in range(3):
        with failing_disk():
            run = machine.start()
            run.tick(GIB)
            seen += numbers_of(run)[1:]
            run.keeper.stop(30.0)
    last = machine.start()
    last.tick(GIB)
    seen += numbers_of(last)[1:]

    assert len(seen) == 5
    assert len(set(seen)) == 5


def test_many_numbers_wake_the_writer(tmp_path: Path) -> None:
    """No tick follows: the marks alone cause the write."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)
    first.keeper._events_at -= 5.0

    for number in range(MAX_UNWRITTEN + 1):
        first.monitor.events.mark(machine.clock.wall(), f"step {number}", ROOT)

    wait_until(lambda: first.keeper._events_written >= MAX_UNWRITTEN)
    first.keeper.stop(30.0)


@pytest.mark.parametrize("kind", ["level", "alert", "oom_kill", "driver", "silence", "release", "test"])
def test_important_event_is_written_before_the_next_tick(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when other events would be written, here an hour later. The adding thread does not wait."""
    monkeypatch.setattr(writer, "EVENTS_SECONDS", 3600.0)
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)

    added = first.monitor.events.add(machine.clock.wall(), kind, "important")

    wait_until(lambda: first.keeper._events_written == added.seq)
    first.kill()
    assert (kind, "important") in machine.start().events()


def test_change_of_level_is_in_the_event_list_after_a_kill(tmp_path: Path) -> None:
    """At medium pressure, whose ticks are written every 30 s, and soon after another event."""
    machine = AlertMachine.of(tmp_path)
    arguments = (*machine.arguments, f"--state-dir={tmp_path / 'state'}")
    with running_daemon(tmp_path, *arguments) as daemon:
        daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] >= 3)
        machine.set_available(MEDIUM_KIB)
        found = daemon.wait_for("/api/v1/events", lambda all_: any(one["kind"] == "level" for one in all_))
        wait_until(lambda: ("level", found[0]["text"]) in events_on_disk(tmp_path / "state"))
        kill(daemon)
    with running_daemon(tmp_path, *arguments) as daemon:
        after = daemon.get("/api/v1/events?limit=1000").json

    assert "→ medium" in found[0]["text"]
    assert found[0] in after
