"""All signals of a tick, and what is remembered of those before, as one verdict per target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memwatch.model import Absent
from memwatch.pressure.evidence import Evidence, Target
from memwatch.pressure.levels import Standing, base_level, settle, use_reason
from memwatch.pressure.resident import Resident, judged_ratio
from memwatch.pressure.rules import FILLED_ON_PURPOSE, PressureRules
from memwatch.pressure.signals import STALL_WINDOW_SECONDS, News, Signal, Stalled, full_in, signals_of
from memwatch.pressure.trend import Trend
from memwatch.snapshot import Kernel, Level, Pressure, Reason, Stalls

# A forecast is critical on the second tick in a row that makes it.
CRITICAL_SECONDS, CRITICAL_USED = 60.0, 0.80


class Held(NamedTuple):
    """A signal, and until when it counts though it may not be true any more."""

    signal: Signal
    until: float


@dataclass(frozen=True, slots=True)
class Past:
    """What has to be remembered of one target."""

    standing: Standing | None = None
    trend: Trend = Trend()
    held: Mapping[str, Held] = field(default_factory=dict)
    ends_soon: bool = False
    resident: Resident = Resident()


class StallPoint(NamedTuple):
    """Seconds lost since boot, at a monotonic time."""

    at: float
    some: float
    full: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What has to be remembered between two ticks."""

    targets: Mapping[str, Past] = field(default_factory=dict)
    stall_points: tuple[StallPoint, ...] = ()
    kernel: Kernel = Kernel()
    driver_errors: Mapping[str, int] | None = None


def judge(evidence: Evidence, memory: Memory, rules: PressureRules) -> tuple[tuple[Pressure, ...], Memory]:
    """The pressure of every target and what to remember. A target without a figure is remembered as it was."""
    points = with_stalls(() if evidence.resumed else memory.stall_points, evidence.at, evidence.stalls)
    news = news_of(evidence, memory, stalled_of(points, evidence.stalls))
    after, verdicts = dict(memory.targets), []
    for target in evidence.targets:
        past = remembered(memory.targets.get(target.id, Past()), evidence, target)
        past, verdict = judge_target(target, past, evidence, news, rules)
        after[target.id] = past
        verdicts.append(verdict)
    return tuple(verdicts), Memory(after, points, evidence.kernel, evidence.driver_errors)


def remembered(past: Past, evidence: Evidence, target: Target) -> Past:
    """The trend with this tick's point. After a pause it begins anew: what happened meanwhile is not known."""
    trend = Trend() if evidence.resumed else past.trend
    trend = trend.with_point(evidence.at, target.available_bytes)
    return Past(past.standing, trend, past.held, past.ends_soon, past.resident)


def judge_target(
    target: Target, past: Past, evidence: Evidence, news: News, rules: PressureRules
) -> tuple[Past, Pressure]:
    resident = past.resident.seen(evidence.at, target, rules.of(target.id).resident_bytes)
    ratio = judged_ratio(target, resident.bytes_of(rules.of(target.id).resident_bytes))
    standing = settle(past.standing, ratio, evidence.at, target.id, rules)
    seconds = past.trend.seconds_to_full(target.size_bytes)
    signals = list(signals_of(target, seconds, evidence, news))
    ends_soon = seconds is not None and seconds < CRITICAL_SECONDS and target.used_ratio >= CRITICAL_USED
    if ends_soon and past.ends_soon and seconds is not None and target.kind not in FILLED_ON_PURPOSE:
        signals.append(Signal("ttf", Level.CRITICAL, full_in(seconds)))
    held = hold(past.held, signals, evidence.at, rules.clear_after_seconds)
    verdict = verdict_of(target, ratio, standing, held, seconds, rules)
    return Past(standing, past.trend, held, ends_soon, resident), verdict


def hold(
    before: Mapping[str, Held], signals: Iterable[Signal], now: float, clear_after: float
) -> Mapping[str, Held]:
    """Every level a signal speaks for, until its time is over: a lower one does not end a higher one early."""
    held = {key: one for key, one in before.items() if one.until > now}
    for signal in signals:
        seconds = clear_after if signal.hold_seconds is None else signal.hold_seconds
        held[f"{signal.name} {signal.level.word}"] = Held(signal, now + seconds)
    return held


def verdict_of(
    target: Target,
    ratio: float,
    standing: Standing,
    held: Mapping[str, Held],
    seconds: float | None,
    rules: PressureRules,
) -> Pressure:
    """The highest of what use gives and what any signal gives, with everybody's reason, the gravest first."""
    by_name: dict[str, Signal] = {}
    for one in sorted((held.signal for held in held.values()), key=lambda signal: signal.level):
        by_name[one.name] = one
    gravest = sorted(by_name.values(), key=lambda signal: -signal.level)
    used = use_reason(standing.level, ratio, target.id, rules)
    reasons = [*([used] if used else []), *(Reason(signal.name, signal.text) for signal in gravest)]
    return Pressure(
        target=target.id,
        level=max([standing.level, *(signal.level for signal in gravest)]),
        base_level=base_level(ratio, rules.for_target(target.id)),
        ratio=ratio,
        reasons=tuple(reasons),
        seconds_to_full=Absent.NOT_AVAILABLE if seconds is None else seconds,
        kind=target.kind,
    )


def with_stalls(points: tuple[StallPoint, ...], at: float, stalls: Stalls | Absent) -> tuple[StallPoint, ...]:
    """The points of the last `STALL_WINDOW_SECONDS`, and the last one before them."""
    if isinstance(stalls, Absent):
        return ()
    full = 0.0 if isinstance(stalls.full, Absent) else stalls.full.total_seconds
    first = 0
    while first + 1 < len(points) and at - points[first + 1].at >= STALL_WINDOW_SECONDS:
        first += 1
    return (*points[first:], StallPoint(at, stalls.some.total_seconds, full))


def stalled_of(points: tuple[StallPoint, ...], stalls: Stalls | Absent) -> Stalled | None:
    """By the kernel's totals, which show a spike that its averages smooth away; by these in the first seconds."""
    if isinstance(stalls, Absent) or not points:
        return None
    first, last = points[0], points[-1]
    some = (last.some - first.some) / max(STALL_WINDOW_SECONDS, last.at - first.at)
    full = (last.full - first.full) / max(STALL_WINDOW_SECONDS, last.at - first.at)
    if last.at - first.at < STALL_WINDOW_SECONDS - 0.5:
        some = max(some, stalls.some.ratio_10s)
        full = max(full, 0.0 if isinstance(stalls.full, Absent) else stalls.full.ratio_10s)
    return Stalled(min(1.0, max(0.0, some)), min(1.0, max(0.0, full)))


def news_of(evidence: Evidence, memory: Memory, stalled: Stalled | None) -> News:
    """What is new since the tick before. Counters that went back (a driver reloaded) tell nothing."""
    before, now = memory.driver_errors, evidence.driver_errors or {}
    return News(
        stalled,
        _rise(memory.kernel.oom_kills_total, evidence.kernel.oom_kills_total),
        _rise(memory.kernel.compact_fail_total, evidence.kernel.compact_fail_total),
        tuple(device for device, count in now.items() if before is not None and count > before.get(device, 0)),
    )


def _rise(before: int | Absent, now: int | Absent) -> int:
    return 0 if isinstance(before, Absent) or isinstance(now, Absent) else max(0, now - before)
