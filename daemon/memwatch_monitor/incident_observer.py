"""Incidents in the loop: gathers what is new at each tick, keeps the records, and writes them to disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.budget import Budgets
from memwatch.core.events import Event, EventLog
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.linux.accounts import Accounts
from memwatch.core.model import Process, holds_discrete_memory
from memwatch.core.processes.growth import GrowthTracker
from memwatch.core.reading.machine import Additions
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.incidents.readings import word
from memwatch.reporting.incidents.records import Incident, Suspect, Told
from memwatch_monitor.feature import Family, Feature, Tick
from memwatch_monitor.incidents.assemble import build_unclean, close_cut_off
from memwatch_monitor.incidents.gatherer import Gatherer
from memwatch_monitor.incidents.store import IncidentLog, IncidentStore
from memwatch_monitor.incidents.triggers import Observation
from memwatch_monitor.loop import Monitor
from memwatch_monitor.processes import EndedProcesses, GrowthWatch

HOUR_SECONDS = 3600.0
# A victim may be listed no more when its kill is noticed. Sizes are read every ten seconds.
GONE_SECONDS = 25.0
MAX_GROWN, MAX_ANNOUNCED = 8, 16
# Kinds of things that the list of incidents lacks.
LEFT_OUT = (
    ("incidents", "are not followed"),
    ("incidents_kept", "were dropped"),
    ("last_words", "ended, and were dropped before they were explained,"),
)
# Ends of a record before an incident has been over for a minute.
RESTARTED, STOPPED = "the recording ended", "memwatchd was stopped"


class IncidentObserver(Feature):
    """Observer of incidents. Call `on_tick` from the thread that ticks; `close` and `log` are thread-safe."""

    name = "incidents"

    @classmethod
    def of(cls, monitor: Monitor) -> IncidentObserver:
        features = monitor.features
        tracker, ended = features.get(GrowthWatch).tracker, features.get(EndedProcesses)
        return cls(monitor.events, tracker, ended, monitor.budgets, monitor.accounts)

    def __init__(
        self,
        events: EventLog,
        growth: GrowthTracker,
        ended: EndedProcesses | None = None,
        budgets: Budgets | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._budgets: Budgets = budgets or Budgets()
        self._account_of = (accounts or Accounts(Path("/"))).of_cgroup
        self.log: IncidentLog = IncidentLog(self._budgets["incidents_kept"], self._account_of)
        self.ended: EndedProcesses = ended or EndedProcesses()
        self._events, self._growth = events, growth
        self._gatherer = self._create_gatherer()
        self._store: IncidentStore | None = None
        self._events_seen = self._kills_seen = 0
        self._group_kills: int | None = None
        self._processes: tuple[Process, ...] = ()
        self._last: Observation | None = None
        self._announced: deque[ServiceKill] = deque(maxlen=MAX_ANNOUNCED)
        self.announced_left_out: int = 0
        self._turn = threading.Lock()
        self._is_stopped = False

    def use_store(self, store: IncidentStore, words: UncleanShutdown | None, crash: Sequence[str]) -> None:
        """Restore the incidents of earlier runs, and close those that an unclean end cut off."""
        self._store, restored = store, store.load()
        self.log.restore(one for one in restored if one.ended is not None)
        cut_off = [one for one in restored if one.ended is None]
        store.start(self.log.packed)
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

    def _create_gatherer(self) -> Gatherer:
        return Gatherer(self._grown, self._budgets["incidents"], self._account_of, self._budgets["last_words"])

    def left_out(self) -> list[str]:
        """Return sentences about incidents that are not in the list."""
        return [
            f"{count} more of {name} {reason} within the last hour"
            for kind, reason in LEFT_OUT
            for name, count in self._budgets[kind].recent().most_common()
        ]

    def on_additions(self, additions: Additions) -> Additions:
        new = {"announced_kills": self.announced_left_out}
        return replace(additions, left_out={**additions.left_out, **new})

    def on_tick(self, tick: Tick) -> None:
        with self._turn:
            if not self._is_stopped:
                self._add_tick(tick)

    def _add_tick(self, tick: Tick) -> None:
        snapshot, ends = tick.snapshot, self.ended.ends
        kills = tick.findings.service_kills
        logged = tuple([one for one in kills if one.number > self._kills_seen]) if kills else ()
        seen = Observation(
            tick.now.boottime,
            snapshot,
            tick.kills,
            self._new_group_kills(tick.findings),
            (*self._take_announced(), *logged) if self._announced else logged,
            ends.take() if ends is not None else (),
            self._new_events(),
        )
        self._last = seen
        if logged:
            self._kills_seen = logged[-1].number
        for incident in self._gatherer.add(seen):
            self._keep(incident)
            if incident.ended is not None:
                text = f"incident recorded: {incident.sentence} ({incident.id})"
                self._events.add(snapshot.unix, "incident", text, incident.target)
        for text in self._gatherer.take_quiet_kills():
            self._events.add(snapshot.unix, "process.killed", text)
        if ends is not None and snapshot.processes is not self._processes:
            self._processes = snapshot.processes
            ends.follow(snapshot.processes)

    def on_replay(self) -> None:
        """End all incidents, because a recording starts again: its first figures are no change from its last."""
        for incident in self._gatherer.close_all(self._last, RESTARTED):
            self._keep(incident)
        self._gatherer = self._create_gatherer()
        self._group_kills = None

    def close(self, seconds: float = 0.7) -> None:
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

    def families(self) -> Iterator[Family]:
        """Yield the incidents of now: a handful of series at a time, as their ids are labels."""
        text = (
            "Incidents that last, and the last one for five minutes. The page /incidents/ with the id explains it."
        )
        rows = [(one.id, one.kind, one.target) for one in self.log.recent()]
        yield Family("info", "incident", text, rows, ("id", "kind", "target"))

    def update_told(self, update: Callable[[Incident], tuple[Told, ...]]) -> None:
        """Bring the deliveries of recent incidents up to date. Call from the thread that ticks."""
        with self._turn:
            for head in () if self._is_stopped else self.log.recent():
                told = update(head)
                whole = self.log.find(head.id) if told != (head.told or ()) else None
                if whole is not None:
                    self._keep(replace(whole, told=told))

    def _keep(self, incident: Incident) -> None:
        known = self.log.find_head(incident.id) if not incident.told else None
        if known is not None and known.told:
            incident = replace(incident, told=known.told)
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
        snapshot = seen.snapshot
        found = []
        grown = self._growth.lately(HOUR_SECONDS, snapshot.unix, GONE_SECONDS)
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
