"""Replay a recording in place of this machine. Its snapshots pass through the loop and the rules as usual."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.drivers.tegra.records import TegrastatsReading
from memwatch.core.findings import Findings
from memwatch.core.linux.wakeups import Wake
from memwatch.core.model import Absent
from memwatch.core.owners import Owner, sum_owners
from memwatch.core.pressure.signals import count_rise
from memwatch.core.reading.machine import COPIED
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import (
    KEY,
    DamagedPart,
    RecordingError,
    RecordingFile,
    first_line,
    read_lines,
)
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.feature import Feature
from memwatch_monitor.loop import Monitor

log = logging.getLogger(__name__)


class ReplayClock:
    """Clocks of a replay. They run `speed` times as fast and can be advanced."""

    def __init__(self, wall: float, speed: float) -> None:
        self.speed = speed
        self.began_unix = wall
        self._began = time.monotonic()
        self._skipped = 0.0

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self.speed + self._skipped

    def boottime(self) -> float:
        return self.monotonic()

    def wall(self) -> float:
        return self.began_unix + self.monotonic()

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


class ReplaySleep:
    """Waits for the next tick, scaled by the playback speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._woken = threading.Event()

    def wait(self, seconds: float, stop: threading.Event) -> Wake:
        if not stop.is_set():
            self._woken.wait(max(0.0, seconds / self._speed))
        return Wake.DUE

    def wake(self) -> None:
        self._woken.set()


class Player:
    """Replaces the sampler during replay. `rounds` counts how often the recording has restarted."""

    def __init__(self, contents: RecordingInfo, clock: ReplayClock) -> None:
        self.contents = contents
        self.clock = clock
        self.rounds = self._unreadable = 0
        self._frames: Iterator[Snapshot] = iter(())
        self._frame = contents.first
        self._coming: Snapshot | None = None
        self._statuses: tuple[CollectorStatus, ...] = ()
        self.began_again: Callable[[], object] = lambda: None
        self._rewind()

    @property
    def interval_seconds(self) -> float:
        return self.contents.first.interval_seconds

    def start(self) -> None:
        """Do nothing: a replay has no threads."""

    def stop(self) -> None:
        """Close the recording."""
        self._frames = iter(())

    def close(self) -> None:
        self.stop()

    def moved_bytes(self) -> float:
        """Return infinity: future changes are unknown."""
        return inf

    def set_fast(self, is_fast: bool) -> None:
        """Do nothing: a recording has a fixed interval."""

    def wait_for_first(self, seconds: float) -> None:
        """Return at once: recorded data is available immediately."""

    def release(self, seconds: float) -> list[str]:  # noqa: ARG002  no driver is open
        return []

    def gather(self) -> tuple[Findings, tuple[CollectorStatus, ...]]:
        """Return the recorded findings and statuses for the current playback position."""
        position = self.clock.monotonic()
        if position >= (self.rounds + 1) * self.contents.length:
            self._report_unreadable()
            self.rounds = int(position / self.contents.length)
            self._rewind()
            self.began_again()
        here = self.contents.first.unix + position - self.rounds * self.contents.length
        if self._coming is not None and self._coming.unix <= here:
            while self._coming is not None and self._coming.unix <= here:
                self._frame, self._coming = self._coming, next(self._frames, None)
            self._statuses = self._shift_statuses()
        return self._count_kills(build_findings(self._frame)), self._statuses

    def _count_kills(self, found: Findings) -> Findings:
        """Add the OOM kills of earlier rounds to the count since boot: events of that time are still shown."""
        kernel, earlier = found.kernel, self.rounds * self.contents.kills
        if not earlier or kernel is None or isinstance(kernel.oom_kills_total, Absent):
            return found
        return replace(found, kernel=replace(kernel, oom_kills_total=kernel.oom_kills_total + earlier))

    def _report_unreadable(self) -> None:
        """After the first round, log how many snapshots were left out."""
        for _ in self._frames:  # those after the end of the round
            pass
        if self._unreadable and not self.rounds:
            text = "%s: snapshots left out: %d cannot be read; play them with the version that made them"
            log.warning(text, self.contents.path, self._unreadable)

    def _count_unreadable(self) -> None:
        self._unreadable += 1

    def _rewind(self) -> None:
        self._frames = read_frames(self.contents.path, self._count_unreadable)
        self._frame = next(self._frames)
        self._coming = next(self._frames, None)
        self._statuses = self._shift_statuses()

    def _shift_statuses(self) -> tuple[CollectorStatus, ...]:
        """Return the statuses of the collectors with their times moved to playback time."""
        contents = self.contents
        later = self.clock.began_unix + self.rounds * contents.length - contents.first.unix
        return tuple([shift_status(status, later) for status in self._frame.collectors])


