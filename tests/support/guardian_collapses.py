"""Generated collapses for the guardian's rules, with the right victim known by construction.

The machine falls from 80 % used to full in 1.7 to 25 s. The guardian reads System RAM at its pace and asks the
daemon for the processes, which the daemon scans once a second: growth is seen as late as on a real machine.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from functools import partial
from math import inf
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import PoolKind
from memwatch.core.pressure.forecast import Trend
from memwatch.core.snapshot import SHORT_USED, Level
from memwatchd.guardian.growth import Growth
from memwatchd.guardian.own_reading import judge_ram, next_pause
from memwatchd.guardian.records import Adjustment, Candidate, Decision, Limits, Match, Past, PoolState, State
from memwatchd.guardian.rules import decide
from support.guardian_states import GIB, candidate
from support.trace_file import Trace, read_size

Story = Literal["culprit", "other slices", "device bytes", "never", "protected", "stale", "stops short", "sawtooth"]
# Nothing may happen in these.
NOTHING: tuple[Story, ...] = ("never", "protected", "stale", "stops short", "sawtooth")
STORIES: tuple[Story, ...] = (*("culprit",) * 3, *("other slices",) * 2, *("device bytes",) * 2, *NOTHING)
SCAN_SECONDS = ASK_SECONDS = 1.0
# The daemon scans this often while less than 80 % is used.
REST_SECONDS = 10.0
DAY_SECONDS = 86_400.0
CALM_SECONDS = 15.0
ASK_SOON_SECONDS = 0.25
CULPRIT = 777
# Of a recorded trace.
MAX_SECONDS, MAX_READINGS = 7200.0, 20_000


class Collapse(Struct, frozen=True):
    """A machine over time. `start`: use before the fall. `seconds`: from its start to full. `top`: where it stops.

    `phase`: when the daemon scans the processes, within a second. `breath`: what innocents allocate and free.
    `skew`: seconds by which figures of devices are newer than the others of a scan.
    """

    seed: int
    story: Story
    size: int
    seconds: float
    top: float
    phase: float
    breath: int
    innocents: tuple[Candidate, ...]
    culprit: Candidate
    limits: Limits
    start: float = 0.8
    skew: float = 0.0

    @property
    def right(self) -> int | None:
        return None if self.story in NOTHING else CULPRIT

    @property
    def end(self) -> float:
        """Return the second at which memory is full, or the last one that is looked at."""
        return CALM_SECONDS + (30.0 if self.top < 1 else self.seconds)

    def used(self, at: float) -> int:
        """Return the used bytes: the same for 15 s, then the fall. A sawtooth comes back every second."""
        fallen = max(0.0, at - CALM_SECONDS) / self.seconds
        if self.story == "sawtooth":
            fallen %= 0.7
        return int(self.size * min(self.top, self.start + (1 - self.start) * fallen))

    def processes(self, at: float) -> tuple[Candidate, ...]:
        """Return the processes at a scan: innocents breathe, and the culprit has the rest."""
        chance = random.Random(f"{self.seed} {at:.3f}")
        others = tuple(
            replace(one, footprint_bytes=one.footprint_bytes + chance.randint(-self.breath, self.breath))
            for one in self.innocents
        )
        in_device = self.story == "device bytes"
        grown = self.used(at + (self.skew if in_device else 0.0)) - self.used(0.0)
        held = self.culprit.footprint_bytes + grown
        device = self.culprit.device_bytes + (grown if in_device else 0)
        return (*others, replace(self.culprit, footprint_bytes=held, device_bytes=device))


def generate_collapse(seed: int) -> Collapse:
    chance = random.Random(seed)
    story = STORIES[seed % len(STORIES)]
    size = chance.choice((8, 32, 64, 122)) * GIB
    seconds = 1.7 * (25 / 1.7) ** chance.random()
    share = chance.uniform(0.02, 0.3)
    parts = [chance.random() ** 3 + 0.01 for _ in range(chance.randint(2, 8))]
    rest = size * (0.76 - share)
    alone = story in ("other slices", *NOTHING)  # no innocent may end in its place
    innocents = tuple(
        candidate(
            100 + number,
            int(rest * part / sum(parts)),
            name="python3",
            user=chance.choice(("ada", "eve")),
            unit=f"session-{number}.scope" if alone else "models.service",
            slice="user.slice/user-1001.slice" if alone else chance.choice(("system.slice", "user.slice")),
        )
        for number, part in enumerate(parts)
    )
    culprit = candidate(
        CULPRIT,
        int(size * share),
        name="sshd-session" if story == "protected" else "python3",
        commands=() if story == "protected" else ("train.py",),
        unit="train.service",
        device_bytes=int(size * share * chance.random()),
        slice="system.slice",
    )
    limits = Limits(never=(Match("unit", "train.*"),) if story == "never" else ())
    top = chance.uniform(0.86, 0.945) if story in ("stops short", "sawtooth") else 1.0
    return Collapse(seed, story, size, seconds, top, chance.random(), 32 << 20, innocents, culprit, limits)


class Day(Collapse, frozen=True):
    """A healthy day: `points` are seconds and the use then, with straight lines between them."""

    points: tuple[tuple[float, float], ...] = ()

    @property
    def end(self) -> float:
        return DAY_SECONDS

    def used(self, at: float) -> int:
        number = max(1, bisect_left(self.points, (at, 0.0)))
        (begin, first), (end, last) = self.points[number - 1], self.points[min(number, len(self.points) - 1)]
        part = (at - begin) / (end - begin) if end > begin else 0.0
        return int(self.size * (first + (last - first) * part))


def generate_day(seed: int) -> Day:
    """Return a day of loads that are fast and stop short of critical, leaks that end, and batches that come and go.

    Once a day memory is full: slowly, or at once by a server that is given all of it. Then nothing changes.
    """
    chance = random.Random(seed)
    points = [(0.0, 0.5)]

    def go(seconds: float, use: float) -> None:
        points.append((points[-1][0] + seconds, use))

    full_at = chance.uniform(0.2, 0.8) * DAY_SECONDS
    is_full = False
    while points[-1][0] < DAY_SECONDS:
        at, use = points[-1]
        if not is_full and at > full_at:
            is_full = True
            go(chance.uniform(3600, 7200), chance.uniform(0.951, 0.98))
            go(300.0, points[-1][1])
            go(chance.uniform(1, 30), 0.5)
        elif chance.random() < 0.5:  # a model is loaded, and unloaded some time later
            go(chance.uniform(2, 60), chance.uniform(use, 0.945))
            go(chance.uniform(60, 600), points[-1][1])
            go(chance.uniform(0.5, 10), chance.uniform(0.3, 0.6))
        elif chance.random() < 0.5:  # a leak, and the restart of its service
            go(chance.uniform(1800, 7200), chance.uniform(use, 0.94))
            go(2.0, chance.uniform(0.3, 0.6))
        else:  # batches
            for _ in range(chance.randint(5, 20)):
                go(chance.uniform(0.3, 5), min(0.945, use + chance.uniform(0.1, 0.3)))
                go(chance.uniform(0.3, 5), use)
        go(chance.uniform(60, 3600), points[-1][1])
    whole = {name: getattr(generate_collapse(seed), name) for name in Collapse.__struct_fields__}
    return Day(**{**whole, "story": "culprit", "limits": Limits()}, points=tuple(points))


def begin_at(collapse: Collapse, start: float) -> Collapse:
    """Return the collapse from another use on, with all processes as much smaller."""

    def scale(one: Candidate) -> Candidate:
        sizes = [int(size * start / collapse.start) for size in (one.footprint_bytes, one.device_bytes)]
        return replace(one, footprint_bytes=sizes[0], device_bytes=sizes[1])

    innocents = tuple(map(scale, collapse.innocents))
    return replace(collapse, start=start, innocents=innocents, culprit=scale(collapse.culprit))


def read_pool(collapse: Collapse, at: float, trend: Trend) -> PoolState:
    available = collapse.size - collapse.used(at)
    critical, floor = collapse.size // 20, int(collapse.size * 0.0125)
    forecast = trend.forecast(collapse.size)
    evidence = ("util",) * (available < critical) + ("floor",) * (available < floor)
    level = Level.CRITICAL if evidence else Level.HIGH if available <= 4 * critical else Level.LOW
    seconds = None if forecast is None else forecast.seconds
    return PoolState("ram", PoolKind.SYSTEM_RAM, collapse.size, available, critical, level, evidence, seconds)


class Guardian:
    """The guardian's loop without processes to end: it keeps what the daemon reported, and how much each grew."""

    def __init__(self, collapse: Collapse) -> None:
        self._collapse = collapse
        self._growth = Growth()
        self._asked = self._scan = -inf
        self._found: tuple[Candidate, ...] = ()

    def state(self, at: float, pool: PoolState) -> State:
        """Return the machine as the guardian sees it, with the processes of the last answer."""
        self._growth.add_pool(at, pool)
        is_short = pool.level is Level.CRITICAL
        if (pool.level >= Level.HIGH or self._growth.falls(pool.size_bytes)) and at - self._asked >= (
            ASK_SOON_SECONDS if is_short else ASK_SECONDS
        ):
            self._ask(at)
        if not is_short:
            return State(at, at, (pool,))
        age = inf if self._collapse.story == "stale" else at - self._scan
        found, fall, most = self._growth.measure(replace(one, device_age_seconds=age) for one in self._found)
        return State(at, at, (pool,), found, frozenset(), fall, most)

    def _ask(self, at: float) -> None:
        phase, skew = self._collapse.phase, self._collapse.skew
        self._asked, self._scan = at, (at - skew - phase) // SCAN_SECONDS * SCAN_SECONDS + phase
        short = SHORT_USED * self._collapse.size
        while self._scan % REST_SECONDS >= SCAN_SECONDS and self._collapse.used(self._scan) < short:
            self._scan -= SCAN_SECONDS
        self._found = self._collapse.processes(self._scan)
        self._growth.add(self._scan, self._scan + skew, self._found)


