"""Levels from use alone, with hysteresis."""

from __future__ import annotations

from dataclasses import dataclass

from memwatch import units
from memwatch.pressure.rules import PressureRules, Thresholds
from memwatch.snapshot import Level, Reason


@dataclass(frozen=True, slots=True)
class Standing:
    """What has to be remembered of a target's level: what it is, and since when it could have fallen."""

    level: Level
    calm_since: float | None = None


def base_level(ratio: float, thresholds: Thresholds) -> Level:
    """The level that use alone gives: below 60 % low, to 80 % medium, to 95 % high, above critical."""
    if ratio > thresholds.critical:
        return Level.CRITICAL
    if ratio >= thresholds.high:
        return Level.HIGH
    return Level.MEDIUM if ratio >= thresholds.medium else Level.LOW


def settle(before: Standing | None, ratio: float, now: float, target: str, rules: PressureRules) -> Standing:
    """The level with hysteresis at `now` (monotonic seconds)."""
    thresholds = rules.for_target(target)
    base = base_level(ratio, thresholds)
    if before is None or base >= before.level:
        return Standing(base)
    settled = before.level
    while settled > base and ratio < thresholds.entry(settled) - rules.clear_margin:
        settled = Level(settled - 1)
    if settled == before.level:
        return Standing(before.level)
    calm_since = now if before.calm_since is None else before.calm_since
    if now - calm_since >= rules.clear_after_seconds:
        return Standing(settled)
    return Standing(before.level, calm_since)


def use_reason(
    level: Level, ratio: float, target: str, rules: PressureRules, resident_bytes: int = 0
) -> Reason | None:
    """Why the level that use gives is what it is; nothing to say while it is low."""
    if level is Level.LOW:
        return None
    thresholds = rules.for_target(target)
    text = f"{ratio * 100:.1f} % used"
    if resident_bytes:
        text += f" of what is not resident ({units.size(resident_bytes)} are)"
    if base_level(ratio, thresholds) < level:
        line = (thresholds.entry(level) - rules.clear_margin) * 100
        text += f"; {level.word} is held until use stays below {line:.0f} % for {rules.clear_after_seconds:g} s"
    return Reason("util", text)
