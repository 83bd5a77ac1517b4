"""Write, check and read the snapshots of a recording."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.reporting.recording.file_format import (
    KEY,
    DamagedPart,
    RecordingError,
    RecordingFile,
    first_line,
    read_lines,
)
from memwatch.reporting.render.json import snapshot_json, to_bytes
from memwatch_monitor.feature import Feature

log = logging.getLogger(__name__)

HEADER = f'{{"{KEY}"'.encode()
# Snapshots that wait for a slow disk.
MAX_WAITING = 60


class RecordingInfo(Struct, frozen=True):
    """A playable recording. `seconds` is the time from its first snapshot to its last."""

    path: Path
    first: Snapshot
    seconds: float
    count: int
    damage: str

    @property
    def length(self) -> float:
        """Seconds that one round takes: the last snapshot is shown for one interval."""
        return self.seconds + self.first.interval_seconds


def open_recording(path: Path, salvage: bool) -> RecordingInfo:
    """Check the whole file. Raises RecordingError if it is damaged, unless `salvage` is set."""
    first_line(path)
    first = last = None
    count, damage = 0, ""
    for line in read_lines(path):
        if isinstance(line, DamagedPart):
            damage = damage or f"after {count} snapshots: {line.why}"
        elif line and not line.startswith(HEADER):
            first, last, count = first or line, line, count + 1
    if first is None or last is None:
        raise RecordingError(f"{path} has no snapshots{f' (damaged {damage})' if damage else ''}; record it again")
    if damage and not salvage:
        raise RecordingError(f"{path} is damaged {damage}; --salvage plays the {count} readable snapshots")
    try:
        beginning, end = snapshot_from(first), snapshot_from(last)
    except SnapshotDecodeError as error:
        raise RecordingError(f"{path} contains an invalid snapshot: {error}; record it with this version") from None
    return RecordingInfo(path, beginning, max(0.0, end.unix - beginning.unix), count, damage)


def read_frames(path: Path, on_unreadable: Callable[[], object] = lambda: None) -> Iterator[Snapshot]:
    """Yield the readable snapshots. One that is older than its predecessor is skipped.

    `on_unreadable` is called for each intact line that this version cannot read.
    """
    before = float("-inf")
    for line in read_lines(path):
        if isinstance(line, DamagedPart) or not line or line.startswith(HEADER):
            continue
        try:
            frame = snapshot_from(line)
        except SnapshotDecodeError:
            on_unreadable()
            continue
        if frame.unix >= before:
            before = frame.unix
            yield frame


class Recorder(Feature):
    """A running recording: a thread writes, so that a slow disk delays no tick.

    Opening raises RecordingError. A later error stops it and is logged.
    """

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
