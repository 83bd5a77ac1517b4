"""Net growth of processes since System RAM began to fall, without what they allocate and free meanwhile.

The fall is that from the most available bytes of the last ten minutes to the last reading. A process has grown by
at least the least that it held at the end of the fall, less the most that it held before it; and by at most the
most that it held at its end, less the least before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatchd.guardian.records import Candidate, ProcessKey

HORIZON_SECONDS = 600.0
# A fraction of the fall: readings within it from the start, and from the end, belong to before, and to the end.
END_RATIO = 1 / 8
# Readings closer than this to the one before are of the same scan.
MIN_GAP_SECONDS = 0.2
# Age of readings and how far apart they are kept: 70 at most, as the guardian has 20 MiB for all.
THINNING = ((120.0, 30.0), (15.0, 3.0))
# Smaller processes are not kept: they held nothing.
MIN_KEPT_BYTES = 16 << 20
# Own readings of System RAM are more frequent than those of processes, which may be as old as this when they
# arrive: the daemon reads them every 10 s at rest.
POOL_SECONDS = 10.0
# System RAM falls if it lost this fraction of its size in that time.
FALL_RATIO = 1 / 50


class Reading(NamedTuple):
    """Available bytes and the footprints of processes at one time, in monotonic seconds."""

    at: float
    available: int
    sizes: Mapping[ProcessKey, int]


class Growth:
    """Readings of the last ten minutes."""

    def __init__(self) -> None:
        self._pool: deque[tuple[float, int]] = deque()
        self._readings: list[Reading] = []

    def add_pool(self, at: float, available: int) -> None:
        """Add a reading of System RAM, at rising times."""
        self._pool.append((at, available))
        while at - self._pool[0][0] > POOL_SECONDS:
            self._pool.popleft()

    def falls(self, size: int) -> bool:
        """Return True if System RAM lost memory fast in the last seconds, however much is left."""
        return max(available for _, available in self._pool) - self._pool[-1][1] >= FALL_RATIO * size

    def add(self, at: float, found: Iterable[Candidate]) -> None:
        """Add the processes as they were at `at`, if System RAM was read around that time."""
        available = self._available(at)
        if available is None or (self._readings and at - self._readings[-1].at < MIN_GAP_SECONDS):
            return
        sizes = {one.key: one.footprint_bytes for one in found if one.footprint_bytes >= MIN_KEPT_BYTES}
        self._readings = thin([*self._readings, Reading(at, available, sizes)])

    def _available(self, at: float) -> int | None:
        """Return the available bytes at a time, from the readings before and after it."""
        before = after = None
        for one in self._pool:
            if one[0] > at:
                after = one
                break
            before = one
        if before is None or after is None:
            # It is not older than a second: the loop reads at least that often.
            return before[1] if before and at - before[0] <= 1.0 else None
        return round(before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0]))

    def measure(self, found: Iterable[Candidate]) -> tuple[tuple[Candidate, ...], float | None]:
        """Return the candidates with their growth, and the fall of System RAM in that time, in bytes a second.

        Both are None without two readings, or if it did not fall.
        """
        if not self._readings or (fall := find_fall(self._readings)) is None:
            return tuple(found), None
        grown = []
        for one in found:
            before = [reading.sizes.get(one.key, 0) for reading in fall.before]
            after = [reading.sizes.get(one.key, 0) for reading in fall.after]
            low = (min(after) - max(before)) / fall.seconds
            high = (max(after) - min(before)) / fall.seconds
            grown.append(replace(one, growth_bytes_per_second=low, max_growth_bytes_per_second=high))
        return tuple(grown), fall.bytes / fall.seconds


class Fall(NamedTuple):
    """A fall of the available bytes, with the readings before it and those at its end."""

    bytes: int
    seconds: float
    before: Sequence[Reading]
    after: Sequence[Reading]


def find_fall(readings: Sequence[Reading]) -> Fall | None:
    """Return the fall from the last of the highest readings to the newest; None if it did not fall."""
    last = readings[-1]
    peak = max(range(len(readings)), key=lambda index: (readings[index].available, index))
    size = readings[peak].available - last.available
    if size <= 0:
        return None
    first = peak + 1
    while readings[first].available > readings[peak].available - size * END_RATIO:
        first += 1
    begin = len(readings) - 1
    while begin > first and readings[begin - 1].available < last.available + size * END_RATIO:
        begin -= 1
    return Fall(size, last.at - readings[peak].at, readings[:first], readings[begin:])


def thin(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings of the last ten minutes, the older ones farther apart."""
    now = readings[-1].at
    kept: list[Reading] = []
    for index, one in enumerate(readings):
        age = now - one.at
        gap = next((gap for least, gap in THINNING if age > least), 0.0)
        # Blocks of fixed times, so that the same readings are kept at each call.
        is_next = not kept or gap == 0.0 or one.at // gap != readings[index - 1].at // gap
        if age <= HORIZON_SECONDS and is_next:
            kept.append(one)
    return kept
