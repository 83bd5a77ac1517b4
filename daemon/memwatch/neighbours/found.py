"""Machines that mDNS has found. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from msgspec import Struct

MAX_FOUND = 64
FOUND_TEXT = "found by mDNS, not joined: add it to [[neighbours]] with its URL, {}"


class FoundMachine(Struct, frozen=True):
    """A machine that announces its memwatchd. `run` identifies the process, as in its ticks."""

    name: str
    url: str
    run: str

    @property
    def text(self) -> str:
        return FOUND_TEXT.format(self.url)


class FoundMachines:
    """Machines found, by the names of their services. More than MAX_FOUND are ignored."""

    def __init__(self) -> None:
        self._machines: dict[str, FoundMachine] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._machines)

    def put(self, service: str, machine: FoundMachine) -> None:
        with self._lock:
            if service in self._machines or len(self._machines) < MAX_FOUND:
                self._machines[service] = machine

    def remove(self, service: str) -> None:
        with self._lock:
            self._machines.pop(service, None)

    def clear(self) -> None:
        with self._lock:
            self._machines.clear()

    def others(self, runs: Collection[str], urls: Collection[str]) -> Sequence[FoundMachine]:
        """Return the machines that neither these processes nor these URLs are, by name."""
        with self._lock:
            found = list(self._machines.values())
        return sorted(
            (one for one in found if one.run not in runs and one.url not in urls), key=lambda one: one.name
        )
