"""Read the snapshots of a recording, and check it before replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.monitor.recording.file_format import KEY, DamagedPart, RecordingError, first_line, read_lines

HEADER = f'{{"{KEY}"'.encode()


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
