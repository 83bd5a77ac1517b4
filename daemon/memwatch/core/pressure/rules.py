"""Settings of the pressure levels, for all targets and for single ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.core.model import Thresholds

# Kinds of targets that model servers fill on purpose: they run nearly full.
FILLED_ON_PURPOSE = frozenset({"vram", "hbm", "mig_instance", "gpu_limit"})


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
