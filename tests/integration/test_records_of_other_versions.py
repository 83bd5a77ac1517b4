"""Records on disk of a newer or older version: unknown fields are ignored, and unreadable records are reported."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import asdict

from memwatch.core.events import Event
from memwatch.core.helper.codec import to_line
from memwatch.reporting.history.notable_ticks import Tick, pack
from memwatch_monitor.history.records import EVENTS, TICK, EventBatch
from support.daemon_process import running_daemon
from support.fakes import GIB
from support.monitors import history
from support.store_machine import Machine, Running
from support.waiting import wait_until


class NewerEvent(Event, frozen=True):
    """Event with a field that this version does not have."""

    actor: str = "ada"


class NewerTick(Tick, frozen=True):
    """Tick with a field that this version does not have."""

    power_watts: dict[str, float] = field(default_factory=dict)


class OlderTick(Struct, frozen=True):
    """Tick without most of the fields that this version requires."""

    seq: int
    unix: float


def running(machine: Machine) -> Running:
    run = machine.start()
    run.tick(GIB)
    with run.keeper._changed:  # an event that no alert needs is otherwise written with a tick 5 s later
        run.keeper._events_due = True
        run.keeper._changed.notify_all()
    wait_until(lambda: run.keeper._events_written == run.monitor.events.last_seq)
    return run


def append(run: Running, name: str, kind: int, payload: bytes) -> None:
    assert run.keeper.files.append(name, kind, run.keeper._stamp(), payload)


def a_tick(run: Running) -> Tick:
    return Tick(7, run.machine.clock.wall(), run.machine.clock.boottime(), (), (), (), {"pool.ram.used_bytes": 3.0})


def test_records_with_a_field_more_are_read_back(tmp_path: Path) -> None:
    """An event, a tick at high pressure and a notable tick. Nothing is counted as lost."""
    machine = Machine(tmp_path / "state")
    first = running(machine)
    event = NewerEvent(2, machine.clock.wall(), "driver", "XID 79", actor="bob")
    newer = pack(NewerTick(**asdict(a_tick(first)), power_watts={"gpu0": 300.0}))
    append(first, "events", EVENTS, to_line(EventBatch((event,))))
    append(first, "flight", TICK, newer)
    append(first, "ticks", TICK, newer)
    first.kill()

    second = machine.start()

    assert ("driver", "XID 79") in second.events()
    assert second.values() == [3.0]
    assert len(history(second.monitor).ticks) == 1
    assert second.keeper.status().lost == 0


def test_unreadable_records_are_counted_by_file(tmp_path: Path) -> None:
    """In the log, in the event list and in the metric; the other records are used."""
    machine = Machine(tmp_path / "state")
    first = running(machine)
    older = pack(OlderTick(7, machine.clock.wall()))  # type: ignore[arg-type]
    append(first, "events", EVENTS, b'{"events":[{"seq":2,"unix":1.0}]}\n')
    append(first, "flight", TICK, older)
    append(first, "ticks", TICK, pack(a_tick(first)))
    append(first, "ticks", TICK, older)
    append(first, "fine", 1, b"rows of a later version")
    first.kill()

    second = machine.start()

    path = machine.folder
    assert [text.partition(" cannot")[0] for kind, text in second.events() if kind == "history"] == [
        f"{path / 'fine.ring'}: 1 record",
        f"{path / 'flight.ring'}: 1 record",
        f"{path / 'ticks.ring'}: 1 record",
        f"{path / 'events.ring'}: 1 record",
    ]
    assert second.keeper.status().lost == 4
    assert len(history(second.monitor).ticks) == 1
    assert "started" in [kind for kind, _ in second.events()]


def test_daemon_serves_the_ticks_beside_unreadable_ones(tmp_path: Path) -> None:
    """The list of notable ticks has the readable one. The log and the metric report a run of another version."""
    machine = Machine(tmp_path / "state")
    first = running(machine)
    older = pack(OlderTick(7, machine.clock.wall()))  # type: ignore[arg-type]
    append(first, "ticks", TICK, older)
    append(first, "ticks", TICK, pack(a_tick(first)))
    first.kill()
    second = running(machine)
    append(second, "ticks", TICK, older)
    second.kill()

    machine.folder.chmod(0o700)
    with running_daemon(tmp_path, "--state-dir", str(machine.folder)) as daemon:
        ticks = daemon.get("/api/v1/ticks?from=0&limit=500")
        log, metrics, about = daemon.read_log(), daemon.get("/metrics").text, daemon.get("/about").text

    assert ticks.status == 200
    assert len([one for one in ticks.json if not one["pressure"]]) == 1
    assert "ticks.ring: 1 record cannot be read by this version of memwatchd" in log
    assert "memwatch_history_damaged_records 1.0" in metrics
    assert "<dt>Unreadable records at start</dt><dd>1</dd>" in about
