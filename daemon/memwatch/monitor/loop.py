"""The sampling loop: on each tick sample, judge, record, publish."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping

from memwatch.core.clock import Clock, Moment
from memwatch.core.config_state import ConfigState
from memwatch.core.events import Event, EventLog
from memwatch.core.linux.wakeups import Sleep, Wake
from memwatch.core.model import Absent
from memwatch.core.neighbour_status import NeighbourStatus
from memwatch.core.pressure.oom_kills import OomKillCount, RamShortage
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.processes.growth import GrowthTracker
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.machine import Additions, SnapshotComposer
from memwatch.core.reading.sampler import Gatherer
from memwatch.core.reading.schedule import next_due, suspended_seconds, wall_jump_seconds
from memwatch.core.reading.self_usage import SelfUsageReader
from memwatch.core.runtime.failure_log import FailureLog
from memwatch.core.silences import Silence, in_force
from memwatch.core.snapshot import Level, Snapshot
from memwatch.monitor.alerts.rules import EVENT_KINDS, NEIGHBOUR_SILENT, AlertRules, evaluate_rules
from memwatch.monitor.alerts.sources import collector_states
from memwatch.monitor.alerts.state import AlertState, Key, Notification, new_notification_id, step
from memwatch.monitor.between_scrapes import BetweenScrapes, series_of
from memwatch.monitor.history.aggregate import Interval
from memwatch.monitor.history.all_series import AllSeries
from memwatch.monitor.history.disk.files import FilesStatus
from memwatch.monitor.history.disk.last_run import UncleanShutdown
from memwatch.monitor.history.disk.writer import HistoryWriter
from memwatch.monitor.history.holder_history import HolderHistory
from memwatch.monitor.history.notable_ticks import NotableTicks, NotableTickSelector, build_notable_tick
from memwatch.monitor.history.series import OOM_KILLS, RAM_RATIO, collect_figures
from memwatch.monitor.history.tiers import History
from memwatch.monitor.incident_observer import IncidentObserver
from memwatch.monitor.lease_arrival import ProcessReader
from memwatch.monitor.lease_book import LeaseBook
from memwatch.monitor.pacing import Pacing
from memwatch.monitor.publisher import Publisher
from memwatch.monitor.rules import MonitorRules
from memwatch.monitor.transitions import EventWriter

log: logging.Logger = logging.getLogger(__name__)

# Ticks come some milliseconds early or late: this fraction of an interval counts as a full one.
SAME_INTERVAL = 0.9


Listener = Callable[[Snapshot, tuple[Notification, ...]], None]


class Monitor:
    """The sampling loop and its state. `latest` is the last finished snapshot; any thread may read it.

    `speed`: playback speed of a recording. None on a machine: ticks are then faster near exhaustion.
    Listeners are called once an interval and on every change of a level, at any pace of the ticks.
    """

    def __init__(
        self,
        sampler: Gatherer,
        clock: Clock,
        rules: MonitorRules,
        identity: Identity,
        trigger: Sleep | None = None,
        speed: float | None = None,
        reports: AllocatorReports | None = None,
        self_usage: SelfUsageReader | None = None,
    ) -> None:
        self.events: EventLog = EventLog()
        self.history: History = History(rules.tier_specs)
        self.holders: HolderHistory = HolderHistory(rules.tier_specs[1:])
        self.ticks: NotableTicks = NotableTicks()
        self.history_writer: HistoryWriter | None = None
        self.growth: GrowthTracker = GrowthTracker()
        self.incidents: IncidentObserver = IncidentObserver(self.events, self.growth)
        self.composer: SnapshotComposer = SnapshotComposer(identity, self_usage)
        self.between_scrapes: BetweenScrapes = BetweenScrapes()
        self.reports: AllocatorReports = reports or AllocatorReports()
        self.alert_states: Mapping[Key, AlertState] = {}
        self.listeners: list[Listener] = []
        self.neighbours: Callable[[Collection[str]], tuple[NeighbourStatus, ...]] = _no_neighbours
        self.machines_left_out: Callable[[], int] = int
        self.rules: MonitorRules = rules
        self.config: ConfigState = ConfigState()
        self._sampler = sampler
        self._clock = clock
        self._trigger = trigger
        self._speed = speed
        self._pacing = Pacing()
        self._interval = Interval()
        self._tick_selector = NotableTickSelector()
        self._notified_at = -math.inf
        self._notified_levels: Mapping[str, Level] = {}
        self._event_writer = EventWriter(self.events, self.growth)
        self.publisher: Publisher = Publisher()
        self.leases: LeaseBook = LeaseBook(
            ProcessReader(self.reports.procfs), self.moment, self.publisher.use_leases, self._event_writer.on_lease
        )
        self._before: Moment | None = None
        self._last_failure = ""
        self._failure_log = FailureLog(clock.monotonic)
        self._history_rules = rules
        self._events_seen = 0
        self._pending_notifications: tuple[Notification, ...] = ()

    @property
    def latest(self) -> Snapshot | None:
        return self.publisher.latest

    @property
    def silences(self) -> tuple[Silence, ...]:
        return self.publisher.silences

    def use_silences(self, silences: tuple[Silence, ...]) -> None:
        """Mute these alerts from now on. Thread-safe."""
        self.publisher.use_silences(silences, self.moment())

    @property
    def identity(self) -> Identity:
        return self.composer.identity

    @property
    def self_usage(self) -> SelfUsageReader:
        return self.composer.self_usage

    @property
    def simulated(self) -> bool:
        return self.identity.simulated

    @property
    def unclean_shutdown(self) -> UncleanShutdown | None:
        """Return the last data of the previous run if it did not end cleanly."""
        return self.history_writer.unclean_shutdown if self.history_writer else None

    @property
    def series(self) -> AllSeries:
        """Return the history of the machine and of its largest processes, units and containers."""
        return AllSeries(self.history, self.holders)

    def files_status(self) -> FilesStatus | None:
        """Return the status of the history files, or None if the history is in memory only."""
        return self.history_writer.status() if self.history_writer else None

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop` is set. A failing tick is logged, and the loop continues."""
        due, woken = self._clock.monotonic(), Wake.NEWS
        while not stop.is_set():
            usual = self.rules.interval_seconds
            now = self._clock.monotonic()
            if woken or not self._pacing.is_still(now, usual, self._sampler.moved_bytes):
                self._tick_or_log(now - due)
            interval = self._pacing.interval(usual)
            coming = next_due(due, interval, self._clock.monotonic())
            self._report_missed(coming.missed, interval)
            due = coming.at
            woken = self._wait(due - self._clock.monotonic(), stop)
            if woken:
                now = self._clock.monotonic()  # long after `due` if the process was stopped meanwhile
                self._report_missed(next_due(due, interval, now).missed, interval)
                due = now
            if woken is Wake.STALL:
                self._pacing.on_stall(due, usual)

    def _report_missed(self, ticks: int, interval: float) -> None:
        if ticks * interval >= self.rules.interval_seconds:
            self._event_writer.on_missed_ticks(ticks)

    def tick(self, lag_seconds: float = 0.0) -> Snapshot:
        """Run one tick: sample, judge, record, publish. Return the snapshot."""
        now = self.moment()
        rules, self._pacing.ticked_at = self.rules, None
        resumed = self._notice_clocks(now)
        findings, statuses = self._sampler.gather()
        findings = self.incidents.without_ended(findings)
        reading = self.composer.compose(
            now,
            (findings, statuses),
            rules.pressure,
            rules.interval_seconds,
            resumed,
            self._additions(now, lag_seconds),
        )
        snapshot, kills, returns = reading.snapshot, reading.kills, reading.returns
        self._pacing.is_waiting = reading.awaits_kill
        live = snapshot.pressure if self._speed is None else ()
        self._pacing.on_pressure(live, now.monotonic, rules.interval_seconds, rules.pressure)
        self._sampler.set_fast(self._pacing.is_restless)
        self._event_writer.on_tick(self.latest, snapshot, kills)
        self._event_writer.on_returns(snapshot, returns)
        ended = self.incidents.ended_pids | {kill.pid for kill in kills.named}
        suspects = self.growth.add(now.boottime, snapshot.processes, rules.leaks, ended)
        self._event_writer.on_leak_suspects(now.wall, suspects)
        self._update_alerts(now, snapshot, rules.alerts)
        try:
            self.between_scrapes.on_tick(snapshot)
            self.between_scrapes.kills.add(kills, snapshot.kernel.oom_kills_total)
            self._record(now, snapshot)
            if self.leases:
                self.leases.follow(now, snapshot)
            self.incidents.on_tick(now, snapshot, kills, findings)
        finally:
            # Publish the snapshot even if there is not enough memory to record it.
            self.self_usage.tick_duration_seconds = self._clock.monotonic() - now.monotonic
            snapshot = self.publisher.publish(snapshot, now)
            self._notify_listeners(snapshot)
        self._pacing.on_tick(now.monotonic, self._clock.monotonic() - now.monotonic)
        return snapshot

    def moment(self) -> Moment:
        """Return the current time of all clocks."""
        return Moment.of(self._clock)

    @property
    def last_tick(self) -> Moment:
        """Return all clocks at the latest tick, or the current time before the first."""
        return self._before or self.moment()

    def wake(self) -> None:
        """End the wait for the next tick, so that the loop sees `stop`. Thread-safe."""
        if self._trigger is not None:
            self._trigger.wake()

    def use_history_writer(self, history_writer: HistoryWriter) -> None:
        """Restore persisted history and start writing. Call before the first tick."""
        history_writer.restore(lambda: self.history, self.holders, self.ticks, self.events)
        history_writer.start()
        self._events_seen = self.events.last_seq
        self._event_writer.on_restore(
            self._clock.wall(), history_writer.unclean_shutdown, history_writer.files.ring_set.complaints
        )
        self.history_writer = history_writer
        self.between_scrapes.kills.restore(self._restore_kills())
        words = history_writer.unclean_shutdown
        if words is not None and words.samples and not words.machine_restarted:
            # An OOM kill since the last sample may have been memwatchd itself: the first tick reports it.
            # The last reading before that kill is then the one of this sample.
            last = words.samples[-1].figures
            ratio = last.get(RAM_RATIO, Absent.NOT_AVAILABLE)
            shortage = RamShortage().with_reading(float("-inf"), ratio, None)
            self.composer.restart(OomKillCount(_count(last.get(OOM_KILLS)), shortage=shortage))

    def _restore_kills(self) -> Mapping[str, int]:
        """Return the last counts of kills by scope since this boot. Rows of earlier boots have negative times."""
        rows = {scope: self.history.since(series_of(scope), 0.0) for scope in ("machine", "cgroup")}
        return {scope: int(found[-1][1]) for scope, found in rows.items() if found}

    def age_seconds(self) -> float | None:
        """Return the age of the latest snapshot in real time, also during replay; None before the first."""
        if self.latest is None:
            return None
        return (self._clock.monotonic() - self.latest.monotonic) / (self._speed or 1.0)

    def to_wall(self, boottime: float) -> float:
        """Convert a boot time to wall clock time with the current offset of the clocks."""
        return boottime + self._clock.wall() - self._clock.boottime()

    def to_boottime(self, unix: float) -> float:
        return unix - self._clock.wall() + self._clock.boottime()

    def release(self, seconds: float, by: str) -> list[str]:
        """Release all devices for `seconds`. Return the names of the collectors that do. Thread-safe.

        `by` names the caller in the event.
        """
        names = self._sampler.release(seconds)
        self._event_writer.on_release(self._clock.wall(), names, seconds, by)
        return names

    def record_change(self, kind: str, text: str) -> None:
        """Record a change by an operator as an event. Thread-safe."""
        self._event_writer.on_change(self._clock.wall(), kind, text)

    def use_config(self, config: ConfigState, event: str = "") -> None:
        """Use the state of the configuration from now on. `event`: what happened to it. Thread-safe."""
        self.config = config
        if event:
            self._event_writer.on_change(self._clock.wall(), "config", event)

    def replay_restarted(self) -> None:
        """Record an event: the recording has ended and starts again.

        Levels and forecasts start over as well: its first figures are no change from its last ones.
        """
        self.composer.restart()
        self.incidents.restart()
        self.events.add(self._clock.wall(), "replay", "recording restarted")

    def set_quiet(self, quietly: bool) -> None:
        """Log events at debug level only, or at the usual level again. The event log is not affected."""
        self._event_writer.log_level = logging.DEBUG if quietly else logging.INFO

    def reconfigure(self, rules: MonitorRules) -> None:
        """Use these rules from the next tick on. Thread-safe."""
        self.rules = rules
        self._event_writer.on_reload(self._clock.wall())

    def _update_alerts(self, now: Moment, snapshot: Snapshot, rules: AlertRules) -> None:
        """Step the alerts. Notifications stay pending until a listener gets them, even if this tick fails later."""
        seen = self.events.last_seq
        conditions = evaluate_rules(snapshot, self._new_events(), rules)
        silences = in_force(self.silences, now.boottime)
        alert_states, notifications = step(
            self.alert_states,
            conditions,
            now.monotonic,
            now.wall,
            rules,
            new_notification_id,
            silences,
            collector_states(snapshot),
        )
        self.alert_states, self._pending_notifications, self._events_seen = (
            alert_states,
            (*self._pending_notifications, *notifications),
            seen,
        )
        self._event_writer.on_alerts(snapshot, notifications)

    def _notified_neighbours(self) -> set[str]:
        states = self.alert_states.items()
        return {target for (rule, target), state in states if rule == NEIGHBOUR_SILENT and state.firing}

    def _new_events(self) -> list[Event]:
        """Return the events since the last tick that alert rules use."""
        if self.events.last_seq == self._events_seen:
            return []
        return [event for event in self.events.since(self._events_seen) if event.kind in EVENT_KINDS]

    def _tick_or_log(self, lag_seconds: float) -> None:
        """Run a tick and log a failure. The same failure on consecutive ticks is logged once."""
        try:
            self.tick(lag_seconds)
        except MemoryError:
            self.self_usage.release_reserve()
            self._log_failure("sample skipped: out of memory")
        except Exception as error:
            log.debug("traceback of the failed sample", exc_info=True)
            self._log_failure(f"sample skipped: {type(error).__name__}: {error}")
        else:
            if self._last_failure and self._failure_log.admits_recovery():
                log.warning("sampling recovered")
            self._last_failure = ""

    def _log_failure(self, complaint: str) -> None:
        if complaint != self._last_failure and self._failure_log.admits(complaint):
            log.error("%s", complaint)
        self._last_failure = complaint

    def _wait(self, seconds: float, stop: threading.Event) -> Wake:
        """Sleep until memory must be read again, or until the kernel reports an event."""
        if self._trigger is not None:
            return self._trigger.wait(seconds, stop)
        stop.wait(max(0.0, seconds))
        return Wake.DUE

    def _notice_clocks(self, now: Moment) -> bool:
        """Report suspend and clock steps. Return True if the machine was suspended since the previous tick."""
        slept = jumped = 0.0
        if self._before is not None:
            slept = suspended_seconds(self._before, now)
            jumped = wall_jump_seconds(self._before, now)
            if slept:
                self._event_writer.on_suspend(now.wall, slept)
            if jumped:
                self._event_writer.on_clock_set(now.wall, jumped)
        self._before = now
        return bool(slept)

    def _additions(self, now: Moment, lag_seconds: float) -> Additions:
        return Additions(
            lag_seconds,
            self.reports.current(now.monotonic),
            self.neighbours(self._notified_neighbours()),
            {
                "announced_kills": self.incidents.announced_left_out,
                "incidents": self.incidents.left_out,
                "machines_found": self.machines_left_out(),
            },
        )

    def _record(self, now: Moment, snapshot: Snapshot) -> None:
        if self.rules is not self._history_rules:
            self._history_rules = self.rules
            self.history = self.history.resized(self.rules.tier_specs)
            self.holders.resize(self.rules.tier_specs[1:])
        figures = {**collect_figures(snapshot), **self.between_scrapes.kills.figures()}
        self._interval.add(snapshot, figures)
        worst = self._interval.worst or snapshot
        if now.monotonic - self._interval.began >= SAME_INTERVAL * self.rules.interval_seconds:
            self.history.add_row(now.boottime, self._interval.row())
            self._interval = Interval(now.monotonic)
        self.holders.add(now.boottime, snapshot)
        chosen = self._tick_selector.select(snapshot, worst)
        kept = None
        if chosen is not None:
            boottime = now.boottime + chosen.monotonic - now.monotonic
            kept = build_notable_tick(chosen, boottime, collect_figures(chosen))
            self.ticks.add(kept)
        if self.history_writer is not None:
            self.history_writer.add(snapshot, now.boottime, figures, kept)

    def _notify_listeners(self, snapshot: Snapshot) -> None:
        levels = {pressure.target: pressure.level for pressure in snapshot.pressure}
        early = snapshot.monotonic - self._notified_at < SAME_INTERVAL * snapshot.interval_seconds
        if early and levels == self._notified_levels and not self._pending_notifications:
            return
        self._notified_at, self._notified_levels = snapshot.monotonic, levels
        pending = self._pending_notifications
        for listener in self.listeners:
            listener(snapshot, pending)
            self._pending_notifications = ()  # queued by the first listener; a failure of the next repeats nothing


def _no_neighbours(_: Collection[str]) -> tuple[NeighbourStatus, ...]:
    return ()


def _count(figure: float | None) -> int | Absent:
    return Absent.NOT_AVAILABLE if figure is None else round(figure)
