"""How near the end is: levels from use, with hysteresis. Pure rules: arguments in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memwatch.model import Absent, Pool, Share
from memwatch.snapshot import Level, Pressure, Reason


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where levels begin, as used parts of a whole (0 to 1). `critical` begins above its line, not on it."""

    medium: float = 0.60
    high: float = 0.80
    critical: float = 0.95

    def entry(self, level: Level) -> float:
        return (0.0, self.medium, self.high, self.critical)[level]


@dataclass(frozen=True, slots=True)
class PressureRules:
    """A level rises at once and falls after `clear_after_seconds` below its entry minus `clear_margin`."""

    thresholds: Thresholds = Thresholds()
    by_target: Mapping[str, Thresholds] = field(default_factory=dict)
    clear_margin: float = 0.03
    clear_after_seconds: float = 30.0

    def for_target(self, target: str) -> Thresholds:
        return self.by_target.get(target, self.thresholds)


@dataclass(frozen=True, slots=True)
class Standing:
    """What has to be remembered of a target: its level, and since when it could have fallen."""

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


def ratios_of(pools: tuple[Pool, ...], shares: tuple[Share, ...]) -> Mapping[str, float]:
    """Used part by target: every pool and every share with a limit whose figures are known."""
    ratios = [(pool.id, pool.judged_ratio) for pool in pools] + [(share.id, share.judged_ratio) for share in shares]
    return {target: ratio for target, ratio in ratios if not isinstance(ratio, Absent)}


def judge(
    ratios: Mapping[str, float], before: Mapping[str, Standing], now: float, rules: PressureRules
) -> tuple[tuple[Pressure, ...], Mapping[str, Standing]]:
    """The pressure of every target and what to remember. A target without a figure keeps its standing."""
    after = dict(before)
    verdicts = []
    for target, ratio in ratios.items():
        standing = settle(before.get(target), ratio, now, target, rules)
        after[target] = standing
        base = base_level(ratio, rules.for_target(target))
        reasons = reasons_of(standing.level, ratio, target, rules)
        verdicts.append(Pressure(target, standing.level, base, ratio, reasons))
    return tuple(verdicts), after


def reasons_of(level: Level, ratio: float, target: str, rules: PressureRules) -> tuple[Reason, ...]:
    """Why the level is what it is, in words; nothing to say while it is low."""
    if level is Level.LOW:
        return ()
    thresholds = rules.for_target(target)
    text = f"{ratio:.1%} used".replace("%", " %")
    if base_level(ratio, thresholds) < level:
        line = thresholds.entry(level) - rules.clear_margin
        text += f"; {level.word} is held until use stays below {line:.0%} for {rules.clear_after_seconds:g} s"
        text = text.replace("% for", " % for")
    return (Reason("util", text),)
