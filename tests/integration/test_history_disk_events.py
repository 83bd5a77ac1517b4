"""Events on disk: they survive restarts, crashes and reboots, alert once, and need few writes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.budget import ROOT, Account
from memwatch.core.events import Event
from memwatch.core.helper.codec import DecodeError
from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.snapshot import Kernel
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_monitor.history.records import EVENTS, unpack_events
from memwatch_monitor.history.ring_file import blocks_for
from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import running_daemon
from support.fakes import GIB
from support.monitors import listen
from support.store_machine import Machine, Running
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import receiving


def events_of(run: Running) -> list[Event]:
    return run.monitor.events.since(0)


def test_events_are_restored_after_a_clean_restart_and_reboot(tmp_path: Path) -> None:
    """Events and marks keep order, times and sequence numbers. New numbers continue."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    first.monitor.events.mark(machine.clock.wall(), "epoch 3", ROOT)
    first.tick(63 * GIB)
    first.tick(GIB)
    first.keeper.stop(30.0)
    before = events_of(first)
    machine.reboot()

    second = machine.start()
    second.tick(GIB)

    after = events_of(second)
    assert [event.kind for event in before] == ["started", "mark", "level"]
    assert after[: len(before)] == before
    assert [event.kind for event in after[len(before) :]] == ["started"]
    assert [event.seq for event in after] == list(range(1, len(after) + 1))


def test_event_at_high_pressure_is_on_disk_before_it_is_served(tmp_path: Path) -> None:
    """Killed in the tick in which memory turned critical: the event is restored."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)
    first.tick(63 * GIB)
    first.kill()

    kinds = [event.kind for event in events_of(machine.start())]

    assert kinds == ["started", "level", "unclean"]


def test_events_are_written_soon_and_marks_with_the_next_batch(tmp_path: Path) -> None:
    """A driver error is on disk within a few ticks. A mark of a program causes no write."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)
    for number in range(1000):
        first.monitor.events.mark(machine.clock.wall(), f"step {number}", ROOT)
        first.tick(GIB)
    writes = first.keeper.status().writes

    first.monitor.events.add(machine.clock.wall(), "driver", "the driver of gpu0 reported XID 79")

    def written() -> bool:
        first.tick(GIB)
        return first.keeper._events_written == first.monitor.events.last_seq

    assert writes == 2
    wait_until(written)
    first.kill()
    assert [event.text for event in events_of(machine.start()) if event.kind == "driver"] == [
        "the driver of gpu0 reported XID 79"
    ]


def test_unwritten_events_are_written_when_the_disk_recovers(tmp_path: Path) -> None:
    """As long as they are in memory, a failing disk loses none."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)
    ring = first.keeper.files.ring_set.rings["events"]
    ring.ready, first.keeper.files._retry_at = False, float("inf")
    first.tick(63 * GIB)
    first.tick(63 * GIB)
    lost = first.keeper._events_written

    first.keeper.files._retry_at = 0.0
    first.tick(63 * GIB)
    first.kill()

    assert lost == 1
    assert [event.kind for event in events_of(machine.start())] == ["started", "level", "unclean"]


def test_smallest_event_file_keeps_the_newest_events(tmp_path: Path) -> None:
    """10,000 events as long as the kernel's lines: the file does not grow."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    for number in range(10_000):
        first.monitor.events.add(machine.clock.wall(), "driver", f"{number} {'x' * 1000}")
        if number % 500 == 499:
            first.tick(63 * GIB)
    size = (tmp_path / "state" / "events.ring").stat().st_size
    first.keeper.stop(30.0)

    second = machine.start()
    found = [int(event.text.split()[0]) for event in events_of(second) if event.kind == "driver"]

    assert found[-32:] == list(range(10_000 - 32, 10_000))
    assert found == sorted(set(found))
    assert (tmp_path / "state" / "events.ring").stat().st_size == size
    assert second.keeper.status().lost == 0


def test_many_marks_displace_no_event_on_disk(tmp_path: Path) -> None:
    """Four times as many mark records as the smallest ring holds: the earlier OOM kill is kept."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.monitor.events.add(machine.clock.wall(), "oom_kill", "OOM killer: killed hog")
    for number in range(130):
        first.monitor.events.mark(machine.clock.wall(), f"epoch {number}", ROOT)
        first.tick(63 * GIB)
        wait_until(lambda: first.keeper._events_written == first.monitor.events.last_seq)
    before = events_of(first)
    first.kill()

    after = events_of(machine.start())

    assert first.keeper.files.ring_set.rings["events"].blocks == 32
    assert after[:-1] == before
    assert after[-1].kind == "unclean"


def test_long_marks_of_a_user_displace_no_event_and_no_mark_of_another_on_disk(tmp_path: Path) -> None:
    """All of its marks are larger than the ring. The OOM kill and the mark of another user are kept."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    events = first.monitor.events
    events.add(machine.clock.wall(), "oom_kill", "OOM killer: killed hog")
    events.mark(machine.clock.wall(), "of ana", Account("uid 1000"))
    for number in range(40):
        for _ in range(25):
            events.mark(machine.clock.wall(), f"{number} " + '"é' * 148, Account("uid 1002"))
        first.tick(GIB if number % 2 else 63 * GIB)
    wait_until(lambda: first.keeper._events_written == events.last_seq)
    first.kill()
    after = events_of(machine.start())

    assert {"OOM killer: killed hog", "of ana"} <= {one.text for one in after}
    assert sum(one.text.startswith("39 ") for one in after) > 0
    assert {"started", "oom_kill", "level"} <= {one.kind for one in after}


