"""Pressure of each target, from the use of its memory, the signals of a tick and the state of earlier ticks.

The level of use falls with hysteresis. Resident memory is excluded from use: a machine that serves one large model
is full by design.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import Absent, Bytes, Thresholds
from memwatch.core.pressure.forecast import LASTS_RATIO, Forecast, Trend
from memwatch.core.pressure.inputs import DriverErrors, PressureInputs, Target
from memwatch.core.pressure.rules import FILLED_ON_PURPOSE, PressureRules
from memwatch.core.pressure.signals import (
    AT_REST,
    PSI_WINDOW_SECONDS,
    SPACING_SECONDS,
    Activity,
    ActivityPoint,
    ErrorKey,
    Signal,
    StallRatios,
    TickChanges,
    compute_activity,
    count_new_errors,
    count_rise,
    find_signals,
    full_in,
    with_activity_point,
)
from memwatch.core.snapshot import Level, MemoryPsi, Pressure, Reason
from memwatch.core.units import MIB

# `auto`: the lowest usage in this time, once that much time has been observed.
AUTO_RESIDENT_SECONDS = 600.0
_SLOTS = 20
# A forecast is critical on the second consecutive tick that makes it: less than 3.3 s until the machine is lost,
# and less than 0.65 times as long as it has been falling. A collapse at a steady rate is then critical a third of
# its time before the end. A load that stops at 90 % of a board with 8 GB is not, nor is a KV cache of 50 GiB that
# is allocated in 5 s. GB10 machines are lost with 2.5 of 121.7 GiB available (vllm-project/vllm#54200); small
# boards use their last hundred MiB.
CRITICAL_SECONDS, LOST_RATIO, LOST_NOTHING_BYTES = 3.3, 0.022, 4096 * MIB
CRITICAL_USED, CRITICAL_BYTES = 0.85, 512 * MIB
# Locked memory is named from this fraction of the size on.
LOCKED_RATIO = 0.10
# From this time on a fall is no single allocation.
LONG_SECONDS, LONG_USED = 6.0, 0.78
# Sums of times are this exact.
ROUNDING_SECONDS = 1e-6


class Resident(Struct, frozen=True):
    """Lowest usage in each of the last time slots, oldest first; a slot is (start, bytes)."""

    slots: tuple[tuple[float, int], ...] = ()

    def with_use(self, now: float, target: Target, wanted: int | Literal["auto"] | None) -> Resident:
        if wanted != "auto":
            return self
        used = target.size_bytes - target.available_bytes
        length = AUTO_RESIDENT_SECONDS / _SLOTS
        if not self.slots or now - self.slots[-1][0] >= length:
            return Resident((*self.slots[-_SLOTS:], (now, used)))
        start, least = self.slots[-1]
        return self if used >= least else Resident((*self.slots[:-1], (start, used)))

    def resident_bytes(self, wanted: int | Literal["auto"] | None) -> int:
        """Return the resident bytes; 0 until `auto` has observed `AUTO_RESIDENT_SECONDS`."""
        if wanted != "auto":
            return wanted or 0
        return min(used for _, used in self.slots) if len(self.slots) > _SLOTS else 0


def judged_ratio(target: Target, resident: int) -> float:
    """Return the used fraction (0 to 1) of the memory that is not resident."""
    size = target.size_bytes - resident
    if resident <= 0 or size <= 0:
        return target.used_ratio
    return max(0.0, 1.0 - target.available_bytes / size)


class LevelState(Struct, frozen=True):
    """State of a target's level. `calm_since`: for each level, since when usage has been low enough to leave it."""

    level: Level
    calm_since: Mapping[Level, float] = field(default_factory=dict)


def base_level(ratio: float, thresholds: Thresholds) -> Level:
    """Return the level of usage alone: medium and high from their thresholds, critical above its own."""
    if ratio > thresholds.critical:
        return Level.CRITICAL
    if ratio >= thresholds.high:
        return Level.HIGH
    return Level.MEDIUM if ratio >= thresholds.medium else Level.LOW


