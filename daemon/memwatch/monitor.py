"""The loop: on every tick gather, judge, remember, publish."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memwatch.accounting.tegra import tegrastats_of
from memwatch.alerts import Key, Notice, Watch, step
from memwatch.clock import Clock
from memwatch.collector import Findings
from memwatch.conditions import EVENT_KINDS, AlertRules, conditions_of
from memwatch.events import Event, EventLog
from memwatch.history import History
from memwatch.own import OwnCost
from memwatch.pressure.evidence import evidence_of
from memwatch.pressure.judge import Memory, judge
from memwatch.pressure.rules import PressureRules
from memwatch.sampler import Sampler
from memwatch.schedule import Moment, Pace, next_due, paced, suspended_seconds, wall_jump_seconds
from memwatch.series import figures_of
from memwatch.silences import Silence
from memwatch.snapshot import CollectorStatus, Level, Machine, Pressure, Snapshot
from memwatch.stalltrigger import StallTrigger
from memwatch.story import Story

log = logging.getLogger(__name__)

# Ticks come some milliseconds early or late: so much of an interval counts as one.
SAME_INTERVAL = 0.9


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be changed while running."""

    interval_seconds: float = 1.0
    history_seconds: float = 3600.0
    pressure: PressureRules = PressureRules()
    alerts: AlertRules = AlertRules()


@dataclass(frozen=True, slots=True)
class Identity:
    """Which machine, and since which boot."""

    host: str
    boot_id: str
    simulated: bool = False


Listener = Callable[[Snapshot, tuple[Notice, ...]], None]


