"""Pressure of each target, from the signals of a tick and the state of earlier ticks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.model import Absent
from memwatch.pressure.forecast import Trend
from memwatch.pressure.hysteresis import LevelState, base_level, update_level, use_reason
from memwatch.pressure.inputs import PressureInputs, Target
from memwatch.pressure.resident import Resident, judged_ratio
from memwatch.pressure.rules import FILLED_ON_PURPOSE, PressureRules
from memwatch.pressure.signals import PSI_WINDOW_SECONDS, Signal, StallRatios, TickChanges, find_signals, full_in
from memwatch.snapshot import Kernel, Level, MemoryPsi, Pressure, Reason

# A forecast is critical on the second consecutive tick that makes it. Its limit is one minute to full, or two if a
# fall has been steady for minutes and less than a tenth is left.
CRITICAL_SECONDS, CRITICAL_USED = 60.0, 0.80
SLOW_CRITICAL_SECONDS, SLOW_CRITICAL_USED = 120.0, 0.90


class HeldSignal(NamedTuple):
    """A signal, the time it was last true, and the time until which it counts."""

    signal: Signal
    at: float
    until: float


class TargetState(Struct, frozen=True):
    """State of one target between ticks."""

    level_state: LevelState | None = None
    trend: Trend = Trend()
    held_signals: Mapping[str, HeldSignal] = field(default_factory=dict)
    ends_soon: bool = False
    resident: Resident = Resident()


class PsiPoint(NamedTuple):
    """Total stall seconds since boot (PSI `some` and `full`) at a monotonic time."""

    at: float
    some: float
    full: float


class JudgeState(Struct, frozen=True):
    """State between ticks."""

    targets: Mapping[str, TargetState] = field(default_factory=dict)
    psi_points: tuple[PsiPoint, ...] = ()
    kernel: Kernel = Kernel()
    driver_errors: Mapping[tuple[str, str], int] | None = None
    cgroup_oom_kills_total: int | None = None


INITIAL_STATE = TargetState()


def judge(
    inputs: PressureInputs, state: JudgeState, rules: PressureRules
) -> tuple[tuple[Pressure, ...], JudgeState]:
    """Return the pressure of every target and the next state. A target without data keeps its state."""
    points = with_psi_point(() if inputs.resumed else state.psi_points, inputs.at, inputs.psi)
    changes = compute_changes(inputs, state, compute_stall_ratios(points, inputs.psi))
    after, verdicts = dict(state.targets), []
    for target in inputs.targets:
        target_state = update_target(state.targets.get(target.id, INITIAL_STATE), inputs, target)
        target_state, verdict = judge_target(target, target_state, inputs, changes, rules)
        after[target.id] = target_state
        verdicts.append(verdict)
    errors = state.driver_errors
    if inputs.driver_errors is not None:
        errors = {(one.device, one.kind): one.count for one in inputs.driver_errors}
    return tuple(verdicts), JudgeState(after, points, inputs.kernel, errors, inputs.cgroup_oom_kills_total)


def update_target(target_state: TargetState, inputs: PressureInputs, target: Target) -> TargetState:
    """Add this tick's point to the trend. After a suspend the trend starts over, and its signal is dropped."""
    trend = Trend() if inputs.resumed else target_state.trend
    trend = trend.with_point(inputs.at, target.available_bytes, target.size_bytes)
    held = {
        key: one
        for key, one in target_state.held_signals.items()
        if not (inputs.resumed and one.signal.name == "ttf")
    }
    return TargetState(
        target_state.level_state, trend, held, target_state.ends_soon and not inputs.resumed, target_state.resident
    )


