"""Says which targets of the settings are not on this machine: a typing error there is heeded by nobody."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from memwatch.alerts.rules import possible_targets
from memwatch.alerts.state import Notification
from memwatch.snapshot import Snapshot
from memwatchd.settings.schema import Settings

log = logging.getLogger(__name__)

# By then every collector has answered, a helper that had to be started again included.
SETTLED_SECONDS = 60.0

# Where a target is set, as one says it, and which one; the events that it is about, none for a pool or a share.
WantedTargets = Mapping[tuple[str, str], tuple[str, ...]]


class UnknownTargetCheck:
    """Looks once at the targets that are there, a minute after the first tick that it is told of; after a reload
    again, at what is new."""

    def __init__(self, settings: Settings) -> None:
        self._began: float | None = None
        self._told: WantedTargets = {}
        self._targets: WantedTargets = {}
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """From now on these hold. For any thread."""
        self._targets = wanted_by(settings)

    def on_tick(self, snapshot: Snapshot, _notices: tuple[Notification, ...] = ()) -> None:
        """After every tick."""
        if self._began is None:
            self._began = snapshot.monotonic
        wanted = self._targets
        if not wanted or snapshot.monotonic < self._began + SETTLED_SECONDS:
            return
        for (where, target), events in wanted.items():
            here = possible_targets(snapshot, events) if events else tuple(snapshot.labels)
            if target not in here and self._told.get((where, target)) != events:
                those = ", ".join(here) or "none"
                log.warning("%s, and there is no such target here now; those that are: %s", where, those)
        self._told, self._targets = wanted, {}


def wanted_by(settings: Settings) -> WantedTargets:
    """All targets that settings name."""
    wanted: dict[tuple[str, str], tuple[str, ...]] = {
        (f"pressure.targets.{target} is set", target): () for target in settings.pressure.targets
    }
    for receiver in settings.alerts.receivers:
        for target in receiver.targets:
            wanted[f'the receiver "{receiver.name}" is to hear of "{target}"', target] = tuple(receiver.events)
    return wanted
