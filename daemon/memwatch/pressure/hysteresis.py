"""Levels from usage alone, with hysteresis."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from memwatch import units
from memwatch.pressure.rules import PressureRules, Thresholds
from memwatch.snapshot import Level, Reason


class LevelState(Struct, frozen=True):
    """State of a target's level. `calm_since`: for each level, since when usage has been low enough to leave it."""

    level: Level
    calm_since: Mapping[Level, float] = field(default_factory=dict)


def base_level(ratio: float, thresholds: Thresholds) -> Level:
    """Return the level of usage alone. Defaults: medium from 60 %, high from 80 %, critical above 95 %."""
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
    level: Level, ratio: float, target: str, rules: PressureRules, resident_bytes: int = 0
) -> Reason | None:
    """Return the reason for a level from usage, None for the low level."""
    if level is Level.LOW:
        return None
    thresholds = rules.thresholds_for(target)
    text = f"{ratio * 100:.1f}% used"
    if resident_bytes:
        text += f", excluding {units.size(resident_bytes)} resident"
    if base_level(ratio, thresholds) < level:
        line = (thresholds.entry(level) - rules.clear_margin) * 100
        text += f"; {level.word} clears after {rules.clear_after_seconds:g} s below {line:.0f}%"
    return Reason("util", text)