def update_level(
    before: LevelState | None, ratio: float, now: float, target: str, rules: PressureRules
) -> LevelState:
    """Return the level with hysteresis at `now` (monotonic seconds)."""
    thresholds = rules.thresholds_for(target)
    base = base_level(ratio, thresholds)
    if before is None or base >= before.level:
        return LevelState(base)
    calm = {
        level: before.calm_since.get(level, now)
        for level in Level
        if base < level <= before.level and ratio < thresholds.entry(level) - rules.clear_margin
    }
    return LevelState(fallen_level(before.level, calm, now, rules), calm)


def fallen_level(level: Level, calm: Mapping[Level, float], now: float, rules: PressureRules) -> Level:
    """Return the level of use once those are left that have been calm for long enough."""
    while level in calm and now - calm[level] >= rules.clear_after_seconds:
        level = Level(level - 1)
    return level


def level_after_fall(level: Level, ratio: float, thresholds: Thresholds, margin: float) -> Level:
    """Return the level of use that follows on a level once use has stayed at a lower ratio for long enough."""
    while level > base_level(ratio, thresholds) and ratio < thresholds.entry(level) - margin:
        level = Level(level - 1)
    return max(level, base_level(ratio, thresholds))


def use_reason(
    state: LevelState, ratio: float, now: float, target: Target, rules: PressureRules, resident_bytes: int = 0
) -> Reason | None:
    """Return the reason for a level from usage, None for the low level."""
    level = state.level
    if level is Level.LOW:
        return None
    text = describe_use(ratio, target, resident_bytes)
    base = base_level(ratio, rules.thresholds_for(target.id))
    if base < level:
        text += f"; {describe_hold(state, base, now, target.id, rules)}"
    return Reason("util", text, level)


def describe_use(ratio: float, target: Target, resident_bytes: int = 0) -> str:
    """Name what was judged: a size, a limit, or the memory beside the resident part."""
    used = f"{ratio * 100:.1f}%"
    if resident_bytes:
        rest = units.size(target.size_bytes - resident_bytes)
        return f"{used} used of the {rest} beside {units.size(resident_bytes)} resident"
    return f"{used} of its limit of {units.size(target.size_bytes)} used" if target.is_limit else f"{used} used"


def describe_hold(state: LevelState, base: Level, now: float, target: str, rules: PressureRules) -> str:
    """Explain why a level stays although usage has fallen: "calm for 12 s; medium clears after 30 s below 57%".

    The second part is the highest level that usage is not far enough below, if any.
    """
    since, held, texts = state.calm_since.get(state.level), state.level, []
    if since is not None:
        texts.append(f"calm for {now - since:.0f} s")
        held = max(one for one in Level if one is Level.LOW or (one < held and one not in state.calm_since))
    if base < held:
        line = (rules.thresholds_for(target).entry(held) - rules.clear_margin) * 100
        texts.append(f"{held.word} clears after {rules.clear_after_seconds:g} s below {line:.0f}%")
    return "; ".join(texts)


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
    activity_points: tuple[ActivityPoint, ...] = ()
    activity: Activity = AT_REST
    driver_errors: Mapping[ErrorKey, int] | None = None
    cgroup_oom_kills_total: int | None = None


INITIAL_STATE = TargetState()
# The two parts of a selected reason.
LEVEL, REASON = itemgetter(0), itemgetter(1)


def judge(
    inputs: PressureInputs, state: JudgeState, rules: PressureRules
) -> tuple[tuple[Pressure, ...], JudgeState]:
    """Return the pressure of every target and the next state. A target without data keeps its state."""
    psi_points = with_psi_point(() if inputs.resumed else state.psi_points, inputs.at, inputs.psi)
    errors = state.driver_errors if inputs.driver_errors is None else count_errors(inputs.driver_errors)
    activity_points, activity = update_activity(inputs, state, errors or {})
    new_errors = (
        count_new_errors(state.driver_errors, errors or {}) if state.driver_errors is not None and errors else {}
    )
    changes = TickChanges(
        compute_stall_ratios(psi_points, inputs.psi),
        count_rise(state.cgroup_oom_kills_total, inputs.cgroup_oom_kills_total),
        tuple([one for one in inputs.driver_errors or () if (one.device, one.kind) in new_errors])
        if new_errors
        else (),
        activity,
    )
    after, verdicts = dict(state.targets), []
    for target in inputs.targets:
        target_state = update_target(state.targets.get(target.id, INITIAL_STATE), inputs, target)
        target_state, verdict = judge_target(target, target_state, inputs, changes, rules)
        after[target.id] = target_state
        verdicts.append(verdict)
    return tuple(verdicts), JudgeState(
        after, psi_points, activity_points, activity, errors, inputs.cgroup_oom_kills_total
    )


