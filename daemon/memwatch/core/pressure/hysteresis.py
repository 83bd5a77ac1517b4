"""Levels from usage alone, with hysteresis."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from memwatch.core import units
from memwatch.core.model import Thresholds
from memwatch.core.pressure.inputs import Target
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import Level, Reason


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
    level = before.level
    while level in calm and now - calm[level] >= rules.clear_after_seconds:
        level = Level(level - 1)
    return LevelState(level, calm)


def use_reason(
    state: LevelState, ratio: float, now: float, target: Target, rules: PressureRules, resident_bytes: int = 0
) -> Reason | None:
    """Return the reason for a level from usage, None for the low level."""
    level = state.level
    if level is Level.LOW:
        return None
    text = describe_use(ratio, target, resident_bytes)
    if base_level(ratio, rules.thresholds_for(target.id)) < level:
        text += f"; {describe_hold(state, now, target.id, rules)}"
    return Reason("util", text, level)


def describe_use(ratio: float, target: Target, resident_bytes: int = 0) -> str:
    """Name what was judged: a size, a limit, or the memory beside the resident part."""
    used = f"{ratio * 100:.1f}%"
    if resident_bytes:
        rest = units.size(target.size_bytes - resident_bytes)
        return f"{used} used of the {rest} beside {units.size(resident_bytes)} resident"
    return f"{used} of its limit of {units.size(target.size_bytes)} used" if target.is_limit else f"{used} used"


def describe_hold(state: LevelState, now: float, target: str, rules: PressureRules) -> str:
    """Explain why a level stays although usage has fallen: "calm for 12 s"."""
    since = state.calm_since.get(state.level)
    if since is None:
        line = (rules.thresholds_for(target).entry(state.level) - rules.clear_margin) * 100
        return f"{state.level.word} clears after {rules.clear_after_seconds:g} s below {line:.0f}%"
    return f"calm for {now - since:.0f} s"
