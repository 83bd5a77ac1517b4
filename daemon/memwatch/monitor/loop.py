"""The loop: on every tick gather, judge, remember, publish."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from memwatch.accounting.tegra import tegrastats_of
from memwatch.alerts.rules import EVENT_KINDS, AlertRules, conditions_of
from memwatch.alerts.silences import Silence
from memwatch.alerts.state import Key, Notice, Watch, step
from memwatch.clock import Clock, Moment
from memwatch.events import Event, EventLog
from memwatch.findings import Findings
from memwatch.history.aggregate import Interval
from memwatch.history.disk.files import FilesStatus
from memwatch.history.disk.last_run import LastWords
from memwatch.history.disk.writer import Keeper
from memwatch.history.notable_ticks import Choice, KeptTick, KeptTicks, packed, tick_of
from memwatch.history.series import OOM_KILLS, figures_of
from memwatch.history.tier import Length
from memwatch.history.tiers import LENGTHS, History
from memwatch.linux.psi_trigger import Sleep
from memwatch.model import Absent
from memwatch.monitor.absent_reasons import COLLECTOR_OF, absences
from memwatch.monitor.pacing import Pacing
from memwatch.monitor.sampler import Gatherer
from memwatch.monitor.schedule import next_due, suspended_seconds, wall_jump_seconds
from memwatch.monitor.self_usage import SelfUsageReader
from memwatch.monitor.transitions import Story
from memwatch.pressure.inputs import evidence_of
from memwatch.pressure.judge import Memory, judge
from memwatch.pressure.oom_kills import Reckoning, reckon
from memwatch.pressure.rules import PressureRules
from memwatch.processes.allocator_reports import Reports
from memwatch.processes.growth import Growth
from memwatch.processes.leaks import LeakRules
from memwatch.snapshot import CollectorStatus, Level, Machine, Pressure, Snapshot

log = logging.getLogger(__name__)

# The fields that a snapshot takes from the findings as they are.
COMMON = tuple(name for name in Snapshot.__struct_fields__ if name in Findings.__struct_fields__)
# Ticks come some milliseconds early or late: so much of an interval counts as one.
SAME_INTERVAL = 0.9


class Rules(Struct, frozen=True):
    """What may be changed while running."""

    interval_seconds: float = 1.0
    history_seconds: float = LENGTHS[0].seconds
    medium_seconds: float = LENGTHS[1].seconds
    coarse_seconds: float = LENGTHS[2].seconds
    pressure: PressureRules = PressureRules()
    alerts: AlertRules = AlertRules()
    leaks: LeakRules = LeakRules()

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The tiers of the history. No tier is finer than the interval."""
        _, medium, coarse = LENGTHS
        return (
            Length(self.interval_seconds, self.history_seconds),
            Length(max(medium.step_seconds, self.interval_seconds), self.medium_seconds),
            Length(coarse.step_seconds, self.coarse_seconds),
        )


class Identity(Struct, frozen=True):
    """Which machine, and since which boot."""

    host: str
    boot_id: str
    simulated: bool = False


Listener = Callable[[Snapshot, tuple[Notice, ...]], None]


