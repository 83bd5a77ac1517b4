"""Warn about targets in the settings that this machine does not have: a typo there would go unnoticed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.rules import possible_targets
from memwatch.monitor.feature import Feature
from memwatchd.settings.schema import Settings

log = logging.getLogger(__name__)

# By then every collector has delivered, even one whose helper had to be restarted.
SETTLED_SECONDS = 60.0

# (setting as shown in the warning, target) → events of the receiver; empty for pressure targets, which are pools or
# shares.
WantedTargets = Mapping[tuple[str, str], tuple[str, ...]]


class UnknownTargetCheck(Feature):
    """Check of configured targets, one minute after the first tick and, for new ones, after each reload."""

    name = "check of targets"

    @classmethod
    def create(cls, daemon: Any) -> UnknownTargetCheck:  # noqa: ANN401  as in Feature
        return cls(daemon.settings)

    def __init__(self, settings: Settings) -> None:
        self._began: float | None = None
        self._checked: WantedTargets = {}
        self._targets: WantedTargets = {}
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Check the targets of these settings at a later tick. Thread-safe."""
        self._targets = wanted_by(settings)

    def prepare_reload(self, new: Any) -> Callable[[], object]:  # noqa: ANN401  as in Feature
        return partial(self.use, new.settings)

    def on_publish(self, snapshot: Snapshot) -> None:
        if self._began is None:
            self._began = snapshot.monotonic
        wanted = self._targets
        if not wanted or snapshot.monotonic < self._began + SETTLED_SECONDS:
            return
        for (where, target), events in wanted.items():
            here = possible_targets(snapshot, events) if events else tuple(snapshot.labels)
            if target not in here and self._checked.get((where, target)) != events:
                those = ", ".join(here) or "none"
                log.warning("%s, but this machine has no such target now; available: %s", where, those)
        self._checked, self._targets = wanted, {}


def wanted_by(settings: Settings) -> WantedTargets:
    """Return all targets that the settings name."""
    wanted: dict[tuple[str, str], tuple[str, ...]] = {
        (f"pressure.targets.{target} is set", target): () for target in settings.pressure.targets
    }
    for receiver in settings.alerts.receivers:
        for target in receiver.targets:
            wanted[f'receiver "{receiver.name}" lists the target "{target}"', target] = tuple(receiver.events)
    return wanted
