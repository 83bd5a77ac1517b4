"""Derive events from the difference between two snapshots and write them to the event log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from memwatch.core import units
from memwatch.core.accounting.driver_errors import find_device
from memwatch.core.drivers.error_words import describe_kind
from memwatch.core.events import LEASE, EventLog
from memwatch.core.kernel_log import KNOWN, DriverError
from memwatch.core.linux.cgroup_kills import MAX_GROUPS, NOT_RAM
from memwatch.core.model import Absent, PoolKind, find_own_limit, holds_discrete_memory
from memwatch.core.neighbour_status import NeighbourState
from memwatch.core.pressure.oom_kills import NO_KILLS, NewKills
from memwatch.core.processes.growth import SHORT_SECONDS, GrowthTracker, ProcessKey, key_of
from memwatch.core.processes.leaks import LeakSuspect
from memwatch.core.processes.unreturned import ReturnChanges
from memwatch.core.snapshot import CollectorStatus, Level, Pressure, Snapshot
from memwatch.monitor.alerts.reasons import describe_news
from memwatch.monitor.alerts.rules import CRITICAL, ENOUGH
from memwatch.monitor.alerts.state import Notification
from memwatch.monitor.history.disk.last_run import UncleanShutdown
from memwatch.monitor.render import words as wording

log: logging.Logger = logging.getLogger(__name__)

_NOT_FAILED = ("ok", "starting", "unavailable")
_STATE = attrgetter("name", "state")
# The OOM killer may kill many processes at once, and a failing driver may log a thousand errors a second.
MAX_KILLS = 5
REPEAT_SECONDS = 60.0
# The process that grew most is named with a level: over this time, from this size on.
# One that was killed since its size was last read is named as well.
GROWTH_SECONDS, MIN_GROWN_BYTES, MAX_GROWN = 120.0, 256 << 20, 5
GONE_SECONDS = SHORT_SECONDS
OF_GPUS = frozenset({"vram", "hbm", "carveout", "mig_instance"})
MISSING = ("silent", "unreachable", "refused", "stopped")
# Orphans that were reported: more than a machine has.
MAX_ORPHANS = 100


class ReportedCount(NamedTuple):
    """Number of one driver's errors already reported, and the time of the last report in monotonic seconds."""

    number: int
    at: float


class MissedTicks(NamedTuple):
    """Missed samples not yet reported, the number of occasions, and the last report in monotonic seconds."""

    ticks: int = 0
    occasions: int = 0
    reported_at: float = -REPEAT_SECONDS


