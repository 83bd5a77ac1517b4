"""The sampling loop: on each tick sample, judge, let the features follow, publish.

Published is the latest snapshot, with the leases and silences in force.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.budget import Budgets
from memwatch.core.clock import Clock, Moment
from memwatch.core.events import EventLog
from memwatch.core.leases import Lease
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.wakeups import Sleep, Wake
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.machine import Additions, SnapshotComposer
from memwatch.core.reading.sampler import Gatherer
from memwatch.core.reading.schedule import next_due, suspended_seconds
from memwatch.core.reading.self_usage import SelfUsageReader
from memwatch.core.silences import Silence, current
from memwatch.core.snapshot import Level, Snapshot
from memwatch_monitor.feature import Features, MonitorRules, Tick
from memwatch_monitor.pacing import Pacing, find_free

# Ticks come some milliseconds early or late: this fraction of an interval counts as a full one.
SAME_INTERVAL = 0.9


class Publisher:
    """Holder of the latest snapshot. Thread-safe: a tick, a reload, a lease and a silence may come at once.

    `hides_commands`: command lines are hidden. `is_quiet`: no feature follows what is published.
    """

    def __init__(self, features: Features) -> None:
        self.latest: Snapshot | None = None
        self.hides_commands: bool = False
        self.is_quiet: bool = False
        self.silences: tuple[Silence, ...] = ()
        self._features = features
        self._followed: tuple[float, Mapping[str, Level]] = -math.inf, {}
        self._leases: tuple[Lease, ...] = ()
        self._lock = threading.Lock()

    def publish(self, snapshot: Snapshot, now: Moment) -> Snapshot:
        """Publish a snapshot with leases and silences. Return it without command lines if they are hidden."""
        with self._lock:
            if self._leases or self.silences:
                snapshot = replace(snapshot, leases=self._leases, silences=current(self.silences, now))
            self.latest = snapshot = without_commands(snapshot) if self.hides_commands else snapshot
        if not self.is_quiet:
            self._call_features(snapshot)
        return snapshot

    def _call_features(self, snapshot: Snapshot) -> None:
        at, known = self._followed
        levels = {pressure.target: pressure.level for pressure in snapshot.pressure}
        is_early = snapshot.monotonic - at < SAME_INTERVAL * snapshot.interval_seconds
        if not is_early or levels != known or self._features.is_any_urgent():
            self._followed = snapshot.monotonic, levels
            self._features.call("on_publish", snapshot)

    def use_leases(self, leases: tuple[Lease, ...]) -> None:
        """Publish the latest snapshot again with these leases, so that the next client sees them."""
        with self._lock:
            self._leases = leases
            if self.latest is not None:
                self.latest = replace(self.latest, leases=leases)

    def use_silences(self, silences: tuple[Silence, ...], now: Moment) -> None:
        """Publish the latest snapshot again with these silences, so that the next client sees them."""
        with self._lock:
            self.silences = silences
            if self.latest is not None:
                self.latest = replace(self.latest, silences=current(silences, now))

    def hide_commands(self, hides: bool) -> None:
        """Hide command lines from now on, also those of the latest snapshot, or publish them again."""
        with self._lock:
            self.hides_commands = hides
            if hides and self.latest is not None:
                self.latest = without_commands(self.latest)


def without_commands(snapshot: Snapshot) -> Snapshot:
    if all(process.command is None for process in snapshot.processes):
        return snapshot
    return replace(snapshot, processes=tuple(replace(process, command=None) for process in snapshot.processes))


log: logging.Logger = logging.getLogger(__name__)


class Monitor:
    """The sampling loop. `latest` is the last finished snapshot; any thread may read it.

    `speed`: playback speed of a recording. None on a machine: ticks are then faster near exhaustion.
    `sees_reclaim`: a PSI trigger ends a wait within 0.1 s after reclaim has begun.
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
        budgets: Budgets | None = None,
        accounts: Accounts | None = None,
        sees_reclaim: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sees_reclaim = sees_reclaim
        self.budgets: Budgets = budgets or Budgets(clock.monotonic)
        self.accounts: Accounts = accounts or Accounts(Path("/"))
        self.events: EventLog = EventLog(budget=self.budgets["marks"])
        self.composer: SnapshotComposer = SnapshotComposer(identity, self_usage)
        self.reports: AllocatorReports = reports or AllocatorReports()
        self.rules: MonitorRules = rules
        self.features: Features = Features(clock.monotonic, self.self_usage.release_reserve)
        self.publisher: Publisher = Publisher(self.features)
        self._sampler, self._clock, self._trigger, self._speed = sampler, clock, trigger, speed
        self._pacing = Pacing()
        self._before: Moment | None = None
        self._missed: list[int] = []

    @property
    def latest(self) -> Snapshot | None:
        return self.publisher.latest

    @property
    def identity(self) -> Identity:
        return self.composer.identity

    @property
    def self_usage(self) -> SelfUsageReader:
        return self.composer.self_usage

    @property
    def simulated(self) -> bool:
        return self.identity.simulated

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
            self._missed.append(ticks)

    def tick(self, lag_seconds: float = 0.0) -> Snapshot:
        """Run one tick: sample, judge, let the features follow, publish. Return the snapshot."""
        now = self.moment()
        rules, features, self._pacing.ticked_at = self.rules, self.features, None
        resumed = self._before is not None and suspended_seconds(self._before, now) > 0
        self._before = now
        findings, statuses = self._sampler.gather()
        findings = features.change("on_findings", findings)
        additions = Additions(lag_seconds, self.reports.current(now.monotonic), left_out=self.budgets.left_out())
        additions = features.change("on_additions", additions)
        reading = self.composer.compose(
            now, (findings, statuses), rules.pressure, rules.interval_seconds, resumed, additions
        )
        snapshot = reading.snapshot
        self._pacing.is_waiting = reading.awaits_kill
        live = snapshot.pressure if self._speed is None else ()
        unseen = find_free(snapshot.pools) if self._sees_reclaim() else math.inf
        self._pacing.on_pressure(live, now.monotonic, rules.interval_seconds, rules.pressure, unseen)
        self._sampler.set_fast(self._pacing.is_restless)
        missed, self._missed = self._missed, []
        features.call(
            "on_tick", Tick(now, self.latest, snapshot, reading.kills, reading.returns, findings, rules, missed)
        )
        self.self_usage.tick_duration_seconds = self._clock.monotonic() - now.monotonic
        snapshot = self.publisher.publish(snapshot, now)
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

    def record(self, kind: str, text: str, target: str | None = None, unix: float | None = None) -> None:
        """Record an event, by default of now, and log it, at debug level while no feature follows. Thread-safe."""
        self.events.add(self._clock.wall() if unix is None else unix, kind, text, target)
        log.log(logging.DEBUG if self.publisher.is_quiet else logging.INFO, "%s", text)

    def release(self, seconds: float, by: str) -> list[str]:
        """Release all devices for `seconds`. Return the names of the collectors that do. Thread-safe.

        `by` names the caller in the event.
        """
        names = self._sampler.release(seconds)
        if names:
            self.record("release", f"GPU drivers released for {seconds:.0f} s: {', '.join(names)}, by {by}")
        return names

    def replay_restarted(self) -> None:
        """Record an event: the recording has ended and starts again.

        Levels and forecasts start over as well: its first figures are no change from its last ones.
        """
        self.composer.restart()
        self.features.call("on_replay")
        self.events.add(self._clock.wall(), "replay", "recording restarted")

    def reconfigure(self, rules: MonitorRules) -> None:
        """Use these rules from the next tick on. Thread-safe."""
        self.rules = rules
        self.record("reloaded", "configuration reloaded")

    def _tick_or_log(self, lag_seconds: float) -> None:
        try:
            self.tick(lag_seconds)
        except Exception as error:  # noqa: BLE001  the loop must go on
            self.features.log_failure("tick", "sample skipped", error)
        else:
            self.features.log_success("tick", "sampling recovered")

    def _wait(self, seconds: float, stop: threading.Event) -> Wake:
        """Sleep until memory must be read again, or until the kernel reports an event."""
        if self._trigger is not None:
            return self._trigger.wait(seconds, stop)
        stop.wait(max(0.0, seconds))
        return Wake.DUE