def count_errors(errors: Sequence[DriverErrors]) -> Mapping[ErrorKey, int]:
    """Return the errors of drivers so far."""
    return {(one.device, one.kind): one.count for one in errors} if errors else {}


def update_target(target_state: TargetState, inputs: PressureInputs, target: Target) -> TargetState:
    """Add this tick's point to the trend. After a suspend the trend starts over, and its signal is dropped."""
    trend = Trend() if inputs.resumed else target_state.trend
    trend = trend.with_point(inputs.at, target.available_bytes, target.size_bytes, target.is_host)
    held = target_state.held_signals
    if inputs.resumed:
        held = {key: one for key, one in held.items() if one.signal.name != "ttf"}
    return TargetState(
        target_state.level_state, trend, held, target_state.ends_soon and not inputs.resumed, target_state.resident
    )


def judge_target(
    target: Target, target_state: TargetState, inputs: PressureInputs, changes: TickChanges, rules: PressureRules
) -> tuple[TargetState, Pressure]:
    """Return the highest level of usage and all signals, with all reasons."""
    wanted = rules.target_rules(target.id).resident_bytes
    resident = target_state.resident.with_use(inputs.at, target, wanted)
    resident_bytes = resident.resident_bytes(wanted)
    ratio = judged_ratio(target, resident_bytes)
    level_state = update_level(target_state.level_state, ratio, inputs.at, target.id, rules)
    forecast = target_state.trend.forecast(target.size_bytes)
    stated = forecast.seconds if forecast is not None and forecast.is_stated else None
    signals = list(find_signals(target, stated, inputs, changes))
    ends_soon = forecast is not None and forecast.is_lasting and is_near_the_end(forecast, target, ratio)
    if ends_soon and target_state.ends_soon and forecast is not None and target.kind not in FILLED_ON_PURPOSE:
        signals.append(Signal("ttf", Level.CRITICAL, full_in(forecast.seconds)))
        stated = forecast.seconds
    held = hold(target_state.held_signals, signals, inputs.at, rules.clear_after_seconds)
    thresholds = rules.thresholds_for(target.id)
    used = use_reason(level_state, ratio, inputs.at, target, rules, resident_bytes)
    if used and target.is_ram:
        used = with_locked(used, inputs.kernel.mlocked_bytes, target)
    reasons = select_reasons(held, inputs.at) if held else []
    level = max([level_state.level, *map(LEVEL, reasons)])
    end = None if level is Level.LOW else find_end(level, level_state, held.values(), inputs.at, rules)
    verdict = Pressure(
        target=target.id,
        level=level,
        base_level=base_level(ratio, thresholds),
        ratio=ratio,
        reasons=(*([used] if used else []), *map(REASON, reasons)),
        seconds_to_full=Absent.NOT_AVAILABLE if stated is None else stated,
        kind=target.kind,
        size_bytes=target.size_bytes,
        available_bytes=target.available_bytes,
        resident_bytes=resident_bytes,
        thresholds=thresholds,
        clear_margin=rules.clear_margin,
        clears_in_seconds=Absent.NOT_AVAILABLE if end is None else max(0.0, end.at - inputs.at),
        clears_to=Absent.NOT_AVAILABLE if end is None else end.level,
    )
    return TargetState(level_state, target_state.trend, held, ends_soon, resident), verdict


def with_locked(used: Reason, locked: Bytes, target: Target) -> Reason:
    """Name memory that programs lock, if it is much: neither reclaim nor swap can free it."""
    if isinstance(locked, Absent) or locked < LOCKED_RATIO * target.size_bytes:
        return used
    return replace(used, text=f"{used.text}; {units.size(locked)} of it locked (mlock)")