class EventWriter:
    """Writer of the event log. Each event is also logged by the daemon at `log_level`."""

    def __init__(self, events: EventLog, growth: GrowthTracker | None = None) -> None:
        self.log_level = logging.INFO
        self._events, self._growth = events, growth
        self._levels: dict[str, Level] = {}
        self._reported: dict[tuple[str, str], ReportedCount] = {}
        self._missed_ticks = MissedTicks()
        self._orphans: deque[ProcessKey] = deque(maxlen=MAX_ORPHANS)
        self._neighbours: dict[str, NeighbourState] = {}
        # The statuses of the last tick, and the state of each.
        self._states: tuple[tuple[CollectorStatus, ...], Mapping[str, str]] = (), {}

    def on_tick(self, before: Snapshot | None, now: Snapshot, kills: NewKills = NO_KILLS) -> None:
        if before is None:
            self._record(now.unix, "started", f"memwatchd started on {now.host}")
        else:
            self._record_collectors(before, now)
        self._record_missed(now)
        self._record_levels(now)
        self._record_neighbours(now)
        self._record_kills(now, kills, first=before is None)
        self._record_drivers(now, first=before is None)
        if before is None or now.processes is not before.processes:
            self._record_orphans(now)

    def on_alerts(self, now: Snapshot, notifications: tuple[Notification, ...]) -> None:
        for notification in notifications:
            label = now.labels.get(notification.target, notification.target)
            self._record(now.unix, "alert", _alert_sentence(notification, label), notification.target)

    def on_suspend(self, unix: float, seconds: float) -> None:
        self._record(unix, "suspend", f"machine suspended for {seconds:.0f} s")

    def on_clock_set(self, unix: float, seconds: float) -> None:
        way = "forward" if seconds > 0 else "back"
        self._record(unix, "clock", f"wall clock set {way} by {abs(seconds):.1f} s")

    def on_missed_ticks(self, ticks: int) -> None:
        """Count missed samples. They are reported with the next snapshot, at most once a minute."""
        self._missed_ticks = self._missed_ticks._replace(
            ticks=self._missed_ticks.ticks + ticks, occasions=self._missed_ticks.occasions + 1
        )

    def on_reload(self, unix: float) -> None:
        self._record(unix, "reloaded", "configuration reloaded")

    def on_restore(self, unix: float, words: UncleanShutdown | None, complaints: Sequence[str]) -> None:
        for complaint in complaints:
            self._events.add(unix, "history", complaint)
        if words is not None:
            self._record(unix, "unclean", words.sentence)

    def on_release(self, unix: float, names: list[str], seconds: float, by: str) -> None:
        if names:
            text = f"GPU drivers released for {seconds:.0f} s: {', '.join(names)}, by {by}"
            self._record(unix, "release", text)

    def on_change(self, unix: float, kind: str, text: str) -> None:
        """Record a change by an operator."""
        self._record(unix, kind, text)

    def on_lease(self, unix: float, text: str, target: str) -> None:
        """Record a lease. It is not logged: every user may take leases, and the log is for operators."""
        self._events.add(unix, LEASE, text, target)

    def on_leak_suspects(self, unix: float, suspects: Iterable[LeakSuspect]) -> None:
        for suspect in suspects:
            process = suspect.process
            what = f"suspected leak: {process.title} (PID {process.pid}) {suspect.evidence}"
            self._record(unix, "leak", what)

    def on_returns(self, now: Snapshot, changes: ReturnChanges) -> None:
        """Record memory that was not returned after its process ended, and memory that was returned later."""
        for one in changes.began:
            self._record(now.unix, "memory.not_returned", one.text, one.pool)
        for one in changes.returned:
            after = units.duration(now.unix - one.since_unix)
            names = ", ".join(f"{process.name} (PID {process.pid})" for process in one.processes[:3])
            text = f"{units.size(one.held_bytes)} of {now.labels.get(one.pool, one.pool)} came back {after} after"
            self._record(now.unix, "memory.returned", f"{text} {names} ended", one.pool)

    def _record_orphans(self, now: Snapshot) -> None:
        """Report each orphan once, even if it is not one for a while because its driver is not read."""
        for process in now.processes:
            if process.orphan and key_of(process) not in self._orphans:
                self._orphans.append(key_of(process))
                held = sum(figure for figure in process.device_bytes.values() if isinstance(figure, int))
                what = f"{process.title} (PID {process.pid}) lost its parent process and holds {units.size(held)}"
                self._record(now.unix, "process.orphaned", f"{what} of GPU memory")

    def _record_missed(self, now: Snapshot) -> None:
        """Report missed samples at most once a minute: a machine too busy for one is too busy for many."""
        ticks, times, reported_at = self._missed_ticks
        if ticks and now.monotonic - reported_at >= REPEAT_SECONDS:
            often = "" if times == 1 else f" on {times} occasions"
            missed = wording.count(ticks, "sample")
            self._record(now.unix, "late", f"{missed} missed{often}: the machine was too busy")
            self._missed_ticks = MissedTicks(reported_at=now.monotonic)

    def _record_neighbours(self, now: Snapshot) -> None:
        """Report a neighbour that fell silent, or that another machine still receives, and its return."""
        for one in now.neighbours:
            old, self._neighbours[one.name] = self._neighbours.get(one.name, "starting"), one.state
            if one.state in MISSING and old != one.state:
                self._record(now.unix, "neighbour.silent", f"{one.name} is {one.state}: {one.text}", one.name)
            elif one.state == "up" and old not in ("up", "starting"):
                self._record(now.unix, "neighbour.back", f"{one.name} is back", one.name)

    def _record_levels(self, now: Snapshot) -> None:
        """Report changes of level. A target that had no data for a while continues from its last reported level."""
        for pressure in now.pressure:
            old = self._levels.get(pressure.target, Level.LOW)
            if pressure.level != old:
                self._levels[pressure.target] = pressure.level
                change = f"{old.label} → {pressure.level.label}"
                culprit = self._culprit(pressure, now) if pressure.level > max(old, Level.MEDIUM) else ""
                text = f"{now.labels[pressure.target]}: {change} ({_why(pressure)}{culprit})"
                self._record(now.unix, "level", text, pressure.target)

    def _culprit(self, pressure: Pressure, now: Snapshot) -> str:
        """Name the process that grew most, if it may be in this target: "; train.py (51210) grew by 37.2 GiB"."""
        if self._growth is None:
            return ""
        since = self._growth.boottime - GROWTH_SECONDS
        for one in self._growth.since(since, now.unix - GROWTH_SECONDS, GONE_SECONDS)[:MAX_GROWN]:
            is_of_gpu = pressure.target in one.process.device_bytes
            is_in_ram = pressure.kind not in OF_GPUS and not holds_discrete_memory(
                one.process, now.pools, now.shares
            )
            if one.grown_bytes >= MIN_GROWN_BYTES and (is_of_gpu or is_in_ram):
                return f"; {one.process.title} ({one.process.pid}) grew by {units.size(one.grown_bytes)}"
        return ""

    def _record_kills(self, now: Snapshot, kills: NewKills, first: bool) -> None:
        ram = next((pool.id for pool in now.pools if pool.kind is PoolKind.SYSTEM_RAM), None)
        own = find_own_limit(now.shares)
        for kill in kills.named[:MAX_KILLS]:
            target = ram if kill in kills.of_machine else own if kill in kills.named_of_own else None
            self._record(now.unix, "oom_kill", kill.text, target)
        gone = " while memwatchd was not running (possibly memwatchd itself)" if first else ""
        others = len(kills.named[MAX_KILLS:])
        if others:
            self._record(now.unix, "oom_kill", f"OOM killer: killed {wording.count(others, 'more process')}")
        if kills.unnamed:
            killed = wording.count(kills.unnamed, "more process" if kills.named else "process")
            target = ram if kills.unnamed_of_machine else None
            self._record(now.unix, "oom_kill", f"OOM killer: killed {killed}{gone}{_describe_scope(kills)}", target)
        for one in kills.of_cgroups[:MAX_KILLS]:
            self._record(now.unix, "oom_kill", one.text, (own if one.is_own else None) or one.cgroup or None)
        others = sum(one.count for one in kills.of_cgroups[MAX_KILLS:])
        if others:
            killed = wording.count(others, "more process")
            self._record(now.unix, "oom_kill", f"OOM killer: killed {killed} at the limits of cgroups; {NOT_RAM}")

    def _record_drivers(self, now: Snapshot, first: bool) -> None:
        """Report new driver errors. An error that repeats is reported once a minute with its count."""
        for place, kind, count, words in _driver_errors(now):
            last = self._reported.get((place, kind), ReportedCount(count if first else 0, -REPEAT_SECONDS))
            # A restarted helper process counts from 0.
            last = last._replace(number=min(last.number, count))
            if count > last.number and now.monotonic - last.at >= REPEAT_SECONDS:
                times = count - last.number
                often = "" if times == 1 else f", {times} times"
                text = f"the driver of {place} reported {describe_kind(kind)}{often}{words}"
                self._record(now.unix, "driver", text)
                last = ReportedCount(count, now.monotonic)
            self._reported[place, kind] = last

    def _record_collectors(self, before: Snapshot, now: Snapshot) -> None:
        seen, states = self._states
        if seen is not before.collectors:
            states = dict(map(_STATE, before.collectors))
        self._states = now.collectors, dict(map(_STATE, now.collectors))
        if states == self._states[1]:
            return
        for status in now.collectors:
            old = states.get(status.name, "starting")
            if status.state != old and not (status.state in _NOT_FAILED and old in _NOT_FAILED):
                self._record(now.unix, "collector", _collector_sentence(status), status.name)

    def _record(self, unix: float, kind: str, text: str, target: str | None = None) -> None:
        self._events.add(unix, kind, text, target)
        log.log(self.log_level, "%s", text)


