"""Incidents on disk: a ring of fixed size, allocated in advance, written by a thread that may hang.

A record is valid as a whole or not at all: a torn one, or one that is full of zeros, is left out at the next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from memwatch.core.clock import Clock
from memwatch.core.helper.codec import DecodeError
from memwatch.monitor.history.disk.boot_timeline import boot_bytes
from memwatch.monitor.history.disk.ring_file import RingContents, Stamp
from memwatch.monitor.history.disk.ring_set import file_time, open_ring
from memwatch.monitor.incidents.log import unpack
from memwatch.monitor.incidents.records import Incident

log: logging.Logger = logging.getLogger(__name__)

FILE = "incidents.ring"
SIZE_BYTES = 1 << 20
INCIDENT = 1


class IncidentStore:
    """Writer of the file of incidents. `put` only queues: it never waits for the disk. Thread-safe.

    Raises OSError if the file cannot be opened. A failure to write is logged once; later records are tried again.
    """

    def __init__(self, folder: Path, clock: Clock, boot_id: str, size_bytes: int = SIZE_BYTES) -> None:
        self._path = folder / FILE
        self._ring, self._contents, renamed = open_ring(self._path, size_bytes, file_time(clock.wall()))
        if renamed is not None:
            log.warning("%s", renamed.sentence)
        self._clock = clock
        self._boot = boot_bytes(boot_id)
        self._run = 1 + max((record.stamp.run for record in self._contents.records), default=0)
        self._waiting: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._complaint = ""
        self._thread = threading.Thread(target=self._write_until_stopped, name="incidents", daemon=True)

    def load(self) -> list[Incident]:
        """Return the latest state of each incident, oldest first. Those of another version are left out."""
        found: dict[str, Incident] = {}
        for record in self._contents.records:
            try:
                incident = unpack(self._ring.payload(record))
            except DecodeError:
                continue
            found.pop(incident.id, None)
            found[incident.id] = incident
        if self._contents.lost:
            log.warning("%s lost %d records", self._path, self._contents.lost)
        return list(found.values())

    def start(self) -> None:
        self._thread.start()

    def put(self, incident_id: str, data: bytes) -> None:
        """Queue the state of an incident. A later state replaces one that still waits."""
        with self._changed:
            self._waiting.pop(incident_id, None)
            self._waiting[incident_id] = data
            self._changed.notify_all()

    def stop(self, seconds: float = 0.7) -> None:
        """Write what waits, for at most `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if not self._thread.is_alive():
            self._ring.close()

    def _write_until_stopped(self) -> None:
        self._try(self._prepare)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
                waiting, self._waiting = self._waiting, {}
                stopping = self._stopping
            for data in waiting.values():
                self._try(partial(self._append, data))
            if stopping:
                return

    def _prepare(self) -> None:
        self._ring.prepare(self._contents)
        self._contents = RingContents()

    def _append(self, data: bytes) -> None:
        if not self._ring.ready:
            self._prepare()
        self._ring.append(INCIDENT, Stamp(self._run, self._clock.boottime(), self._clock.wall(), self._boot), data)
        self._ring.sync()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            complaint = f"cannot write incidents to {self._path}: {(error.strerror or str(error)).lower()}"
            if complaint != self._complaint:
                log.warning("%s; they are kept in memory", complaint)
            self._complaint = complaint
        else:
            self._complaint = ""
