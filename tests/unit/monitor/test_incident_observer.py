"""Test the end of incidents when the daemon stops."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from memwatch.core.clock import Moment
from memwatch.core.events import EventLog
from memwatch.core.kernel_log import ProcessEnd
from memwatch.core.model import Absent, Process
from memwatch.core.processes.growth import GrowthTracker
from memwatch_monitor.incident_observer import IncidentObserver
from support.monitors import tick_of
from support.sample_snapshots import critical_gb10
from support.waiting import MAX_WAIT_SECONDS


class SlowEnds:
    """Source of ended processes whose `take` lasts until `may_end`."""

    def __init__(self) -> None:
        self.ended: dict[int, float | Absent] = {}
        self.taking, self.may_end = threading.Event(), threading.Event()

    def follow(self, processes: Sequence[Process]) -> None: ...

    def take(self) -> tuple[ProcessEnd, ...]:
        self.taking.set()
        self.may_end.wait(MAX_WAIT_SECONDS)
        return ()


def tick(observer: IncidentObserver, second: float) -> None:
    observer.on_tick(tick_of(Moment(second, second, 1e9 + second), critical_gb10()))


def ended(observer: IncidentObserver) -> list[bool]:
    return [incident.ended is not None for incident in observer.log.recent()]


def test_stop_ends_incidents_and_a_later_tick_begins_none() -> None:
    """Joining the tick's thread has timed out, and its last tick comes after the end of the incidents."""
    observer = IncidentObserver(EventLog(), GrowthTracker())
    tick(observer, 1.0)
    before = ended(observer)
    observer.close()
    after = ended(observer)
    tick(observer, 2.0)

    assert before == [False]
    assert after == ended(observer) == [True]


def test_stop_during_a_tick_leaves_incidents_to_the_next_start() -> None:
    """The tick owns the incidents: it hangs for longer than the shutdown may take."""
    observer, ends = IncidentObserver(EventLog(), GrowthTracker()), SlowEnds()
    tick(observer, 1.0)
    observer.ended.ends = ends
    ticking = threading.Thread(target=tick, args=(observer, 2.0))
    ticking.start()
    assert ends.taking.wait(MAX_WAIT_SECONDS)
    observer.close(0.01)
    after = ended(observer)
    ends.may_end.set()
    ticking.join()

    assert after == ended(observer) == [False]