def run_collapse(collapse: Collapse) -> Decision | None:
    """Return the first decision to act before memory is full, None without one."""
    guardian, past, trend, at = Guardian(collapse), Past(), Trend(), 0.0
    while at < collapse.end:
        available = collapse.size - collapse.used(at)
        trend = trend.with_point(at, available, collapse.size, is_fast=True)
        pool = read_pool(collapse, at, trend)
        decision, past = decide(guardian.state(at, pool), collapse.limits, past)
        if decision.kind == "act":
            return decision
        above = (available - pool.critical_bytes) / (0.12 * collapse.size) / 2
        at += max(0.05, min(1.0, above))
    return None


def act_on_trace(trace: Trace, seconds: float | None = None) -> tuple[int | None, float | None]:
    """Return the first victim on a recorded trace, and when it is chosen. One process takes what the machine loses.

    With `seconds` the trace runs on for that time: from its end back to its start, and again.

    Beside it, an innocent of the same slice holds half of the size and does not grow.
    """
    size = trace.size - read_size(trace.header.huge_pages_bytes)
    resident = trace.header.resident
    # "auto" is learned by the daemon over ten minutes: here the guardian runs without it.
    adjustment = Adjustment(resident_bytes=read_size(resident) if resident and resident != "auto" else 0)
    whole = trace.header.seconds
    end, trend, past, growth, at = seconds or min(whole, MAX_SECONDS), Trend(), Past(), Growth(), 0.0
    scanned = -inf
    found: tuple[Candidate, ...] = ()

    def turn(at: float) -> float:
        return whole - abs(at % (2 * whole) - whole)

    def read_available(at: float) -> int:
        at = turn(at)
        return min(size, max(0, int(trace.value("available_bytes", at) + trace.value("arc_bytes", at))))

    while at < end:
        available = read_available(at)
        trend = trend.with_point(at, available, size, is_fast=True)
        forecast = trend.forecast(size)
        stalled = abs(
            trace.value("psi_full_seconds", turn(at)) - trace.value("psi_full_seconds", turn(max(0.0, at - 10.0)))
        )
        pool = judge_ram(size, available, forecast and forecast.seconds, partial(bool, stalled >= 2), adjustment)
        growth.add_pool(at, pool)
        if (pool.level >= Level.HIGH or growth.falls(size)) and at - scanned >= SCAN_SECONDS:
            scanned = at // SCAN_SECONDS * SCAN_SECONDS
            if size - read_available(scanned) < SHORT_USED * size:
                scanned = at // REST_SECONDS * REST_SECONDS
            found = candidate(100, size // 2), candidate(CULPRIT, size - read_available(scanned))
            growth.add(scanned, scanned, found)
        seen, fall, most = growth.measure(found) if pool.level is Level.CRITICAL else ((), None, 0.0)
        decision, past = decide(State(at, at, (pool,), seen, frozenset(), fall, most), Limits(), past)
        if decision.victim:
            return decision.victim.pid, at
        at += max(next_pause(pool), min(1.0, end / MAX_READINGS))
    return None, None