def is_near_the_end(forecast: Forecast, target: Target, ratio: float) -> bool:
    """Check that a fall will soon end in nothing available. `ratio` excludes resident memory."""
    is_long = forecast.fell_seconds >= LONG_SECONDS and ratio >= LONG_USED
    is_small = target.is_host and target.available_bytes < CRITICAL_BYTES
    lost = LOST_RATIO * max(0, target.size_bytes - LOST_NOTHING_BYTES)
    seconds_left = forecast.seconds * (1.0 - lost / max(1, target.available_bytes))
    is_soon = seconds_left < min(CRITICAL_SECONDS, LASTS_RATIO * forecast.fell_seconds)
    return is_soon and (ratio >= CRITICAL_USED or is_long or is_small)


def hold(
    before: Mapping[str, HeldSignal], signals: Sequence[Signal], now: float, clear_after: float
) -> Mapping[str, HeldSignal]:
    """Return the signals that still count, by name and level. A lower level does not end a higher one early."""
    if not before and not signals:
        return before
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
    return [(one.signal.level, Reason(one.signal.name, add_age(one, now), one.signal.level)) for one in ordered]


def add_age(held: HeldSignal, now: float) -> str:
    """Return the text of a signal, with its age if it is over: "13 s ago: …"."""
    age = now - held.at
    return held.signal.text if age <= 0 else f"{max(1, round(age))} s ago: {held.signal.text}"


class End(NamedTuple):
    """The time at which a level falls, and the level that follows."""

    at: float
    level: Level


def find_end(
    level: Level, level_state: LevelState, held: Collection[HeldSignal], now: float, rules: PressureRules
) -> End | None:
    """Return the end of the level if use and signals stay as they are: the last of its causes decides.

    None while any of them is not over: use is not far enough below the threshold, or a signal is true now.
    """
    causes = [one for one in held if one.signal.level >= level]
    since = level_state.calm_since.get(level)
    is_of_use = level_state.level >= level
    if any(one.at >= now for one in causes) or (is_of_use and since is None):
        return None
    ends = [since + rules.clear_after_seconds] if is_of_use and since is not None else []
    end = max([*ends, *(one.until for one in causes)])
    of_use = fallen_level(level_state.level, level_state.calm_since, end + ROUNDING_SECONDS, rules)
    return End(end, max([of_use, *(one.signal.level for one in held if one.at >= now or one.until > end)]))


def with_psi_point(points: tuple[PsiPoint, ...], at: float, psi: MemoryPsi | Absent) -> tuple[PsiPoint, ...]:
    """Return the points of the last `PSI_WINDOW_SECONDS` and the last one before them."""
    if isinstance(psi, Absent):
        return ()
    full = 0.0 if isinstance(psi.full, Absent) else psi.full.total_seconds
    first = 0
    while first + 1 < len(points) and at - points[first + 1].at >= PSI_WINDOW_SECONDS:
        first += 1
    return points[first:] + (PsiPoint(at, psi.some.total_seconds, full),)  # noqa: RUF005  as in forecast


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


def update_activity(
    inputs: PressureInputs, state: JudgeState, errors: Mapping[ErrorKey, int]
) -> tuple[tuple[ActivityPoint, ...], Activity]:
    """Return the points and the activity. Between two readings of the counters both stay, unless errors come."""
    before = () if inputs.resumed else state.activity_points
    if before and is_current(before[-1], inputs, errors):
        return before, state.activity
    now = ActivityPoint(
        inputs.at,
        inputs.kernel,
        inputs.free_bytes,
        inputs.device_bytes,
        inputs.evicted_seconds,
        inputs.failed_allocations,
        errors,
    )
    points = with_activity_point(before, now)
    return points, compute_activity(points, now)


def is_current(last: ActivityPoint, inputs: PressureInputs, errors: Mapping[ErrorKey, int]) -> bool:
    is_same_reading = inputs.kernel is last.kernel and inputs.at - last.at < SPACING_SECONDS
    return is_same_reading and errors == last.errors and inputs.failed_allocations == last.failed_allocations
