"""Says which targets of the settings are not on this machine: a typing error there judges nothing, in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from memwatch.alerts import Notice
from memwatch.snapshot import Snapshot

log = logging.getLogger(__name__)

# By then every source has answered, a helper that had to be started again included.
SETTLED_SECONDS = 60.0


class Unmet:
    """Looks once at the pools and shares that are there, a minute after the first tick that it is told of; after a
    reload again, at what is new."""

    def __init__(self, targets: Iterable[str]) -> None:
        self._began: float | None = None
        self._told: frozenset[str] = frozenset()
        self._wanted: tuple[str, ...] = ()
        self.use(targets)

    def use(self, targets: Iterable[str]) -> None:
        """From now on these are set under [pressure.targets]. For any thread."""
        self._wanted = tuple(targets)

    def tell(self, snapshot: Snapshot, _notices: tuple[Notice, ...] = ()) -> None:
        """After every tick."""
        if self._began is None:
            self._began = snapshot.monotonic
        wanted = self._wanted
        if not wanted or snapshot.monotonic < self._began + SETTLED_SECONDS:
            return
        here = ", ".join(snapshot.labels) or "none"
        for target in wanted:
            if target not in snapshot.labels and target not in self._told:
                log.warning(
                    "pressure.targets.%s is set, and there is no such target here now; those that are: %s",
                    target,
                    here,
                )
        self._told = frozenset(wanted)
        self._wanted = ()
