"""Derive events from the difference between two snapshots and write them to the event log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from memwatch.core import units
from memwatch.core.accounting.driver_errors import describe_kind, find_device
from memwatch.core.clock import Moment
from memwatch.core.kernel_log import KNOWN, DriverError
from memwatch.core.linux.cgroup_kills import MAX_GROUPS, NOT_RAM
from memwatch.core.model import Absent, PoolKind, find_own_limit, holds_discrete_memory, name_accelerators
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.processes.growth import SHORT_SECONDS, ProcessKey, key_of
from memwatch.core.processes.unreturned import ReturnChanges
from memwatch.core.reading.schedule import suspended_seconds, wall_jump_seconds
from memwatch.core.snapshot import CollectorStatus, Level, NeighbourState, Pressure, Snapshot
from memwatch.reporting.render import words as wording
from memwatch_monitor.feature import Feature, Tick
from memwatch_monitor.loop import Monitor
from memwatch_monitor.processes import GrowthWatch

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


class EventWriter(Feature):
    """Writer of events about what changed between two ticks."""

    name = "events"

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._levels: dict[str, Level] = {}
        self._reported: dict[tuple[str, str], ReportedCount] = {}
        self._missed_ticks = MissedTicks()
        self._orphans: deque[ProcessKey] = deque(maxlen=MAX_ORPHANS)
        self._neighbours: dict[str, NeighbourState] = {}
        # The statuses of the last tick, and the state of each.
        self._states: tuple[tuple[CollectorStatus, ...], Mapping[str, str]] = (), {}
        self._moment: Moment | None = None

    def on_tick(self, tick: Tick) -> None:
        before, now, kills = tick.before, tick.snapshot, tick.kills
        self._record_clocks(tick.now)
        self._missed_ticks = self._missed_ticks._replace(
            ticks=self._missed_ticks.ticks + sum(tick.missed),
            occasions=self._missed_ticks.occasions + len(tick.missed),
        )
        if before is None:
            self._record(now.unix, "started", f"memwatchd started on {now.host}")
        else:
            self._record_collectors(before, now)
        if self._missed_ticks.ticks:
            self._record_missed(now)
        self._record_levels(now)
        if now.neighbours:
            self._record_neighbours(now)
        if kills.named or kills.unnamed or kills.of_cgroups:
            self._record_kills(now, kills, first=before is None)
        if now.devices or not isinstance(now.kernel_log, Absent):
            self._record_drivers(now, first=before is None)
        if before is None or now.processes is not before.processes:
            self._record_orphans(now)
        if tick.returns.began or tick.returns.returned:
            self._record_returns(now, tick.returns)

    def _record_clocks(self, now: Moment) -> None:
        """Report suspend and clock steps since the previous tick."""
        before, self._moment = self._moment or now, now
        if slept := suspended_seconds(before, now):
            self._record(now.wall, "suspend", f"machine suspended for {slept:.0f} s")
        if jumped := wall_jump_seconds(before, now):
            way = "forward" if jumped > 0 else "back"
            self._record(now.wall, "clock", f"wall clock set {way} by {abs(jumped):.1f} s")

    def _record_returns(self, now: Snapshot, changes: ReturnChanges) -> None:
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
                kinds = name_accelerators(process.device_bytes)
                self._record(now.unix, "process.orphaned", f"{what} of {kinds} memory")

    def _record_missed(self, now: Snapshot) -> None:
        """Report missed samples at most once a minute: a machine too busy for one is too busy for many."""
        ticks, times, reported_at = self._missed_ticks
        if now.monotonic - reported_at >= REPEAT_SECONDS:
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
        growth = self._monitor.features.get(GrowthWatch).tracker
        for one in growth.lately(GROWTH_SECONDS, now.unix, GONE_SECONDS)[:MAX_GROWN]:
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
        self._monitor.record(kind, text, target, unix)


def _describe_scope(kills: NewKills) -> str:
    """Return why the scope of kills without a name is not known, as the end of a sentence."""
    if kills.ram_was_short:
        return ""
    left_out = "" if kills.is_whole else f" (only {MAX_GROUPS:,} cgroups were read)"
    return f", of the machine or at a cgroup's limit: no log and no counter shows which{left_out}"


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
