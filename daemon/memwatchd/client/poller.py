"""A daemon that is asked while a program runs, by a thread of its own: nobody waits for its answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from memwatchd.client.address import Address
from memwatchd.client.errors import CommandError
from memwatchd.client.http import ask

POLL_SECONDS = 1.0
# A daemon that was idle makes its API for the first who asks, which takes a board seconds.
ANSWER_SECONDS = 20.0


class SnapshotPoller:
    """Asks for a snapshot once a second, and never again after there was no answer."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._snapshots: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_over = threading.Event()

    @property
    def is_answered(self) -> bool:
        """Whether there was an answer to every question that is not still open."""
        return not self._is_over.is_set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="memwatch-onlooker", daemon=True).start()

    def snapshots(self) -> Iterator[dict[str, Any]]:
        """Those that came since the last time."""
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