def _describe_scope(kills: NewKills) -> str:
    """Return why the scope of kills without a name is not known, as the end of a sentence."""
    if kills.ram_was_short:
        return ""
    left_out = "" if kills.is_whole else f" (only {MAX_GROUPS:,} cgroups were read)"
    return f", of the machine or at a cgroup's limit: no log and no counter shows which{left_out}"


def _alert_sentence(notification: Notification, label: str) -> str:
    word = "still firing" if notification.repeated else "firing" if notification.firing else "resolved"
    level, now = notification.level, notification.level_now
    if level is not None:
        eased = "" if now is None or (notification.firing and now == level) else f" (now {now.label})"
        if not notification.firing:
            rule = "critical" if notification.rule == CRITICAL else notification.rule
            why = "".join(f": {one.text}" for one in notification.reasons if one.signal == ENOUGH)
            return f"alert {word}: {label} {rule}{eased}{why}"
        rule = "" if notification.rule == CRITICAL else f" ({notification.rule})"
        return f"alert {word}: {label} {level.label}{rule}{eased}{describe_news(notification.new_reasons)}"
    why = "; ".join(reason.text for reason in notification.reasons) or notification.target
    return f"alert {word}: {notification.rule} ({why})"


def _collector_sentence(status: CollectorStatus) -> str:
    if status.state in _NOT_FAILED:
        return f"collector {status.name} recovered"
    return f"collector {status.name} is {status.state}: {status.error}"


def _why(pressure: Pressure) -> str:
    """Join the reasons with the available memory and the size."""
    texts = [reason.text for reason in pressure.reasons] or [f"{wording.ratio(pressure.used_ratio)} used"]
    size, available = pressure.size_bytes, pressure.available_bytes
    if not isinstance(size, Absent) and not isinstance(available, Absent):
        texts.append(f"{units.size(max(0, available))} of {units.size(size)} available")
    return "; ".join(texts)


def _driver_errors(now: Snapshot) -> Iterator[tuple[str, str, int, str]]:
    """Yield place, kind and count of each driver error, with its latest line if the kernel log has one."""
    logged = () if isinstance(now.kernel_log, Absent) else now.kernel_log.driver_errors
    for device in now.devices:
        words = {error.kind: error for error in logged if find_device(error, now.devices) is device}
        for kind, count in device.errors.items():
            if kind in KNOWN or kind.startswith("xid_"):
                yield device.id, kind, count, _quoted(words.get(kind))
    for error in logged:
        if find_device(error, now.devices) is None:
            yield error.place, error.kind, error.count, _quoted(error)


def _quoted(error: DriverError | None) -> str:
    return f": {error.text}" if error else ""
