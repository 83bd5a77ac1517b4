"""Pressure of each target, from the signals of a tick and the state of earlier ticks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.model import Absent
from memwatch.pressure.forecast import Trend
from memwatch.pressure.hysteresis import Standing, base_level, settle, use_reason
from memwatch.pressure.inputs import Evidence, Target
from memwatch.pressure.resident import Resident, judged_ratio
from memwatch.pressure.rules import FILLED_ON_PURPOSE, PressureRules
from memwatch.pressure.signals import PSI_WINDOW_SECONDS, News, Signal, StallRatios, full_in, signals_of
from memwatch.snapshot import Kernel, Level, MemoryPsi, Pressure, Reason

# A forecast is critical on the second consecutive tick that makes it. Its limit is one minute to full, or two if a
# fall has been steady for minutes and less than a tenth is left.
CRITICAL_SECONDS, CRITICAL_USED = 60.0, 0.80
SLOW_CRITICAL_SECONDS, SLOW_CRITICAL_USED = 120.0, 0.90


class Held(NamedTuple):
    """A signal, the time it was last true, and the time until which it counts."""

    signal: Signal
    at: float
    until: float


class Past(Struct, frozen=True):
    """State of one target between ticks."""

    standing: Standing | None = None
    trend: Trend = Trend()
    held: Mapping[str, Held] = field(default_factory=dict)
    ends_soon: bool = False
    resident: Resident = Resident()


class PsiPoint(NamedTuple):
    """Total stall seconds since boot (PSI `some` and `full`) at a monotonic time."""

    at: float
    some: float
    full: float


class Memory(Struct, frozen=True):
    """State between ticks."""

    targets: Mapping[str, Past] = field(default_factory=dict)
    psi_points: tuple[PsiPoint, ...] = ()
    kernel: Kernel = Kernel()
    driver_errors: Mapping[tuple[str, str], int] | None = None
    cgroup_oom_kills_total: int | None = None


NOTHING_PAST = Past()


def judge(evidence: Evidence, memory: Memory, rules: PressureRules) -> tuple[tuple[Pressure, ...], Memory]:
    """Return the pressure of every target and the next state. A target without data keeps its state."""
    points = with_psi_point(() if evidence.resumed else memory.psi_points, evidence.at, evidence.psi)
    news = news_of(evidence, memory, stall_ratios_of(points, evidence.psi))
    after, verdicts = dict(memory.targets), []
    for target in evidence.targets:
        past = remembered(memory.targets.get(target.id, NOTHING_PAST), evidence, target)
        past, verdict = judge_target(target, past, evidence, news, rules)
        after[target.id] = past
        verdicts.append(verdict)
    errors = memory.driver_errors
    if evidence.driver_errors is not None:
        errors = {(one.device, one.kind): one.count for one in evidence.driver_errors}
    return tuple(verdicts), Memory(after, points, evidence.kernel, errors, evidence.cgroup_oom_kills_total)


def remembered(past: Past, evidence: Evidence, target: Target) -> Past:
    """Add this tick's point to the trend. After a suspend the trend starts over, and its signal is dropped."""
    trend = Trend() if evidence.resumed else past.trend
    trend = trend.with_point(evidence.at, target.available_bytes, target.size_bytes)
    held = {key: one for key, one in past.held.items() if not (evidence.resumed and one.signal.name == "ttf")}
    return Past(past.standing, trend, held, past.ends_soon and not evidence.resumed, past.resident)


def judge_target(
    target: Target, past: Past, evidence: Evidence, news: News, rules: PressureRules
) -> tuple[Past, Pressure]:
    """Return the highest level of usage and all signals, with all reasons."""
    resident = past.resident.seen(evidence.at, target, rules.of(target.id).resident_bytes)
    resident_bytes = resident.bytes_of(rules.of(target.id).resident_bytes)
    ratio = judged_ratio(target, resident_bytes)
    standing = settle(past.standing, ratio, evidence.at, target.id, rules)
    seconds = past.trend.seconds_to_full()
    signals = list(signals_of(target, seconds, evidence, news))
    ends_soon = seconds is not None and is_near_the_end(seconds, target.used_ratio, past.trend.is_slow)
    ends_soon = ends_soon and past.trend.is_lasting
    if ends_soon and past.ends_soon and seconds is not None and target.kind not in FILLED_ON_PURPOSE:
        signals.append(Signal("ttf", Level.CRITICAL, full_in(seconds)))
    held = hold(past.held, signals, evidence.at, rules.clear_after_seconds)
    used = use_reason(standing.level, ratio, target.id, rules, resident_bytes)
    reasons = reasons_of(held, evidence.at)
    verdict = Pressure(
        target=target.id,
        level=max([standing.level, *(level for level, _ in reasons)]),
        base_level=base_level(ratio, rules.for_target(target.id)),
        ratio=ratio,
        reasons=(*([used] if used else []), *(reason for _, reason in reasons)),
        seconds_to_full=Absent.NOT_AVAILABLE if seconds is None else seconds,
        kind=target.kind,
        size_bytes=target.size_bytes,
        available_bytes=target.available_bytes,
        resident_bytes=resident_bytes,
    )
    return Past(standing, past.trend, held, ends_soon, resident), verdict


