"""How processes grow: what each held over the last hour, who grew most, and who may be leaking."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct

from memwatch.model import Absent, Bytes, Process
from memwatch.processes.leaks import LeakRules, Suspect, suspect_of

# The windows that are told of every process, in seconds, and how far apart readings of the short past are.
WINDOWS = (60.0, 600.0, 3600.0)
SHORT_SECONDS, HOUR_SECONDS = 10.0, 60.0
# 2.5 KiB for a process: ten minutes, an hour, and the window of the rule about leaks.
READINGS, LEAK_READINGS = 61, 26
# A process that is not among the largest for a while is kept beside those that are, up to so many in all.
TRACKS_LEAST, TRACKS_PER_PROCESS = 100, 2


class Key(NamedTuple):
    """One process: the number alone may pass to another."""

    pid: int
    start_time: float


class Grown(Struct, frozen=True):
    """What a process held at two moments (boot time). `whole`: all that it grew by since the one asked for."""

    process: Process
    from_boottime: float
    from_bytes: int
    to_boottime: float
    to_bytes: int
    whole: bool

    @property
    def grown_bytes(self) -> int:
        return self.to_bytes - self.from_bytes


class Readings:
    """Sizes by time, at least `step` seconds apart: the newest so many."""

    __slots__ = ("_most", "_sizes", "_times")

    def __init__(self, most: int) -> None:
        self._times = array("d")
        self._sizes = array("q")
        self._most = most

    def add(self, boottime: float, size: int, step: float) -> bool:
        """False if it is too early for another."""
        if self._times and boottime - self._times[-1] < step:
            return False
        self._times.append(boottime)
        self._sizes.append(size)
        if len(self._times) > self._most:
            del self._times[0], self._sizes[0]
        return True

    def at(self, boottime: float) -> tuple[float, int]:
        """The last reading before or at a time, or the first there is."""
        index = max(0, bisect_right(self._times, boottime) - 1)
        return self._times[index], self._sizes[index]

    def all(self) -> list[tuple[float, int]]:
        return list(zip(self._times, self._sizes, strict=True))


class Track:
    """What one process held, and when."""

    __slots__ = ("_hour", "_leak", "_least", "_short", "process", "told_at")

    def __init__(self, process: Process) -> None:
        self.process = process
        self._short, self._hour, self._leak = Readings(READINGS), Readings(READINGS), Readings(LEAK_READINGS)
        self._least: int | None = None
        self.told_at = -inf

    def add(self, boottime: float, size: int, leak_step: float) -> bool:
        """Of all that falls between two readings for the rule about leaks, the least is kept. Whether it has a new
        one."""
        self._short.add(boottime, size, 0.0)
        self._hour.add(boottime, size, HOUR_SECONDS)
        self._least = size if self._least is None else min(size, self._least)
        added = self._leak.add(boottime, self._least, leak_step)
        if added:
            self._least = None
        return added

    def at(self, boottime: float) -> tuple[float, int]:
        """The reading nearest before a time, or the first there is."""
        early, late = self._hour.at(boottime), self._short.at(boottime)
        return late if late[0] <= boottime else early

    @property
    def newest(self) -> tuple[float, int]:
        return self._short.at(inf)

    @property
    def short_past(self) -> list[tuple[float, int]]:
        return self._short.all()

    def suspect(self, rules: LeakRules) -> Suspect | None:
        return suspect_of(self.process, self._leak.all(), rules)


class Growth:
    """Remembers what the listed processes held. One thread adds; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracks: dict[Key, Track] = {}
        self._listed: frozenset[Key] = frozenset()
        self._suspects: dict[Key, Suspect] = {}
        self._added_at = -inf

    @property
    def boottime(self) -> float:
        """When it took note last."""
        return self._added_at

    def add(self, boottime: float, processes: Sequence[Process], rules: LeakRules) -> list[Suspect]:
        """Take note, every ten seconds at most. Those that have just become suspects."""
        if boottime - self._added_at < SHORT_SECONDS or not processes:
            return []
        self._added_at = boottime
        leak_step = rules.window_seconds / (LEAK_READINGS - 2)
        with self._lock:
            to_judge = [process for process in processes if self._note(boottime, process, leak_step)]
            self._listed = frozenset(map(key_of, processes))
            self._forget(len(processes))
            return self._judge(to_judge, rules)

    def of(self, process: Process) -> dict[str, Bytes]:
        """What a process grew by, by window in seconds ("60"); absent where it is not known for so long."""
        with self._lock:
            track = self._tracks.get(key_of(process))
            return {f"{window:.0f}": _grown_in(track, window) for window in WINDOWS}

    def past(self, process: Process) -> list[tuple[float, int]]:
        """What a process held in the last ten minutes, by boot time, oldest first; as far as that is known."""
        with self._lock:
            track = self._tracks.get(key_of(process))
            return track.short_past if track else []

    def since(self, boottime: float, unix: float) -> list[Grown]:
        """What the processes of now grew by since then, the fastest first. One that began later began with 0."""
        with self._lock:
            grown = [_grown_since(track, boottime, unix) for track in self._now()]
        return sorted(grown, key=lambda one: (-one.grown_bytes, one.process.pid))

    def suspects(self) -> list[Suspect]:
        with self._lock:
            return sorted(self._suspects.values(), key=lambda one: (-one.grown_bytes, one.process.pid))

    def _note(self, boottime: float, process: Process, leak_step: float) -> bool:
        """Whether there is a new reading for the rule about leaks."""
        size = process.footprint_low_bytes
        if isinstance(size, Absent):
            return False
        key = key_of(process)
        track = self._tracks.pop(key, None) or Track(process)
        self._tracks[key] = track  # the one that was seen last stands last
        track.process = process
        return track.add(boottime, size, leak_step)

    def _forget(self, listed: int) -> None:
        most = max(TRACKS_LEAST, TRACKS_PER_PROCESS * listed)
        for key in list(self._tracks)[: max(0, len(self._tracks) - most)]:
            del self._tracks[key]

    def _judge(self, processes: Sequence[Process], rules: LeakRules) -> list[Suspect]:
        """The new suspects: those that were none for a window. Without a new reading the verdict stays."""
        verdicts = {key: self._tracks[key].suspect(rules) for key in map(key_of, processes)}
        found = {key: one for key, one in verdicts.items() if one}
        new = {key for key in found if self._added_at - self._tracks[key].told_at >= rules.window_seconds}
        for key in found:
            self._tracks[key].told_at = self._added_at
        stay = self._suspects.items()
        self._suspects = {key: one for key, one in stay if key in self._listed and key not in verdicts} | found
        return [found[key] for key in found if key in new]

    def _now(self) -> Iterator[Track]:
        return (track for key, track in self._tracks.items() if key in self._listed)


def key_of(process: Process) -> Key:
    return Key(process.pid, process.start_time)


def _grown_in(track: Track | None, window: float) -> Bytes:
    """A window counts as seen when a tenth of it, or one reading's worth, is missing at most."""
    if track is None:
        return Absent.NOT_AVAILABLE
    newest, size = track.newest
    at, before = track.at(newest - window)
    seen = newest - at >= window - max(SHORT_SECONDS, window / 10)
    return size - before if seen else Absent.NOT_AVAILABLE


def _grown_since(track: Track, boottime: float, unix: float) -> Grown:
    newest, size = track.newest
    at, before = track.at(boottime)
    began = boottime + track.process.start_time - unix
    if at > boottime and began >= boottime:
        return Grown(track.process, min(began, newest), 0, newest, size, whole=True)
    return Grown(track.process, at, before, newest, size, whole=at <= boottime)
