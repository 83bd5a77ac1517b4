"""Incidents in the loop: gathers what is new at each tick, keeps the records, and writes them to disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from memwatch.core.clock import Moment
from memwatch.core.events import Event, EventLog
from memwatch.core.findings import Findings
from memwatch.core.kill_log import ProcessEnd, ServiceKill
from memwatch.core.model import Absent, Process, holds_discrete_memory
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.processes.growth import GrowthTracker
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.ended_processes import EndedProcesses
from memwatch.monitor.history.disk.last_run import UncleanShutdown
from memwatch.monitor.incidents.gatherer import Gatherer
from memwatch.monitor.incidents.log import IncidentLog
from memwatch.monitor.incidents.readings import word
from memwatch.monitor.incidents.records import Incident, Suspect
from memwatch.monitor.incidents.store import IncidentStore
from memwatch.monitor.incidents.triggers import Observation
from memwatch.monitor.incidents.unclean import build_unclean, close_cut_off

HOUR_SECONDS = 3600.0
# A victim may be listed no more when its kill is noticed. Sizes are read every ten seconds.
GONE_SECONDS = 25.0
MAX_GROWN, MAX_ANNOUNCED = 8, 16
RESTARTED = "the recording ended before the incident was over"
STOPPED = "memwatchd was stopped before the incident was over"


class EndSource(Protocol):
    """Reports the ends of the processes that it follows. `ended`: start times by PID."""

    ended: dict[int, float | Absent]

    def follow(self, processes: Sequence[Process]) -> None: ...

    def take(self) -> tuple[ProcessEnd, ...]: ...


class IncidentObserver:
    """Observer of incidents. Call `on_tick` from the thread that ticks; `stop` and `log` are thread-safe."""

    def __init__(self, events: EventLog, growth: GrowthTracker) -> None:
        self.log: IncidentLog = IncidentLog()
        self.ends: EndSource | None = None
        self._events, self._growth = events, growth
        self._gatherer = Gatherer(self._grown)
        self._store: IncidentStore | None = None
        self._events_seen = self._kills_seen = 0
        self._group_kills: int | None = None
        self._processes: tuple[Process, ...] = ()
        self._last: Observation | None = None
        self._ended = EndedProcesses()
        self._announced: deque[ServiceKill] = deque(maxlen=MAX_ANNOUNCED)
        self.announced_left_out: int = 0
        self._turn = threading.Lock()
        self._is_stopped = False

    def use_store(self, store: IncidentStore, words: UncleanShutdown | None, crash: Sequence[str]) -> None:
        """Restore the incidents of earlier runs, and close those that an unclean end cut off."""
        self._store, restored = store, store.load()
        self.log.restore(one for one in restored if one.ended is not None)
        cut_off = [one for one in restored if one.ended is None]
        store.start()
        for one in cut_off:
            self._keep(close_cut_off(one, words, crash))
        if words is not None and not cut_off:
            found = build_unclean(words, crash)
            if found is not None and self.log.find(found.id) is None:
                self._keep(found)

    def announce(self, kill: ServiceKill) -> None:
        """Add a kill that its service reports itself. The next tick takes it. Thread-safe."""
        self.announced_left_out += len(self._announced) == MAX_ANNOUNCED
        self._announced.append(kill)

    def without_ended(self, findings: Findings) -> Findings:
        """Return the findings without the followed processes that ended since the processes were read."""
        return findings if self.ends is None else self._ended.drop(findings, self.ends.ended)

    @property
    def left_out(self) -> int:
        """Number of incidents that began while the highest number was open."""
        return self._gatherer.left_out

    @property
    def ended_pids(self) -> frozenset[int]:
        """Return the followed processes that ended and that the newest list of processes still has."""
        return frozenset(self.ends.ended) if self.ends is not None else frozenset()

    def on_tick(self, now: Moment, snapshot: Snapshot, kills: NewKills, findings: Findings) -> None:
        with self._turn:
            if not self._is_stopped:
                self._add_tick(now, snapshot, kills, findings)

    def _add_tick(self, now: Moment, snapshot: Snapshot, kills: NewKills, findings: Findings) -> None:
        logged = tuple(one for one in findings.service_kills or () if one.number > self._kills_seen)
        seen = Observation(
            now.boottime,
            snapshot,
            kills,
            self._new_group_kills(findings),
            (*self._take_announced(), *logged),
            self.ends.take() if self.ends is not None else (),
            self._new_events(),
        )
        self._last = seen
        if logged:
            self._kills_seen = logged[-1].number
        for incident in self._gatherer.add(seen):
            self._keep(incident)
            if incident.ended is not None:
                self._events.add(snapshot.unix, "incident", f"{incident.sentence} ({incident.id})", incident.target)
        for text in self._gatherer.take_quiet_kills():
            self._events.add(snapshot.unix, "process.killed", text)
        if self.ends is not None and snapshot.processes is not self._processes:
            self._processes = snapshot.processes
            self.ends.follow(snapshot.processes)

    def restart(self) -> None:
        """End all incidents, because a recording starts again: its first figures are no change from its last."""
        for incident in self._gatherer.close_all(self._last, RESTARTED):
            self._keep(incident)
        self._gatherer = Gatherer(self._grown)
        self._group_kills = None

    def stop(self, seconds: float = 0.7) -> None:
        """End the incidents that last, and write them.

        A last tick that takes longer than `seconds` keeps them: the next start ends them, as after a crash.
        """
        if self._turn.acquire(timeout=seconds):
            try:
                self._is_stopped = True
                for incident in self._gatherer.close_all(self._last, STOPPED):
                    self._keep(incident)
            finally:
                self._turn.release()
        if self._store is not None:
            self._store.stop(seconds)

    def _keep(self, incident: Incident) -> None:
        data = self.log.put(incident)
        if self._store is not None:
            self._store.put(incident.id, data)

    def _take_announced(self) -> list[ServiceKill]:
        return [self._announced.popleft() for _ in range(len(self._announced))]

    def _new_events(self) -> tuple[Event, ...]:
        if self._events.last_seq == self._events_seen:
            return ()
        found = tuple(self._events.since(self._events_seen))
        self._events_seen = found[-1].seq if found else self._events_seen
        return found

    def _new_group_kills(self, findings: Findings) -> int:
        before, self._group_kills = self._group_kills, findings.cgroup_oom_kills_total
        return max(0, self._group_kills - before) if before is not None and self._group_kills is not None else 0

    def _grown(self, seen: Observation) -> list[Suspect]:
        """Return the growth over the last hour of processes without memory of a discrete GPU."""
        since, snapshot = self._growth.boottime - HOUR_SECONDS, seen.snapshot
        found = []
        grown = self._growth.since(since, snapshot.unix - HOUR_SECONDS, GONE_SECONDS)
        in_ram = [one for one in grown if not holds_discrete_memory(one.process, snapshot.pools, snapshot.shares)]
        for one in in_ram[:MAX_GROWN]:
            process = one.process
            began = snapshot.unix - (seen.boottime - one.from_boottime)
            unit, container = word(process.unit), word(process.container)
            found.append(
                Suspect(
                    process.title,
                    process.pid,
                    unit,
                    container,
                    one.grown_bytes,
                    began,
                    one.to_bytes,
                    not one.from_bytes,
                )
            )
        return found
