"""The latest snapshot, and whether its command lines are hidden."""

from __future__ import annotations

import threading

from msgspec.structs import replace

from memwatch.snapshot import Snapshot


class Publisher:
    """Holder of the latest snapshot. Thread-safe: a tick and a reload may run at the same time."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.hides_commands = False
        self._lock = threading.Lock()

    def publish(self, snapshot: Snapshot) -> Snapshot:
        """Publish a snapshot. Return it without command lines if they are hidden."""
        with self._lock:
            self.latest = without_commands(snapshot) if self.hides_commands else snapshot
            return self.latest

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
