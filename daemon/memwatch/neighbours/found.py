"""Machines that mDNS has found. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

MAX_FOUND = 64
# zeroconf delays answers by up to 1.35 s, and sends them even after the goodbye of its machine. Repeated goodbyes
# are ignored as duplicates, so the machine would stay for the 75 minutes that its announcement is valid.
LATE_SECONDS = 2.0
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

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._machines: dict[str, FoundMachine] = {}
        self._removed: dict[str, float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._machines)

    def put(self, service: str, machine: FoundMachine) -> None:
        """Add or replace a machine. Late answers of a process that was just removed are ignored."""
        with self._lock:
            if self._is_late(machine.run):
                return
            if service in self._machines or len(self._machines) < MAX_FOUND:
                self._machines[service] = machine

    def remove(self, service: str) -> None:
        with self._lock:
            machine = self._machines.pop(service, None)
            if machine is not None:
                self._removed = {run: at for run, at in self._removed.items() if self._is_late(run)}
                self._removed[machine.run] = self._now()

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

    def _is_late(self, run: str) -> bool:
        return run in self._removed and self._now() - self._removed[run] < LATE_SECONDS
