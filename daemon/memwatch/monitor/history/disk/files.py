"""Write to the ring files without raising: failures are counted, logged once, and retried later."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from msgspec import Struct

from memwatch.monitor.history.disk.ring_file import BLOCK, Stamp
from memwatch.monitor.history.disk.ring_set import RingSet, open_ring_set, prepare

log: logging.Logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0


class FilesStatus(Struct, frozen=True):
    """Statistics of writing. `lost` counts records that were damaged, or unreadable, when this run started.

    `aside`: names of files with the damaged data. `complaint`: why nothing can be written now, or empty.
    """

    folder: Path
    size_bytes: int
    written_bytes: int
    writes: int
    syncs: int
    sync_seconds: float
    errors: int
    dropped: int
    lost: int
    aside: tuple[str, ...]
    complaint: str


class Files:
    """The rings of one folder. `append` is not thread-safe. A separate thread waits for fdatasync."""

    def __init__(self, folder: Path, size_bytes: int, unix: float) -> None:
        self.ring_set: RingSet = open_ring_set(folder, size_bytes, unix)
        self.dropped: int = 0
        self._folder = folder
        self._written = self._writes = self._syncs = self._errors = 0
        self._sync_seconds = 0.0
        self._complaint = ""
        self._retry_at = 0.0
        self._unsynced: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._syncer = threading.Thread(target=self._sync_until_stopped, name="store-sync", daemon=True)

    def forget_contents(self) -> None:
        """Drop the records' index after a restore, except for rings that must be rewritten to become smaller."""
        self.ring_set.contents = {
            name: contents for name, contents in self.ring_set.contents.items() if not self._fits(name)
        }

    def start(self, stamp: Stamp) -> None:
        for complaint in self.ring_set.complaints:
            log.warning("%s", complaint)
        self._prepare(stamp)
        self._syncer.start()

    def append(self, name: str, kind: int, stamp: Stamp, payload: bytes) -> bool:
        """Write a record. Return False if it cannot be written now."""
        ring = self.ring_set.rings.get(name)
        if ring is not None and not ring.ready and time.monotonic() >= self._retry_at:
            self._prepare(stamp)
        if ring is None or not ring.ready:
            self.dropped += 1
            return False
        try:
            self._written += ring.append(kind, stamp, payload)
        except OSError as error:
            ring.ready = False
            self._fail(error)
            return False
        self._writes += 1
        with self._changed:
            self._unsynced.add(name)
            self._changed.notify_all()
        return True

    def stop(self, seconds: float) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._syncer.is_alive():
            self._syncer.join(seconds)
        if not self._syncer.is_alive():
            for ring in self.ring_set.rings.values():
                ring.close()

    def status(self) -> FilesStatus:
        return FilesStatus(
            self._folder,
            sum(ring.blocks * BLOCK for ring in self.ring_set.rings.values() if ring.ready),
            self._written,
            self._writes,
            self._syncs,
            self._sync_seconds,
            self._errors,
            self.dropped,
            self.ring_set.lost,
            tuple(self.ring_set.aside),
            self._complaint,
        )

    def _fits(self, name: str) -> bool:
        return self.ring_set.rings[name].fits

    def _prepare(self, stamp: Stamp) -> None:
        try:
            prepare(self.ring_set, stamp)
        except OSError as error:
            self._fail(error)
        else:
            self._resume()

    def _resume(self) -> None:
        if self._complaint:
            log.warning("writing history to %s again", self._folder)
        self._complaint = ""

    def _fail(self, error: OSError) -> None:
        self._errors += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        complaint = f"cannot write history to {self._folder}: {(error.strerror or str(error)).lower()}"
        if complaint != self._complaint:
            log.warning("%s; keeping it in memory, retrying every minute", complaint)
        self._complaint = complaint

    def _sync_until_stopped(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._unsynced) or self._stopping)
                names, self._unsynced = self._unsynced, set()
                stopping = self._stopping
            started = time.monotonic()
            for name in names:
                self._sync(name)
            if names:
                self._syncs += 1
                self._sync_seconds = time.monotonic() - started
            if stopping and not self._unsynced:
                return

    def _sync(self, name: str) -> None:
        try:
            self.ring_set.rings[name].sync()
        except OSError as error:
            self._fail(error)
        else:
            # Avoid flapping: report recovery only after RETRY_SECONDS without an error.
            if self._complaint and time.monotonic() >= self._retry_at and self._all_ready():
                self._resume()

    def _all_ready(self) -> bool:
        return all(ring.ready for ring in self.ring_set.rings.values())