class Monitor:
    """Owns the loop and what it remembers. `latest` is the last finished snapshot; any thread may take it.

    Listeners are told once an interval and whenever a level changes, however fast the ticks come.
    """

    def __init__(
        self,
        sampler: Sampler,
        clock: Clock,
        rules: Rules,
        identity: Identity,
        trigger: StallTrigger | None = None,
    ) -> None:
        self.latest: Snapshot | None = None
        self.events = EventLog()
        self.history = History(capacity_of(rules), rules.interval_seconds)
        self.own = OwnCost()
        self.watches: Mapping[Key, Watch] = {}
        self.silences: tuple[Silence, ...] = ()
        self.listeners: list[Listener] = []
        self.rules = rules
        self._sampler = sampler
        self._clock = clock
        self.identity = identity
        self._trigger = trigger
        self._memory = Memory()
        self._pace = Pace()
        self._remembered = Peak()
        self._told_at = -math.inf
        self._told_levels: Mapping[str, Level] = {}
        self._story = Story(self.events)
        self._before: Moment | None = None
        self._complaint = ""
        self._seq = 0
        self._events_seen = 0
        self._untold: tuple[Notice, ...] = ()
        self._ring_rules = (rules.interval_seconds, rules.history_seconds)

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop. Returns when `stop` is set; a failing tick is logged and the next one comes."""
        due = self._clock.monotonic()
        while not stop.is_set():
            self._tick_or_log(self._clock.monotonic() - due)
            usual = self.rules.interval_seconds
            interval = self._pace.interval(usual)
            coming = next_due(due, interval, self._clock.monotonic())
            if coming.missed * interval >= usual:
                self._story.missed(self._clock.wall(), coming.missed)
            due = coming.at
            if self._wait(due - self._clock.monotonic(), stop):
                self._pace = paced(self._pace, (), self._clock.monotonic(), stalled=True)
                due = self._clock.monotonic()

    def tick(self, lag_seconds: float = 0.0) -> Snapshot:
        """One tick: everything gathered, judged, remembered and published."""
        now = self.moment()
        rules = self.rules
        resumed = self._notice_clocks(now)
        findings, statuses = self._sampler.gather()
        evidence = evidence_of(findings, now.monotonic, rules.pressure, resumed)
        pressure, self._memory = judge(evidence, self._memory, rules.pressure)
        self._pace = paced(self._pace, pressure, now.monotonic)
        snapshot = self._snapshot(now, rules, findings, statuses, pressure, lag_seconds)
        self._story.tell(self.latest, snapshot)
        self._alert(now, snapshot, rules.alerts)
        self._remember(now, snapshot)
        self.own.tick_duration_seconds = self._clock.monotonic() - now.monotonic
        self.latest = snapshot
        self._tell(snapshot)
        return snapshot

    def moment(self) -> Moment:
        """All clocks, now."""
        return Moment(self._clock.monotonic(), self._clock.boottime(), self._clock.wall())

    def wake(self) -> None:
        """End the wait for the next tick, so that a loop that was told to stop does. Any thread may call it."""
        if self._trigger is not None:
            self._trigger.wake()

    def age_seconds(self) -> float | None:
        """How old the latest snapshot is; None before the first."""
        return None if self.latest is None else self._clock.monotonic() - self.latest.monotonic

    def to_wall(self, boottime: float) -> float:
        """A boot time as wall clock time, by the clocks of now."""
        return boottime + self._clock.wall() - self._clock.boottime()

    def to_boottime(self, unix: float) -> float:
        return unix - self._clock.wall() + self._clock.boottime()

    def release(self, seconds: float) -> list[str]:
        """Let go of all devices for so long; the names of the collectors that do. Any thread may call it."""
        names = self._sampler.release(seconds)
        self._story.released(self._clock.wall(), names, seconds)
        return names

    def reconfigure(self, rules: Rules) -> None:
        """Use other rules from the next tick on. Any thread may call it."""
        self.rules = rules
        self._story.reloaded(self._clock.wall())

    def _alert(self, now: Moment, snapshot: Snapshot, rules: AlertRules) -> None:
        """Alerts move on. What is to be told stays so until it was, should the rest of this tick fail."""
        seen = self.events.last_seq
        conditions = conditions_of(snapshot, self._new_events(), rules)
        watches, notices = step(
            self.watches, conditions, now.monotonic, now.wall, rules, new_notice_id, self.silences
        )
        self.watches, self._untold, self._events_seen = watches, (*self._untold, *notices), seen
        self._story.tell_alerts(snapshot, notices)

    def _new_events(self) -> list[Event]:
        """Events since the last tick that an alert may be about."""
        if self.events.last_seq == self._events_seen:
            return []
        return [event for event in self.events.since(self._events_seen) if event.kind in EVENT_KINDS]

    def _tick_or_log(self, lag_seconds: float) -> None:
        """A tick that cannot hurt the loop. The same failure on every tick is logged once."""
        try:
            self.tick(lag_seconds)
        except MemoryError:
            self.own.give_up_spare()
            self._complain("out of memory in a tick; it was left out")
        except Exception as error:
            log.debug("the defect in full", exc_info=True)
            self._complain(f"a tick failed and was left out: {type(error).__name__}: {error}")
        else:
            if self._complaint:
                log.warning("ticks work again")
            self._complaint = ""

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.error("%s", complaint)
        self._complaint = complaint

    def _wait(self, seconds: float, stop: threading.Event) -> bool:
        """Sleep until the next tick is due. True, and early, if the kernel says that tasks wait for memory."""
        if self._trigger is not None:
            return self._trigger.wait(seconds, stop)
        stop.wait(max(0.0, seconds))
        return False

    def _notice_clocks(self, now: Moment) -> bool:
        """Tell of clocks that jumped. True if the machine slept since the tick before."""
        slept = jumped = 0.0
        if self._before is not None:
            slept = suspended_seconds(self._before, now)
            jumped = wall_jump_seconds(self._before, now)
            if slept:
                self._story.suspended(now.wall, slept)
            if jumped:
                self._story.clock_set(now.wall, jumped)
        self._before = now
        return bool(slept)

    def _snapshot(
        self,
        now: Moment,
        rules: Rules,
        findings: Findings,
        statuses: tuple[CollectorStatus, ...],
        pressure: tuple[Pressure, ...],
        lag_seconds: float,
    ) -> Snapshot:
        self._seq += 1
        found = {
            name: getattr(findings, name)
            for name in ("process_scan", "swap", "zram", "stalls", "kernel")
            if getattr(findings, name) is not None
        }
        return Snapshot(
            seq=self._seq,
            unix=now.wall,
            monotonic=now.monotonic,
            boot_id=self.identity.boot_id,
            host=self.identity.host,
            interval_seconds=rules.interval_seconds,
            simulated=self.identity.simulated,
            machine=findings.machine or Machine(),
            own=self.own.read(lag_seconds),
            pools=findings.pools,
            shares=findings.shares,
            devices=findings.devices,
            processes=findings.processes,
            nodes=findings.nodes,
            tegrastats=tegrastats_of(findings),
            pressure=pressure,
            collectors=statuses,
            **found,
        )

    def _remember(self, now: Moment, snapshot: Snapshot) -> None:
        wanted = (self.rules.interval_seconds, self.rules.history_seconds)
        if wanted != self._ring_rules:
            self.history = self.history.resized(capacity_of(self.rules), self.rules.interval_seconds)
            self._ring_rules = wanted
        self._remembered = self._remembered.with_tick(snapshot)
        since = now.monotonic - self._remembered.at
        if since >= SAME_INTERVAL * self.rules.interval_seconds and self._remembered.worst is not None:
            self.history.add(now.boottime, figures_of(self._remembered.worst))
            self._remembered = Peak(now.monotonic)

    def _tell(self, snapshot: Snapshot) -> None:
        levels = {pressure.target: pressure.level for pressure in snapshot.pressure}
        early = snapshot.monotonic - self._told_at < SAME_INTERVAL * snapshot.interval_seconds
        if early and levels == self._told_levels and not self._untold:
            return
        self._told_at, self._told_levels = snapshot.monotonic, levels
        for listener in self.listeners:
            listener(snapshot, self._untold)
        self._untold = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The worst tick since something was remembered, at monotonic seconds: no spike is lost between two."""

    at: float = -math.inf
    worst: Snapshot | None = None

    def with_tick(self, snapshot: Snapshot) -> Peak:
        worse = self.worst is None or _fullness(snapshot) >= _fullness(self.worst)
        return Peak(self.at, snapshot) if worse else self


def _fullness(snapshot: Snapshot) -> float:
    return max((pressure.ratio for pressure in snapshot.pressure), default=0.0)


def capacity_of(rules: Rules) -> int:
    return max(1, round(rules.history_seconds / rules.interval_seconds))


def new_notice_id() -> str:
    return f"msg_{secrets.token_hex(12)}"
