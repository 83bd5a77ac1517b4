"""What a user may choose about pressure, for all targets and for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.snapshot import Level

# Kinds of targets that servers fill on purpose, and then stop: being nearly full is how they work.
FILLED_ON_PURPOSE = frozenset({"vram", "hbm", "mig_instance"})


class Thresholds(Struct, frozen=True):
    """Where levels begin, as used parts of a whole (0 to 1). `critical` begins above its line, not on it."""

    medium: float = 0.60
    high: float = 0.80
    critical: float = 0.95

    def entry(self, level: Level) -> float:
        return (0.0, self.medium, self.high, self.critical)[level]


class TargetRules(Struct, frozen=True):
    """What differs for one target. `limit_bytes`: judge it as if it were this small (a budget).

    `resident_bytes`: what is there to stay, such as the one model a machine serves; levels are judged on the
    rest. `auto` takes the least that was used in the last `AUTO_RESIDENT_SECONDS`, once that is steady.
    """

    thresholds: Thresholds | None = None
    limit_bytes: int | None = None
    resident_bytes: int | Literal["auto"] | None = None


USUAL = TargetRules()


class PressureRules(Struct, frozen=True):
    """A level rises at once and falls after `clear_after_seconds` below its entry minus `clear_margin`."""

    thresholds: Thresholds = Thresholds()
    by_target: Mapping[str, TargetRules] = field(default_factory=dict)
    clear_margin: float = 0.03
    clear_after_seconds: float = 30.0

    def for_target(self, target: str) -> Thresholds:
        return self.of(target).thresholds or self.thresholds

    def of(self, target: str) -> TargetRules:
        return self.by_target.get(target, USUAL)