def play_through(monitor: Monitor, player: Player) -> None:
    """Play one round immediately, to fill the history.

    Logging is off meanwhile: the log would give these events the wrong time.
    """
    step, length = player.contents.first.interval_seconds, player.contents.length
    monitor.publisher.is_quiet = True
    for _ in range(int(length / step)):
        monitor.tick()
        player.clock.skip(step)
    monitor.publisher.is_quiet = False
    log.info("replayed the recording once (%s); its events are at /api/v1/events", units.duration(length))


def shift_status(status: CollectorStatus, later: float) -> CollectorStatus:
    """Move the time of the last success by `later` seconds."""
    unix = status.last_success_unix
    return status if isinstance(unix, Absent) or not later else replace(status, last_success_unix=unix + later)


def rebuild_owners(snapshot: Snapshot) -> tuple[Owner, ...]:
    """Sum up owners, which a recording does not contain. Without a complete list of processes there are none."""
    scan = snapshot.process_scan
    listed = sum(not isinstance(process.rss_bytes, Absent) for process in snapshot.processes)
    complete = not isinstance(scan, Absent) and scan.seen - scan.unreadable == listed
    return sum_owners(snapshot.processes) if complete else ()


def build_findings(snapshot: Snapshot) -> Findings:
    """Convert a snapshot to the findings of all collectors."""
    found = {name: getattr(snapshot, name) for name in COPIED} | {"owners": rebuild_owners(snapshot)}
    tegrastats = snapshot.tegrastats
    if not isinstance(tegrastats, Absent):
        blocks, size = tegrastats.largest_free_blocks, tegrastats.largest_free_block_bytes
        found["tegrastats"] = TegrastatsReading(0, 0, blocks, size)
    return Findings(**{name: value for name, value in found.items() if not isinstance(value, Absent)})


# Write, check and read the snapshots of a recording.

HEADER = f'{{"{KEY}"'.encode()
# Parts of a snapshot that change rarely.
SHARED = ("pools", "shares", "devices", "processes")
Part = TypeVar("Part")
# Snapshots that wait for a slow disk.
MAX_WAITING = 60


class RecordingInfo(Struct, frozen=True):
    """A playable recording. `seconds`: from its first snapshot to its last. `kills`: OOM kills in that time."""

    path: Path
    first: Snapshot
    seconds: float
    count: int
    damage: str
    kills: int = 0

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
    kills = count_rise(beginning.kernel.oom_kills_total, end.kernel.oom_kills_total)
    return RecordingInfo(path, beginning, max(0.0, end.unix - beginning.unix), count, damage, kills)


def read_frames(path: Path, on_unreadable: Callable[[], object] = lambda: None) -> Iterator[Snapshot]:
    """Yield the readable snapshots. One that is older than its predecessor is skipped.

    `on_unreadable` is called for each intact line that this version cannot read.
    """
    before: Snapshot | None = None
    for line in read_lines(path):
        if isinstance(line, DamagedPart) or not line or line.startswith(HEADER):
            continue
        try:
            frame = snapshot_from(line)
        except SnapshotDecodeError:
            on_unreadable()
            continue
        if before is None or frame.unix >= before.unix:
            before = frame if before is None else share_parts(frame, before)
            yield before


def share_parts(frame: Snapshot, before: Snapshot) -> Snapshot:
    """Return the frame with the unchanged parts of the one before, as collectors keep them on a real machine.

    The last three minutes stay in memory: of eight GPUs with MIG instances, 2 MiB less.
    """
    return replace(frame, **{name: _share(getattr(frame, name), getattr(before, name)) for name in SHARED})


def _share(parts: Sequence[Part], before: Sequence[Part]) -> tuple[Part, ...]:
    same = [old if old == new else new for new, old in zip(parts, before, strict=False)]
    return (*same, *parts[len(same) :])


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
