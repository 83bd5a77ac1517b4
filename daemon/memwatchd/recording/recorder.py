"""Record published snapshots in a separate thread, so that a slow disk delays no tick."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.feature import Feature
from memwatch.monitor.recording.file_format import RecordingFile
from memwatch.monitor.render.json import snapshot_json, to_bytes

log = logging.getLogger(__name__)

MAX_WAITING = 60


class Recorder(Feature):
    """A running recording. Opening raises RecordingError. A later error stops it and is logged."""

    name = "recording"

    def __init__(self, path: Path, host: str) -> None:
        self._path = path
        self._file = RecordingFile(path, host=host)
        self._waiting: deque[Snapshot] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._left_out = 0
        self._thread = threading.Thread(target=self._write_until_stopped, name="record", daemon=True)

    def start(self) -> None:
        log.info("recording to %s", self._path)
        self._thread.start()

    def on_publish(self, snapshot: Snapshot) -> None:
        """Queue a snapshot. Called in the tick's thread."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._left_out += 1
                return
            self._waiting.append(snapshot)
            self._changed.notify()

    def close(self, seconds: float = 2.0) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)

    def _write_until_stopped(self) -> None:
        try:
            while (snapshot := self._next()) is not None:
                self._file.write(to_bytes(snapshot_json(snapshot)))
            self._file.close()
        except OSError as error:
            log.error("recording to %s stopped: %s", self._path, error.strerror or error)
        else:
            left_out = f", {self._left_out} dropped: the disk was too slow" if self._left_out else ""
            log.info("recorded %d snapshots to %s%s", self._file.lines - 1, self._path, left_out)

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
            return self._waiting.popleft() if self._waiting else None
