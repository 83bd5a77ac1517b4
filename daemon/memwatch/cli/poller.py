"""Poll a daemon in a separate thread while a program runs, without blocking the caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from memwatch.cli.address import Address
from memwatch.cli.errors import CommandError
from memwatch.cli.http import ask

POLL_SECONDS = 1.0
# An idle daemon builds its API at the first request, which takes seconds on a slow board.
ANSWER_SECONDS = 20.0


class SnapshotPoller:
    """Poller of one snapshot per second. Stops after the first failed request."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._snapshots: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_over = threading.Event()

    @property
    def is_answered(self) -> bool:
        """True if no request has failed yet and `end` was not called."""
        return not self._is_over.is_set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="memwatch-poller", daemon=True).start()

    def snapshots(self) -> Iterator[dict[str, Any]]:
        """Yield the snapshots received since the last call."""
        while not self._snapshots.empty():
            yield self._snapshots.get()

    def end(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._snapshots.put(ask(self.address, "/api/v1/snapshot", seconds=ANSWER_SECONDS).json)
            except CommandError:
                self._is_over.set()
            self._is_over.wait(POLL_SECONDS)
