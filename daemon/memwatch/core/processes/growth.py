"""Growth of processes: the size of each over the last hour, the fastest growing, and suspected leaks.

A suspected leak is steady growth over a whole window.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Annotated, NamedTuple

from msgspec import Struct

from memwatch.core import units
from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Process

# A leak's window has six parts. Fractions of its growth: the minimum in the last part, and the maximum in any part.
PARTS = 6
STILL_RATIO, JUMP_RATIO = 1 / 24, 0.5
# Windows reported for every process, and the time between readings of the recent past and of the last hour.
WINDOWS = (60.0, 600.0, 3600.0)
SHORT_SECONDS, HOUR_SECONDS = 10.0, 60.0
# 2.5 KiB per process: readings of ten minutes, of an hour, and of the leak rule's window.
READINGS, LEAK_READINGS = 61, 26
UNKNOWN_START = -1.0
# Tracks of processes that are temporarily not listed are kept, up to the larger of 100 and twice the listed ones.
MIN_TRACKS, TRACKS_PER_PROCESS = 100, 2
# A size that is less by this falls. Reclaim and allocators return some pages of a process that grows.
MIN_FALL_BYTES = 1 << 20
# A size that rose by less than this per second, for this time, no longer grows.
STILL_BYTES_PER_SECOND, STILL_SECONDS = 1 << 20, 10.0
# Lists of that time are kept this far apart.
LIST_SECONDS = 1.0


class LeakRules(Struct, frozen=True):
    """Thresholds of a suspected leak: growth over `window_seconds` by `min_bytes` and by `min_ratio`."""

    window_seconds: float = 3600.0
    min_bytes: int = 64 << 20
    min_ratio: float = 0.1


class LeakSuspect(Struct, frozen=True):
    """A process that grew steadily. `evidence` describes the growth in a sentence."""

    process: Process
    since_boottime: float
    grown_bytes: int
    evidence: str


def find_suspect(process: Process, readings: Sequence[tuple[float, int]], rules: LeakRules) -> LeakSuspect | None:
    """Return a suspect if the minimum size rose in each of six parts of the window. `readings`: oldest first.

    The minimum is used because a garbage-collected heap is a sawtooth. Growth in a single step, or growth that
    levels off, is not a leak.
    """
    newest = readings[-1][0]
    since, part_seconds = newest - rules.window_seconds, rules.window_seconds / PARTS
    troughs = compute_troughs(readings, since, part_seconds)
    if readings[0][0] > since + part_seconds / 2 or len(troughs) < PARTS:
        return None
    rises = [after - before for before, after in pairwise(troughs)]
    grown = troughs[-1] - troughs[0]
    if grown < max(rules.min_bytes, rules.min_ratio * troughs[0]) or min(rises) <= 0:
        return None
    if rises[-1] < STILL_RATIO * grown or max(rises) > JUMP_RATIO * grown:
        return None
    return LeakSuspect(process, since, grown, describe_growth(troughs, rules.window_seconds))


def compute_troughs(readings: Iterable[tuple[float, int]], since: float, part_seconds: float) -> list[int]:
    """Return the minimum size in each part of the window. A part without a reading is left out."""
    least: dict[int, int] = {}
    for at, size in readings:
        part = min(PARTS - 1, int((at - since) / part_seconds))
        if at >= since and size <= least.get(part, size):
            least[part] = size
    return [least[part] for part in sorted(least)]


def describe_growth(troughs: Sequence[int], window_seconds: float) -> str:
    """Describe the minimum size in each part of the window."""
    sizes = " → ".join(units.size(size) for size in troughs)
    grown = units.size(troughs[-1] - troughs[0])
    return f"grew steadily by {grown} in {units.duration(window_seconds)}: {sizes}"


class ProcessKey(NamedTuple):
    """Identity of a process. The process id alone may be reused; of one that is not visible only that is known."""

    pid: int
    start_time: float


class ProcessGrowth(Struct, frozen=True):
    """Size of a process at two times (boot time)."""

    process: Process
    from_boottime: float
    from_bytes: int
    to_boottime: float
    to_bytes: int
    whole: Annotated[bool, Doc("False if the process was first seen after the requested time.")]
    falling: Annotated[
        bool, Doc("True if it does not grow now: its newest readings fall, or it has not risen for ten seconds.")
    ] = False

    @property
    def grown_bytes(self) -> int:
        return self.to_bytes - self.from_bytes

    @property
    def measured_bytes(self) -> Bytes:
        """Return `grown_bytes`, or Absent for an older process that was read only once."""
        return self.grown_bytes if self.from_boottime < self.to_boottime else Absent.NOT_AVAILABLE


class ProcessPast(Struct, frozen=True):
    """The known sizes of a process in the last hour as (boot time, bytes), oldest first. `listed`: in the last
    sample."""

    process: Process
    sizes: tuple[tuple[float, int], ...]
    listed: bool


class SizeHistory:
    """Ring of the newest `max_count` sizes by time, at least `step` seconds apart."""

    __slots__ = ("_max_count", "_sizes", "_times")

    def __init__(self, max_count: int) -> None:
        self._times = array("d")
        self._sizes = array("q")
        self._max_count = max_count

    def add(self, boottime: float, size: int, step: float) -> bool:
        """Add a reading. Return False if the last one is less than `step` seconds old."""
        if self._times and boottime - self._times[-1] < step:
            return False
        self._times.append(boottime)
        self._sizes.append(size)
        if len(self._times) > self._max_count:
            del self._times[0], self._sizes[0]
        return True

    def at(self, boottime: float) -> tuple[float, int]:
        """Return the last reading at or before a time, else the first reading."""
        index = max(0, bisect_right(self._times, boottime) - 1)
        return self._times[index], self._sizes[index]

    def newest(self, count: int) -> list[int]:
        """Return the newest sizes, oldest first."""
        return self._sizes[-count:].tolist()

    def all(self) -> list[tuple[float, int]]:
        return list(zip(self._times, self._sizes, strict=True))


class ProcessTrack:
    """Sizes of one process by time."""

    __slots__ = ("_hour", "_leak", "_minimum", "_short", "process", "reported_at")

    def __init__(self, process: Process) -> None:
        self.process: Process = process
        self._short, self._hour, self._leak = (
            SizeHistory(READINGS),
            SizeHistory(READINGS),
            SizeHistory(LEAK_READINGS),
        )
        self._minimum: int | None = None
        self.reported_at: float = -inf

    def add(self, boottime: float, size: int, leak_step: float) -> bool:
        """Add a size. Return True if that added a reading for the leak rule: the minimum since the previous one."""
        self._short.add(boottime, size, 0.0)
        self._hour.add(boottime, size, HOUR_SECONDS)
        self._minimum = size if self._minimum is None else min(size, self._minimum)
        added = self._leak.add(boottime, self._minimum, leak_step)
        if added:
            self._minimum = None
        return added

    def at(self, boottime: float) -> tuple[float, int]:
        """Return the latest reading at or before a time, else the first reading."""
        early, late = self._hour.at(boottime), self._short.at(boottime)
        return late if late[0] <= boottime else early

    @property
    def newest(self) -> tuple[float, int]:
        return self._short.at(inf)

    def is_falling(self, size: Bytes) -> bool:
        """Return True if the size falls from one of the newest readings to the next, or to `size`, the one now."""
        sizes = self._short.newest(2) + ([] if isinstance(size, Absent) else [size])
        return any(before - after >= MIN_FALL_BYTES for before, after in pairwise(sizes))

    @property
    def short_past(self) -> list[tuple[float, int]]:
        return self._short.all()

    @property
    def whole_past(self) -> list[tuple[float, int]]:
        """Return the readings of the last hour: one a minute, then one in ten seconds."""
        late = self._short.all()
        return [one for one in self._hour.all() if one[0] < late[0][0]] + late

    def suspect(self, rules: LeakRules) -> LeakSuspect | None:
        return find_suspect(self.process, self._leak.all(), rules)


class GrowthTracker:
    """Sizes of the listed processes over time. Call `add` from one thread; everything else is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Drop all sizes, as before the first `add`."""
        self._tracks: dict[ProcessKey, ProcessTrack] = {}
        self._processes: Sequence[Process] = ()
        self._listed: frozenset[ProcessKey] = frozenset()
        self._ended: frozenset[ProcessKey] = frozenset()
        self._sizes: Mapping[ProcessKey, Bytes] = {}
        self._lists: deque[tuple[float, Mapping[ProcessKey, Bytes]]] = deque()
        self._seen_at = -inf
        self._suspects: dict[ProcessKey, LeakSuspect] = {}
        self._added_at = self._listed_at = -inf

    @property
    def boottime(self) -> float:
        """Return the boot time of the last `add` that took effect."""
        return self._added_at

    def add(
        self, boottime: float, processes: Sequence[Process], rules: LeakRules, ended: Collection[int] = ()
    ) -> list[LeakSuspect]:
        """Add the sizes of processes, at most every ten seconds. Return the new suspects.

        `ended`: PIDs of processes that have ended since they were listed. They are listed no more from now on, even
        while a driver still lists their memory.
        """
        self._update_listed(boottime, processes, ended)
        if boottime - self._added_at < SHORT_SECONDS or not processes:
            return []
        self._added_at = boottime
        leak_step = rules.window_seconds / (LEAK_READINGS - 2)
        with self._lock:
            to_judge = [process for process in processes if self._note(boottime, process, leak_step)]
            self._forget(len(processes))
            return self._judge(to_judge, rules)

    def _update_listed(self, boottime: float, processes: Sequence[Process], ended: Collection[int]) -> None:
        """Take each new list at once: a name that is ten seconds old may be that of a process that was killed."""
        self._seen_at = boottime
        is_new = bool(processes) and processes is not self._processes
        if not is_new and not ended:
            return
        with self._lock:
            if is_new:
                self._sizes = {key_of(one): one.footprint_low_bytes for one in processes}
                self._processes, listed = processes, frozenset(self._sizes)
                self._listed_at = boottime
                if not self._lists or boottime - self._lists[-1][0] >= LIST_SECONDS:
                    self._lists.append((boottime, self._sizes))
                while len(self._lists) > 1 and self._lists[1][0] <= boottime - STILL_SECONDS:
                    self._lists.popleft()
                self._ended &= listed
                self._listed = listed - self._ended
            gone = frozenset(key for key in self._listed if key.pid in ended)
            self._ended, self._listed = self._ended | gone, self._listed - gone

    def growth_by_window(self, process: Process) -> dict[str, Bytes]:
        """Return a process's growth by window in seconds ("60"). Absent if it was not observed that long."""
        with self._lock:
            track = self._tracks.get(key_of(process))
            return {f"{window:.0f}": _grown_in(track, window) for window in WINDOWS}

    def windows_of(self, process: Process, unix: float) -> dict[str, ProcessGrowth | None]:
        """Return a process's growth by window in seconds ("60"), in a part of it where it was seen later.

        `unix`: now. None for a process of which no size is known.
        """
        with self._lock:
            track = self._tracks.get(key_of(process))
            if track is None:
                return {f"{window:.0f}": None for window in WINDOWS}
            end, falling = self._added_at, self._is_falling(track)
            return {f"{window:.0f}": self._grown(track, end - window, unix - window, falling) for window in WINDOWS}

    def past(self, process: Process) -> list[tuple[float, int]]:
        """Return the known sizes of a process in the last ten minutes as (boot time, bytes), oldest first."""
        with self._lock:
            track = self._tracks.get(key_of(process))
            return track.short_past if track else []

    def find(self, pid: int) -> ProcessPast | None:
        """Return the last known process with this id, which may have ended. None if it was never listed or is no
        longer kept."""
        with self._lock:
            found = [(key, track) for key, track in self._tracks.items() if key.pid == pid]
            if not found:
                return None
            key, track = max(found, key=lambda one: one[1].newest[0])
            return ProcessPast(track.process, tuple(track.whole_past), key in self._listed)

    def since(self, boottime: float, unix: float, gone_seconds: float = 0.0) -> list[ProcessGrowth]:
        """Return the growth of the listed processes since a time, the largest first. New processes start at 0.

        `gone_seconds`: include those that were listed until this long ago.
        """
        with self._lock:
            tracks = self._now(gone_seconds)
            grown = [self._grown(track, boottime, unix, self._is_falling(track)) for track in tracks]
        return sorted(grown, key=lambda one: (-one.grown_bytes, one.process.pid))

    def _grown(self, track: ProcessTrack, boottime: float, unix: float, falling: bool) -> ProcessGrowth:
        """Return the growth up to the newest list, which is up to ten seconds younger than the newest reading: a
        page shows the same size of a process everywhere."""
        listed = self._sizes.get(key_of(track.process), Absent.NOT_AVAILABLE)
        newest, size = track.newest
        if not isinstance(listed, Absent) and self._listed_at > newest:
            newest, size = self._listed_at, listed
        at, before = track.at(boottime)
        start_time = track.process.start_time
        began = -inf if isinstance(start_time, Absent) else boottime + start_time - unix
        if at > boottime and began >= boottime:
            return ProcessGrowth(track.process, min(began, newest), 0, newest, size, True, falling)
        return ProcessGrowth(track.process, at, before, newest, size, at <= boottime, falling)

    def _is_falling(self, track: ProcessTrack) -> bool:
        """Return True if a process falls, or is as large as STILL_SECONDS ago. Lists are younger than readings."""
        key = key_of(track.process)
        size = self._sizes.get(key, Absent.NOT_AVAILABLE)
        if track.is_falling(size) or isinstance(size, Absent):
            return track.is_falling(size)
        old = [one for one in self._lists if one[0] <= self._seen_at - STILL_SECONDS]
        at, before = (old[-1][0], old[-1][1].get(key)) if old else (0.0, None)
        return isinstance(before, int) and size - before < (self._seen_at - at) * STILL_BYTES_PER_SECOND

    def lately(self, seconds: float, unix: float, gone_seconds: float = 0.0) -> list[ProcessGrowth]:
        """Return the growth in the last `seconds` before now, which is `unix`, as `since` does."""
        return self.since(self.boottime - seconds, unix - seconds, gone_seconds)

    def suspects(self) -> list[LeakSuspect]:
        with self._lock:
            return sorted(self._suspects.values(), key=lambda one: (-one.grown_bytes, one.process.pid))

    def _note(self, boottime: float, process: Process, leak_step: float) -> bool:
        """Add a process's size. Return True if there is a new reading for the leak rule."""
        size = process.footprint_low_bytes
        if isinstance(size, Absent):
            return False
        key = key_of(process)
        track = self._tracks.pop(key, None) or ProcessTrack(process)
        self._tracks[key] = track  # keep the tracks in the order of their last update
        track.process = process
        return track.add(boottime, size, leak_step)

    def _forget(self, listed: int) -> None:
        most = max(MIN_TRACKS, TRACKS_PER_PROCESS * listed)
        for key in list(self._tracks)[: max(0, len(self._tracks) - most)]:
            del self._tracks[key]

    def _judge(self, processes: Sequence[Process], rules: LeakRules) -> list[LeakSuspect]:
        """Return the new suspects: those not reported for a window. Without a new reading the verdict stays."""
        verdicts = {key: self._tracks[key].suspect(rules) for key in map(key_of, processes)}
        found = {key: one for key, one in verdicts.items() if one}
        new = {key for key in found if self._added_at - self._tracks[key].reported_at >= rules.window_seconds}
        for key in found:
            self._tracks[key].reported_at = self._added_at
        stay = self._suspects.items()
        self._suspects = {key: one for key, one in stay if key in self._listed and key not in verdicts} | found
        return [found[key] for key in found if key in new]

    def _now(self, gone_seconds: float) -> Iterator[ProcessTrack]:
        for key, track in self._tracks.items():
            if key in self._listed or (gone_seconds and track.newest[0] >= self._added_at - gone_seconds):
                yield track


def key_of(process: Process) -> ProcessKey:
    start_time = process.start_time
    return ProcessKey(process.pid, UNKNOWN_START if isinstance(start_time, Absent) else start_time)


def _grown_in(track: ProcessTrack | None, window: float) -> Bytes:
    # A window is complete if at most a tenth of it, or the time of one reading, is missing.
    if track is None:
        return Absent.NOT_AVAILABLE
    newest, size = track.newest
    at, before = track.at(newest - window)
    seen = newest - at >= window - max(SHORT_SECONDS, window / 10)
    return size - before if seen else Absent.NOT_AVAILABLE
