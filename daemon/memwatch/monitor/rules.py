"""Rules of the sampling loop that may change at run time."""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.pressure.rules import PressureRules
from memwatch.core.processes.leaks import LeakRules
from memwatch.monitor.alerts.rules import AlertRules
from memwatch.monitor.history.tier import TierSpec
from memwatch.monitor.history.tiers import TIER_SPECS


class MonitorRules(Struct, frozen=True):
    """Rules that may change at run time."""

    interval_seconds: float = 1.0
    history_seconds: float = TIER_SPECS[0].seconds
    medium_seconds: float = TIER_SPECS[1].seconds
    coarse_seconds: float = TIER_SPECS[2].seconds
    pressure: PressureRules = PressureRules()
    alerts: AlertRules = AlertRules()
    leaks: LeakRules = LeakRules()

    @property
    def tier_specs(self) -> tuple[TierSpec, ...]:
        """Return the tiers of the history. No tier is finer than the interval."""
        _, medium, coarse = TIER_SPECS
        return (
            TierSpec(self.interval_seconds, self.history_seconds),
            TierSpec(max(medium.step_seconds, self.interval_seconds), self.medium_seconds),
            TierSpec(coarse.step_seconds, self.coarse_seconds),
        )