def is_near_the_end(seconds: float, used: float, is_slow: bool) -> bool:
    soon = seconds < CRITICAL_SECONDS and used >= CRITICAL_USED
    return soon or (is_slow and seconds < SLOW_CRITICAL_SECONDS and used >= SLOW_CRITICAL_USED)


def hold(
    before: Mapping[str, Held], signals: Iterable[Signal], now: float, clear_after: float
) -> Mapping[str, Held]:
    """Return the signals that still count, by name and level. A lower level does not end a higher one early."""
    held = {key: one for key, one in before.items() if one.until > now}
    for signal in signals:
        seconds = clear_after if signal.hold_seconds is None else signal.hold_seconds
        held[f"{signal.name} {signal.level.word}"] = Held(signal, now, now + seconds)
    return held


def reasons_of(held: Mapping[str, Held], now: float) -> list[tuple[Level, Reason]]:
    """Return the highest level of each signal and its reason, most severe first. Past signals show their age."""
    by_name: dict[str, Held] = {}
    for one in sorted(held.values(), key=lambda one: one.signal.level):
        by_name[one.signal.name] = one
    ordered = sorted(by_name.values(), key=lambda one: -one.signal.level)
    return [(one.signal.level, Reason(one.signal.name, dated(one.signal.text, now - one.at))) for one in ordered]


def dated(text: str, seconds: float) -> str:
    return text if seconds <= 0 else f"{max(1, round(seconds))} s ago: {text}"


def with_psi_point(points: tuple[PsiPoint, ...], at: float, psi: MemoryPsi | Absent) -> tuple[PsiPoint, ...]:
    """Return the points of the last `PSI_WINDOW_SECONDS` and the last one before them."""
    if isinstance(psi, Absent):
        return ()
    full = 0.0 if isinstance(psi.full, Absent) else psi.full.total_seconds
    first = 0
    while first + 1 < len(points) and at - points[first + 1].at >= PSI_WINDOW_SECONDS:
        first += 1
    return (*points[first:], PsiPoint(at, psi.some.total_seconds, full))


def stall_ratios_of(points: tuple[PsiPoint, ...], psi: MemoryPsi | Absent) -> StallRatios | None:
    """Compute the stall ratios of the window from the kernel's totals.

    The totals show spikes that the kernel's averages smooth away. Until the window is full, the averages count too.
    """
    if isinstance(psi, Absent) or not points:
        return None
    first, last = points[0], points[-1]
    some = (last.some - first.some) / max(PSI_WINDOW_SECONDS, last.at - first.at)
    full = (last.full - first.full) / max(PSI_WINDOW_SECONDS, last.at - first.at)
    if last.at - first.at < PSI_WINDOW_SECONDS - 0.5:
        some = max(some, psi.some.ratio_10s)
        full = max(full, 0.0 if isinstance(psi.full, Absent) else psi.full.ratio_10s)
    return StallRatios(min(1.0, max(0.0, some)), min(1.0, max(0.0, full)))


def news_of(evidence: Evidence, memory: Memory, stalled: StallRatios | None) -> News:
    """Return what changed since the previous tick. Counters that decreased (after a driver reload) are ignored."""
    before, errors = memory.driver_errors, evidence.driver_errors or ()
    return News(
        stalled,
        _rise(memory.kernel.compact_fail_total, evidence.kernel.compact_fail_total),
        _rise(memory.cgroup_oom_kills_total, evidence.cgroup_oom_kills_total),
        tuple(one for one in errors if before is not None and one.count > before.get((one.device, one.kind), 0)),
    )


def _rise(before: int | Absent | None, now: int | Absent | None) -> int:
    return max(0, now - before) if isinstance(before, int) and isinstance(now, int) else 0
