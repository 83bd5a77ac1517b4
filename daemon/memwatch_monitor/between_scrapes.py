"""Figures of all ticks, for clients that read less often than the daemon samples: extremes, times, durations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from memwatch.core.collectors import load_collectors
from memwatch.core.model import Absent
from memwatch.core.pressure.oom_kills import SCOPES, NewKills
from memwatch.core.snapshot import CollectorStatus, Level, Pressure, Snapshot
from memwatch_monitor.feature import Feature, Histogram, Tick

WINDOW_SECONDS = 60
# Levels of targets that do not exist anymore, such as the limit of an ended container, are kept for this many.
MAX_GONE_TARGETS = 200
TICK_BOUNDS = (0.001, 0.01, 0.1, 1.0)
RUN_BOUNDS = (0.01, 0.1, 1.0)
# Collectors with a thread. The others run inside the tick, and its duration includes them.
WITH_THREAD = frozenset(kind.name for kind in load_collectors() if kind.may_block)


class Second:
    """Extremes of the ticks of one second, by pool or device."""

    __slots__ = ("available", "headroom", "number", "used")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.used: dict[str, int] = {}
        self.available: dict[str, int] = {}
        self.headroom: dict[str, int] = {}


class Extremes(NamedTuple):
    """Highest use and lowest available memory of each pool, and lowest headroom of each device."""

    used: Mapping[str, int]
    available: Mapping[str, int]
    headroom: Mapping[str, int]


class RecentExtremes:
    """Extremes of the last minute: one entry a second, however many ticks it has."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=WINDOW_SECONDS)
        self._ended = EndedSeconds()

    def add(self, snapshot: Snapshot) -> None:
        number = int(snapshot.monotonic)
        second = self._seconds[-1] if self._seconds else None
        if second is None or second.number != number:
            second = Second(number)
            self._seconds.append(second)
        for pool in snapshot.pools:
            if not isinstance(used := pool.used_bytes, Absent) and used > second.used.get(pool.id, -1):
                second.used[pool.id] = used
            _keep_least(second.available, pool.id, pool.available_bytes)
        for device in snapshot.devices:
            _keep_least(second.headroom, device.id, device.headroom_after_reclaim_bytes)

    def extremes(self, now: float) -> Extremes:
        """Return the extremes of the minute before `now` (monotonic). Any thread may call, one at a time."""
        seconds, oldest = tuple(self._seconds), int(now) - WINDOW_SECONDS
        # The last second is not over: the thread that ticks changes it.
        of_ended = self._ended.extremes(seconds[:-1], oldest)
        return _merge([*of_ended, *[_read(one) for one in seconds[-1:] if one.number > oldest]])


class EndedSeconds:
    """Extremes of the seconds that are over, of which each is merged about twice, and not at every scrape.

    `_until`: extremes of the older seconds from one to the last of them, the last one first. `_since`: those of all
    later seconds, which are in `_later`. When the older ones are over a minute old, the later ones become them.
    """

    def __init__(self) -> None:
        self._until: list[tuple[int, Extremes]] = []
        self._later: list[tuple[int, Extremes]] = []
        self._since: Extremes | None = None
        self._newest = -1

    def extremes(self, seconds: Sequence[Second], oldest: int) -> list[Extremes]:
        """Return extremes that cover `seconds` after `oldest`. `seconds`: those of before, and later ones."""
        if seconds and seconds[-1].number < self._newest:  # a recording has started again
            self._until, self._later, self._since, self._newest = [], [], None, -1
        for second in seconds:
            if second.number > self._newest:
                self._newest = second.number
                found = _read(second)
                self._later.append((second.number, found))
                self._since = found if self._since is None else _merge([self._since, found])
        while self._until and self._until[-1][0] <= oldest:
            self._until.pop()
        if not self._until and self._later and self._later[0][0] <= oldest:
            self._turn(oldest)
        older = [self._until[-1][1]] if self._until else []
        return older if self._since is None else [*older, self._since]

    def _turn(self, oldest: int) -> None:
        merged: Extremes | None = None
        for number, found in reversed(self._later):
            if number <= oldest:
                break
            merged = found if merged is None else _merge([found, merged])
            self._until.append((number, merged))
        self._later, self._since = [], None


def _read(second: Second) -> Extremes:
    return Extremes(second.used.copy(), second.available.copy(), second.headroom.copy())


def _merge(parts: Sequence[Extremes]) -> Extremes:
    return Extremes(
        _merge_part(max, [one.used for one in parts]),
        _merge_part(min, [one.available for one in parts]),
        _merge_part(min, [one.headroom for one in parts]),
    )


def _keep_least(least: dict[str, int], name: str, figure: int | Absent) -> None:
    if not isinstance(figure, Absent) and figure < least.get(name, figure + 1):
        least[name] = figure


