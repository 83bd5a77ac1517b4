"""The latest snapshot, with the leases and silences in force, and the calls of the features that follow it."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.leases import Lease
from memwatch.core.silences import Silence, current
from memwatch.core.snapshot import Level, Snapshot
from memwatch_monitor.feature import Features

# Ticks come some milliseconds early or late: this fraction of an interval counts as a full one.
SAME_INTERVAL = 0.9


class Publisher:
    """Holder of the latest snapshot. Thread-safe: a tick, a reload, a lease and a silence may come at once.

    `hides_commands`: command lines are hidden. `is_quiet`: no feature follows what is published.
    """

    def __init__(self, features: Features) -> None:
        self.latest: Snapshot | None = None
        self.hides_commands: bool = False
        self.is_quiet: bool = False
        self.silences: tuple[Silence, ...] = ()
        self._features = features
        self._followed: tuple[float, Mapping[str, Level]] = -math.inf, {}
        self._leases: tuple[Lease, ...] = ()
        self._lock = threading.Lock()

    def publish(self, snapshot: Snapshot, now: Moment) -> Snapshot:
        """Publish a snapshot with leases and silences. Return it without command lines if they are hidden."""
        with self._lock:
            if self._leases or self.silences:
                snapshot = replace(snapshot, leases=self._leases, silences=current(self.silences, now))
            self.latest = snapshot = without_commands(snapshot) if self.hides_commands else snapshot
        if not self.is_quiet:
            self._call_features(snapshot)
        return snapshot

    def _call_features(self, snapshot: Snapshot) -> None:
        at, known = self._followed
        levels = {pressure.target: pressure.level for pressure in snapshot.pressure}
        is_early = snapshot.monotonic - at < SAME_INTERVAL * snapshot.interval_seconds
        if not is_early or levels != known or self._features.is_any_urgent():
            self._followed = snapshot.monotonic, levels
            self._features.call("on_publish", snapshot)

    def use_leases(self, leases: tuple[Lease, ...]) -> None:
        """Publish the latest snapshot again with these leases, so that the next client sees them."""
        with self._lock:
            self._leases = leases
            if self.latest is not None:
                self.latest = replace(self.latest, leases=leases)

    def use_silences(self, silences: tuple[Silence, ...], now: Moment) -> None:
        """Publish the latest snapshot again with these silences, so that the next client sees them."""
        with self._lock:
            self.silences = silences
            if self.latest is not None:
                self.latest = replace(self.latest, silences=current(silences, now))

    def hide_commands(self, hides: bool) -> None:
        """Hide command lines from now on, also those of the latest snapshot, or publish them again."""
        with self._lock:
            self.hides_commands = hides
            if hides and self.latest is not None:
                self.latest = without_commands(self.latest)


def without_commands(snapshot: Snapshot) -> Snapshot:
    if all(process.command is None for process in snapshot.processes):
        return snapshot
    return replace(snapshot, processes=tuple(replace(process, command=None) for process in snapshot.processes))
