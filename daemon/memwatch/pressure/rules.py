"""Settings of the pressure levels, for all targets and for single ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.snapshot import Level

# Kinds of targets that model servers fill on purpose: they run nearly full.
FILLED_ON_PURPOSE = frozenset({"vram", "hbm", "mig_instance", "gpu_limit"})


class Thresholds(Struct, frozen=True):
    """Thresholds of the levels, as used fractions (0 to 1). `critical` starts above its threshold, not at it."""

    medium: float = 0.60
    high: float = 0.80
    critical: float = 0.95

    def entry(self, level: Level) -> float:
        return (0.0, self.medium, self.high, self.critical)[level]


class TargetRules(Struct, frozen=True):
    """Settings of one target. `limit_bytes`: a budget, used as its size.

    `resident_bytes`: memory that stays in use, such as the one model a machine serves; levels apply to the rest.
    `auto` takes the lowest usage of the last `AUTO_RESIDENT_SECONDS`, once that much time has been observed.
    """

    thresholds: Thresholds | None = None
    limit_bytes: int | None = None
    resident_bytes: int | Literal["auto"] | None = None


DEFAULT_TARGET_RULES = TargetRules()


class PressureRules(Struct, frozen=True):
    """A level rises at once and falls after `clear_after_seconds` below its entry minus `clear_margin`."""

    thresholds: Thresholds = Thresholds()
    by_target: Mapping[str, TargetRules] = field(default_factory=dict)
    clear_margin: float = 0.03
    clear_after_seconds: float = 30.0

    def thresholds_for(self, target: str) -> Thresholds:
        return self.target_rules(target).thresholds or self.thresholds

    def target_rules(self, target: str) -> TargetRules:
        return self.by_target.get(target, DEFAULT_TARGET_RULES)