class Monitor:
    """Owns the loop and what it remembers. `latest` is the last finished snapshot; any thread may take it.

    `speed` says how fast the time of a recording passes; it is None on a machine, where ticks hurry near the edge.
    Listeners are told once an interval and whenever a level changes, however fast the ticks come.
    """

    def __init__(
        self,
        sampler: Gatherer,
        clock: Clock,
        rules: Rules,
        identity: Identity,
        trigger: Sleep | None = None,
        speed: float | None = None,
        reports: Reports | None = None,
    ) -> None:
        self.latest: Snapshot | None = None
        self.events = EventLog()
        self.history = History(rules.lengths)
        self.ticks = KeptTicks()
        self.keeper: Keeper | None = None
        self.growth = Growth()
        self.self_usage = SelfUsageReader()
        self.reports = reports or Reports()
        self.watches: Mapping[Key, Watch] = {}
        self.silences: tuple[Silence, ...] = ()
        self.listeners: list[Listener] = []
        self.rules = rules
        self._sampler = sampler
        self._clock = clock
        self.identity = identity
        self._trigger = trigger
        self._speed = speed
        self._memory = Memory()
        self._reckoning = Reckoning()
        self._pacing = Pacing()
        self._interval = Interval()
        self._choice = Choice()
        self._told_at = -math.inf
        self._told_levels: Mapping[str, Level] = {}
        self._story = Story(self.events)
        self._before: Moment | None = None
        self._complaint = ""
        self._seq = 0
        self._remembered_by = rules
        self._events_seen = 0
        self._untold: tuple[Notice, ...] = ()

    @property
    def simulated(self) -> bool:
        return self.identity.simulated

    @property
    def last_words(self) -> LastWords | None:
        """What the run before this one wrote at its end, where that was not a clean one."""
        return self.keeper.last_words if self.keeper else None

    def files_status(self) -> FilesStatus | None:
        """What became of writing the history; None where it is only in memory."""
        return self.keeper.status() if self.keeper else None

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop. Returns when `stop` is set; a failing tick is logged and the next one comes."""
        due, rang = self._clock.monotonic(), True
        while not stop.is_set():
            usual = self.rules.interval_seconds
            if rang or not self._pacing.is_still(due, usual, self._sampler.moved_bytes):
                self._tick_or_log(self._clock.monotonic() - due)
            interval = self._pacing.pace.interval(usual)
            coming = next_due(due, interval, self._clock.monotonic())
            if coming.missed * interval >= usual:
                self._story.missed(coming.missed)
            due = coming.at
            rang = self._wait(due - self._clock.monotonic(), stop)
            if rang:
                due = self._clock.monotonic()
                self._pacing.stalled(due, usual)

    def tick(self, lag_seconds: float = 0.0) -> Snapshot:
        """One tick: everything gathered, judged, remembered and published."""
        now = self.moment()
        rules, self._pacing.ticked_at = self.rules, None
        resumed = self._notice_clocks(now)
        findings, statuses = self._sampler.gather()
        self._reckoning, kills = reckon(self._reckoning, findings.kernel, findings.kernel_log, now.monotonic)
        evidence = evidence_of(findings, now.monotonic, rules.pressure, resumed, kills)
        pressure, self._memory = judge(evidence, self._memory, rules.pressure)
        self._pacing.judged(pressure if self._speed is None else (), now.monotonic, rules.interval_seconds)
        self._sampler.hurry(self._pacing.is_restless)
        snapshot = self._snapshot(now, rules, findings, statuses, pressure, lag_seconds)
        self._story.tell(self.latest, snapshot, kills)
        self._story.suspected(now.wall, self.growth.add(now.boottime, snapshot.processes, rules.leaks))
        self._alert(now, snapshot, rules.alerts)
        try:
            self._remember(now, snapshot)
        finally:
            # Memory may be too short to remember a tick; whoever asks gets it all the same.
            self.self_usage.tick_duration_seconds = self._clock.monotonic() - now.monotonic
            self.latest = snapshot
            self._tell(snapshot)
        self._pacing.ticked_at = now.monotonic
        return snapshot

    def moment(self) -> Moment:
        """All clocks, now."""
        return Moment(self._clock.monotonic(), self._clock.boottime(), self._clock.wall())

    @property
    def ticked(self) -> Moment:
        """All clocks at the latest tick; now, before the first."""
        return self._before or self.moment()

    def wake(self) -> None:
        """End the wait for the next tick, so that a loop that was told to stop does. Any thread may call it."""
        if self._trigger is not None:
            self._trigger.wake()

    def keep_on_disk(self, keeper: Keeper) -> None:
        """Before the first tick: go on with what earlier runs wrote, and have everything to come written."""
        keeper.restore(lambda: self.history, self.ticks, self.events)
        self._events_seen = self.events.last_seq
        self._story.recovered(self._clock.wall(), keeper.last_words, keeper.files.shelf.complaints)
        keeper.start()
        self.keeper = keeper
        words = keeper.last_words
        if words is not None and words.samples and not words.machine_restarted:
            # Who was killed between the last sample and now may have been memwatchd: it is told at the first tick.
            self._reckoning = Reckoning(_count(words.samples[-1].figures.get(OOM_KILLS)))

    def age_seconds(self) -> float | None:
        """How old the latest snapshot is, by a clock on the wall; None before the first."""
        if self.latest is None:
            return None
        return (self._clock.monotonic() - self.latest.monotonic) / (self._speed or 1.0)

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

    def replayed_again(self) -> None:
        """What is played has come to its end and begins anew."""
        self.events.add(self._clock.wall(), "replay", "recording restarted")

    def tell_quietly(self, quietly: bool) -> None:
        """What happens goes to the log in its full detail only, or as usual again; events have it in any case."""
        self._story.log_level = logging.DEBUG if quietly else logging.INFO

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
            self.self_usage.give_up_spare()
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
        said = {name: getattr(findings, name) for name in COMMON} | {"tegrastats": tegrastats_of(findings)}
        found: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        found.setdefault("machine", Machine())
        found |= absences(COLLECTOR_OF.keys() - found.keys(), statuses)
        return Snapshot(
            seq=self._seq,
            unix=now.wall,
            monotonic=now.monotonic,
            boot_id=self.identity.boot_id,
            host=self.identity.host,
            interval_seconds=rules.interval_seconds,
            simulated=self.identity.simulated,
            self_usage=self.self_usage.read(lag_seconds),
            pressure=pressure,
            collectors=statuses,
            claims=self.reports.current(now.monotonic),
            **found,
        )

    def _remember(self, now: Moment, snapshot: Snapshot) -> None:
        if self.rules is not self._remembered_by:
            self._remembered_by = self.rules
            self.history = self.history.resized(self.rules.lengths)
        figures = figures_of(snapshot)
        self._interval.add(snapshot, figures)
        worst = self._interval.worst or snapshot
        if now.monotonic - self._interval.began >= SAME_INTERVAL * self.rules.interval_seconds:
            self.history.add_row(now.boottime, self._interval.row())
            self._interval = Interval(now.monotonic)
        chosen = self._choice.of(snapshot, worst)
        kept = None if chosen is None else _kept(chosen, now)
        if kept is not None:
            self.ticks.add(kept)
        if self.keeper is not None:
            self.keeper.keep(snapshot, now.boottime, figures, kept)

    def _tell(self, snapshot: Snapshot) -> None:
        levels = {pressure.target: pressure.level for pressure in snapshot.pressure}
        early = snapshot.monotonic - self._told_at < SAME_INTERVAL * snapshot.interval_seconds
        if early and levels == self._told_levels and not self._untold:
            return
        self._told_at, self._told_levels = snapshot.monotonic, levels
        untold = self._untold
        for listener in self.listeners:
            listener(snapshot, untold)
            self._untold = ()  # the first of them has people told; one that fails after it has nothing told twice


def _kept(snapshot: Snapshot, now: Moment) -> KeptTick:
    tick = tick_of(snapshot, now.boottime + snapshot.monotonic - now.monotonic, figures_of(snapshot))
    return KeptTick(tick.boottime, packed(tick))


def _count(figure: float | None) -> int | Absent:
    return Absent.NOT_AVAILABLE if figure is None else round(figure)


def new_notice_id() -> str:
    return f"msg_{secrets.token_hex(12)}"