@pytest.mark.parametrize(
    "invalid",
    [
        {"seq": 0},
        {"seq": 1 << 60},
        {"seq": 1.5},
        {"unix": 1e300},
        {"unix": -1.0},
        {"unix": "now"},
        {"text": None},
        {"target": 7},
    ],
)
def test_invalid_event_with_a_valid_checksum_is_rejected(tmp_path: Path, invalid: dict[str, object]) -> None:
    """The other records are used. This one is reported."""
    good = {"seq": 1, "unix": 1.7e9, "kind": "level", "text": "System RAM: low → high", "target": "ram"}
    payload = json.dumps({"events": [good | invalid]}).encode()
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    wait_until(lambda: first.keeper._events_written == 1)
    first.keeper.files.append("events", EVENTS, first.keeper._stamp(), payload)
    first.keeper.stop(30.0)

    second = machine.start()

    assert [event.kind for event in events_of(second)] == ["started", "history"]
    assert len(second.values()) == 1
    with pytest.raises(DecodeError):
        unpack_events(payload)
    assert unpack_events(json.dumps({"events": [good]}).encode()) == (Event(**good),)  # type: ignore[arg-type]
    assert blocks_for(len(payload)) == 1


def test_restored_events_raise_no_alert(tmp_path: Path) -> None:
    """Alerts are for events of the current run."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.tick(GIB)
    first.monitor.events.add(machine.clock.wall(), "oom_kill", "OOM killer: killed hog")
    first.keeper.stop(30.0)

    second = machine.start()
    notifications: list[Notification] = []
    listen(second.monitor, lambda _, some: notifications.extend(some))
    for _ in range(3):
        second.tick(GIB)

    assert [event.kind for event in events_of(second)] == ["started", "oom_kill", "started"]
    assert notifications == []


def test_kill_during_an_alert_keeps_events_and_alert_id(tmp_path: Path) -> None:
    """API and /history show the events of both runs. The receiver gets one alert with one id."""
    machine = AlertMachine.of(tmp_path)
    state = f"--state-dir={tmp_path / 'state'}"
    with receiving(200) as site:
        config = quick_config(site)
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            machine.fill()
            wait_for_deliveries(site, 1)
            before = daemon.get("/api/v1/events").json
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait(MAX_WAIT_SECONDS)
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] >= 5)
            after = daemon.get("/api/v1/events").json
            history = daemon.get("/history").text

    assert [event for event in after if event in before] == before
    assert "unclean" in [event["kind"] for event in after[: -len(before)]]
    critical = next(event for event in before if "→ critical" in event["text"])
    assert f'datetime="{critical["time"][:19]}Z"' in history
    # The delivery is on disk within a second. If the daemon is killed earlier, it sends the alert again.
    received = [json.loads(one.body) for one in site.deliveries]
    assert len({one["id"] for one in received if one["event"] == "pressure.critical"}) == 1


def test_counts_of_kills_by_scope_continue_after_a_restart_and_not_after_a_reboot(tmp_path: Path) -> None:
    """Kills that were those of a cgroup do not become unknown: Prometheus would count them again."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    line = OomKill(1, 77, "x", 0, "cgroup", "/job")
    for counted, kills in ((2, ()), (3, (line,)), (3, (line,))):
        first.memory.findings = replace(
            first.memory.findings, kernel=Kernel(oom_kills_total=counted), kernel_log=KernelLog(kills)
        )
        first.tick(GIB)
    first.keeper.stop(30.0)
    second = machine.start()
    second.memory.findings = replace(second.memory.findings, kernel=Kernel(oom_kills_total=4))
    second.tick(GIB)
    second.keeper.stop(30.0)
    machine.reboot()
    third = machine.start()
    third.memory.findings = replace(third.memory.findings, kernel=Kernel(oom_kills_total=2))
    third.tick(GIB)
    third.keeper.stop(30.0)

    scopes = [one.monitor.features.get(BetweenScrapes).kills.scopes for one in (first, second, third)]
    assert [(one["cgroup"], one["unknown"]) for one in scopes] == [(1, 2), (1, 3), (0, 2)]
