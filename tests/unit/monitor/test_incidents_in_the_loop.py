"""Incidents between runs, growth over the last hour, and announced kills, as the loop hands them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.events import EventLog
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.model import Process
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.incidents.records import Incident
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.incidents.store import IncidentStore, pack
from support.fakes import GIB, FakeClock
from support.monitors import tick_of
from support.sample_incident import INCIDENT
from support.sample_snapshots import critical_gb10

BOOTTIME, UNIX = 10_000.0, 1_700_000_000.0
ENDED = replace(INCIDENT, id="20231114T200000Z")
CUT_OFF = replace(INCIDENT, id="20231114T210000Z", ended=None)
WORDS = UncleanShutdown(2000.0, True, (), None)


def process(pid: int, size: int, age: float = 90_000.0) -> Process:
    return Process(pid, UNIX - age, f"p{pid}", size, size, "rss", unit=None, container=None)


def observe(growth: GrowthTracker, kills: Sequence[ServiceKill] = ()) -> Incident:
    """Return the incident of a tick at the critical level. Use of System RAM has not changed before it."""
    observer = IncidentObserver(EventLog(), growth)
    for one in kills:
        observer.announce(one)
    snapshot = replace(critical_gb10(), unix=UNIX, processes=(process(1, GIB),))
    observer.on_tick(tick_of(Moment(BOOTTIME, BOOTTIME, UNIX), snapshot))
    (found,) = observer.log.recent()
    return found


def grow(*readings: tuple[float, Sequence[Process]]) -> GrowthTracker:
    """Return a tracker of readings of processes, each with its seconds before the tick."""
    growth = GrowthTracker()
    for ago, processes in readings:
        growth.add(BOOTTIME - ago, processes, LeakRules())
    return growth


@pytest.mark.parametrize(("age", "is_cause"), [(3599.0, True), (3600.0, True), (3601.0, False), (36_000.0, False)])
def test_process_that_started_within_the_last_hour_grew_by_all_it_holds(age: float, is_cause: bool) -> None:
    """The daemon has seen both for ten minutes only. The older one may have held its memory since yesterday."""
    one = process(7, 40 * GIB, age)

    found = observe(grow((600.0, [one]), (0.0, [one])))

    assert (found.cause.pid if found.cause else None) == (7 if is_cause else None)


@pytest.mark.parametrize(("ago", "is_cause"), [(25.0, True), (26.0, False)])
def test_growth_of_a_process_counts_until_25_s_after_it_was_listed_last(ago: float, is_cause: bool) -> None:
    """A victim may be gone when its kill is noticed."""
    other = process(8, GIB)
    growth = grow((1000.0, [process(7, GIB), other]), (ago, [process(7, 40 * GIB), other]), (0.0, [other]))

    found = observe(growth)

    assert (found.cause.pid if found.cause else None) == (7 if is_cause else None)


@pytest.mark.parametrize(("count", "lost"), [(15, 0), (16, 0), (17, 1)])
def test_last_sixteen_kills_that_are_announced_between_two_ticks_are_kept(count: int, lost: int) -> None:
    names = [f"app{number}" for number in range(count)]
    kills = [
        ServiceKill(0, UNIX, "oomd_prekill", "killed", pid=100 + number, name=name)
        for number, name in enumerate(names)
    ]

    assert [one.who for one in observe(GrowthTracker(), kills).victims] == names[lost:]


def restart(folder: Path, kept: Sequence[Incident], words: UncleanShutdown | None) -> dict[str, Incident]:
    """Return the incidents by id after a start with these on disk, as the next start finds them."""
    clock = FakeClock()
    store = IncidentStore(folder, clock, "boot-1", 1 << 16)
    store.start()
    for one in kept:
        store.put(one.id, pack(one))
    store.stop(10.0)
    observer = IncidentObserver(EventLog(), GrowthTracker())
    observer.use_store(IncidentStore(folder, clock, "boot-2", 1 << 16), words, ())
    observer.close(10.0)
    again = IncidentStore(folder, clock, "boot-3", 1 << 16)
    found = {one.id: one for one in again.load()}
    again.stop(10.0)
    assert {one.id for one in observer.log.heads()} == found.keys()
    return found


@pytest.mark.parametrize(("words", "kind", "ended"), [(WORDS, "unclean_end", 2000.0), (None, "kill", 1001.0)])
def test_start_closes_the_incident_that_lasted(
    words: UncleanShutdown | None, kind: str, ended: float, tmp_path: Path
) -> None:
    """After an unclean end, or a clean one whose last tick hung. The one that had ended stays as it was."""
    found = restart(tmp_path, [ENDED, CUT_OFF], words)

    closed = found.pop(CUT_OFF.id)
    assert found == {ENDED.id: ENDED}
    assert (closed.kind, closed.ended) == (kind, ended)


@pytest.mark.parametrize(("words", "count"), [(WORDS, 1), (None, 0)])
def test_unclean_end_without_a_lasting_incident_is_one(
    words: UncleanShutdown | None, count: int, tmp_path: Path
) -> None:
    found = restart(tmp_path, [ENDED], words)

    assert found.pop(ENDED.id) == ENDED
    assert [one.kind for one in found.values()] == ["unclean_end"] * count