def _merge_part(choose: Callable[[int, int], int], parts: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    merged: dict[str, int] = {}
    for part in parts:
        for name, figure in part.items():
            merged[name] = choose(merged.get(name, figure), figure)
    return merged


class TargetTimes(NamedTuple):
    """Time that one target spent at each level, without the time since `since` (monotonic) at `level`.

    `level` is None while the target does not exist.
    """

    level: Level | None
    since: float
    seconds: tuple[float, ...] = (0.0,) * len(Level)
    changes: int = 0

    def until(self, now: float) -> TargetTimes:
        """Return the times at `now`, with the level as before."""
        if self.level is None:
            return self
        seconds = list(self.seconds)
        seconds[self.level] += max(0.0, now - self.since)
        return TargetTimes(self.level, max(self.since, now), tuple(seconds), self.changes)

    def at_level(self, level: Level | None, now: float) -> TargetTimes:
        """Return the times with another level from `now` on. A target that ends or returns has not changed."""
        changed = level is not None and self.level is not None
        return TargetTimes(level, now, self.until(now).seconds, self.changes + changed)


class LevelTimes:
    """Time at each level by target, and number of changes. A tick without a change costs one comparison."""

    def __init__(self) -> None:
        self._targets: Mapping[str, TargetTimes] = {}
        self._levels: list[tuple[str, Level]] = []

    def add(self, now: float, pressure: Iterable[Pressure]) -> None:
        levels = [(one.target, one.level) for one in pressure]
        if levels == self._levels:
            return
        self._levels = levels
        current, targets = dict(levels), dict(self._targets)
        for target in {**targets, **current}:
            level, times = current.get(target), targets.get(target)
            if times is None:
                targets[target] = TargetTimes(level, now)
            elif times.level is not level:
                targets[target] = times.at_level(level, now)
        gone = sorted((times.since, target) for target, times in targets.items() if times.level is None)
        for _, target in gone[: max(0, len(gone) - MAX_GONE_TARGETS)]:
            del targets[target]
        self._targets = targets  # replaced as a whole: other threads read it

    def times(self, now: float) -> Mapping[str, TargetTimes]:
        """Return the times of the targets that exist. Thread-safe."""
        return {target: times.until(now) for target, times in self._targets.items() if times.level is not None}


class KillCounts:
    """OOM kills by scope since boot. Those before memwatchd started are of unknown scope, unless restored."""

    def __init__(self) -> None:
        self.scopes: Mapping[str, int] = {}
        self._restored: Mapping[str, int] = {}

    def restore(self, scopes: Mapping[str, int]) -> None:
        """Continue from the counts of an earlier run since the same boot."""
        self._restored = scopes

    def add(self, kills: NewKills, total: int | Absent) -> None:
        """Add the new kills. `total`: all kills since boot, with these; not known before Linux 4.13."""
        new = kills.by_scope
        if isinstance(total, Absent):
            return
        before = self.scopes
        if not before:
            known = sum(self._restored.values())
            is_of_this_boot = known + sum(new.values()) <= total
            before = dict(self._restored) if is_of_this_boot else {}
            before["unknown"] = max(0, total - sum(before.values()) - sum(new.values()))
        self.scopes = {scope: before.get(scope, 0) + new.get(scope, 0) for scope in SCOPES}

    def figures(self) -> Mapping[str, float]:
        """Return the series of the history from which a later run continues. None without a kill of known scope."""
        return {series_of(scope): count for scope, count in self.scopes.items() if count and scope != "unknown"}


def series_of(scope: str) -> str:
    return f"kernel.oom_kills_{scope}_total"


class CollectorRuns:
    """Durations of the successful runs of each collector with a thread."""

    def __init__(self) -> None:
        self.durations: Mapping[str, Histogram] = {}
        self._last: dict[str, float | Absent] = {}

    def add(self, statuses: Iterable[CollectorStatus]) -> None:
        for status in statuses:
            at = status.last_success_unix
            if status.name not in WITH_THREAD or at == self._last.get(status.name):
                continue
            self._last[status.name], seconds = at, status.duration_seconds
            if isinstance(seconds, Absent):
                continue
            if status.name not in self.durations:
                self.durations = {**self.durations, status.name: Histogram(RUN_BOUNDS)}
            self.durations[status.name].observe(seconds)


class BetweenScrapes(Feature):
    """All of the above, updated by each tick."""

    name = "figures between scrapes"

    def __init__(self, monitor: Any = None) -> None:  # noqa: ANN401, ARG002  as in Feature
        self.recent: RecentExtremes = RecentExtremes()
        self.levels: LevelTimes = LevelTimes()
        self.ticks: Histogram = Histogram(TICK_BOUNDS)
        self.runs: CollectorRuns = CollectorRuns()
        self.kills: KillCounts = KillCounts()

    def on_tick(self, tick: Tick) -> None:
        self.add(tick.snapshot)
        kills = tick.kills
        if not self.kills.scopes or kills.named or kills.unnamed or kills.of_cgroups:
            self.kills.add(kills, tick.snapshot.kernel.oom_kills_total)

    def add(self, snapshot: Snapshot) -> None:
        self.recent.add(snapshot)
        self.levels.add(snapshot.monotonic, snapshot.pressure)
        self.runs.add(snapshot.collectors)
        if snapshot.seq > 1:
            self.ticks.observe(snapshot.self_usage.tick_duration_seconds)  # that of the previous tick