def judge_target(
    target: Target, target_state: TargetState, inputs: PressureInputs, changes: TickChanges, rules: PressureRules
) -> tuple[TargetState, Pressure]:
    """Return the highest level of usage and all signals, with all reasons."""
    resident = target_state.resident.with_use(inputs.at, target, rules.target_rules(target.id).resident_bytes)
    resident_bytes = resident.resident_bytes(rules.target_rules(target.id).resident_bytes)
    ratio = judged_ratio(target, resident_bytes)
    level_state = update_level(target_state.level_state, ratio, inputs.at, target.id, rules)
    seconds = target_state.trend.seconds_to_full()
    signals = list(find_signals(target, seconds, inputs, changes))
    ends_soon = seconds is not None and is_near_the_end(seconds, target.used_ratio, target_state.trend.is_slow)
    ends_soon = ends_soon and target_state.trend.is_lasting
    if ends_soon and target_state.ends_soon and seconds is not None and target.kind not in FILLED_ON_PURPOSE:
        signals.append(Signal("ttf", Level.CRITICAL, full_in(seconds)))
    held = hold(target_state.held_signals, signals, inputs.at, rules.clear_after_seconds)
    used = use_reason(level_state.level, ratio, target.id, rules, resident_bytes)
    reasons = select_reasons(held, inputs.at)
    verdict = Pressure(
        target=target.id,
        level=max([level_state.level, *(level for level, _ in reasons)]),
        base_level=base_level(ratio, rules.thresholds_for(target.id)),
        ratio=ratio,
        reasons=(*([used] if used else []), *(reason for _, reason in reasons)),
        seconds_to_full=Absent.NOT_AVAILABLE if seconds is None else seconds,
        kind=target.kind,
        size_bytes=target.size_bytes,
        available_bytes=target.available_bytes,
        resident_bytes=resident_bytes,
    )
    return TargetState(level_state, target_state.trend, held, ends_soon, resident), verdict


def is_near_the_end(seconds: float, used: float, is_slow: bool) -> bool:
    soon = seconds < CRITICAL_SECONDS and used >= CRITICAL_USED
    return soon or (is_slow and seconds < SLOW_CRITICAL_SECONDS and used >= SLOW_CRITICAL_USED)


def hold(
    before: Mapping[str, HeldSignal], signals: Iterable[Signal], now: float, clear_after: float
) -> Mapping[str, HeldSignal]:
    """Return the signals that still count, by name and level. A lower level does not end a higher one early."""
    held = {key: one for key, one in before.items() if one.until > now}
    for signal in signals:
        seconds = clear_after if signal.hold_seconds is None else signal.hold_seconds
        held[f"{signal.name} {signal.level.word}"] = HeldSignal(signal, now, now + seconds)
    return held


def select_reasons(held: Mapping[str, HeldSignal], now: float) -> list[tuple[Level, Reason]]:
    """Return the highest level of each signal and its reason, most severe first. Past signals show their age."""
    by_name: dict[str, HeldSignal] = {}
    for one in sorted(held.values(), key=lambda one: one.signal.level):
        by_name[one.signal.name] = one
    ordered = sorted(by_name.values(), key=lambda one: -one.signal.level)
    return [(one.signal.level, Reason(one.signal.name, add_age(one.signal.text, now - one.at))) for one in ordered]


def add_age(text: str, seconds: float) -> str:
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


def compute_stall_ratios(points: tuple[PsiPoint, ...], psi: MemoryPsi | Absent) -> StallRatios | None:
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


def compute_changes(inputs: PressureInputs, state: JudgeState, stalled: StallRatios | None) -> TickChanges:
    """Return what changed since the previous tick. Counters that decreased (after a driver reload) are ignored."""
    before, errors = state.driver_errors, inputs.driver_errors or ()
    return TickChanges(
        stalled,
        _rise(state.kernel.compact_fail_total, inputs.kernel.compact_fail_total),
        _rise(state.cgroup_oom_kills_total, inputs.cgroup_oom_kills_total),
        tuple(one for one in errors if before is not None and one.count > before.get((one.device, one.kind), 0)),
    )


def _rise(before: int | Absent | None, now: int | Absent | None) -> int:
    return max(0, now - before) if isinstance(before, int) and isinstance(now, int) else 0
