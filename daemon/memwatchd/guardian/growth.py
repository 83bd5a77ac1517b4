"""Net growth of processes since System RAM began to fall, without what they allocate and free meanwhile.

The fall is that from the most available bytes of the last ten minutes to the last reading. A process has grown by
at least the least that it held at the end of the fall, less the most that it held before it; and by at most the
most that it held at its end, less the least before it.

The fall has such limits as well. The figures of one scan are not of one time: some are newer than the oldest, at
which the fall is measured at least. And near zero MemAvailable stands still while processes grow: the kernel gives
them pages below its watermarks, or moves others to swap. At most, it fell until the newest figures, by the greater
of what MemAvailable and what free pages, file cache and free swap lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatchd.guardian.records import Candidate, PoolState, ProcessKey

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


class Left(NamedTuple):
    """Rest of System RAM: available bytes, and what the kernel can still give, with swap."""

    available: int
    pages: int


class Reading(NamedTuple):
    """Rest of System RAM and the footprints of processes at one time, in monotonic seconds.

    `least`: the least that was left until the newest figures of the same scan.
    """

    at: float
    left: Left
    least: Left
    sizes: Mapping[ProcessKey, int]

    @property
    def available(self) -> int:
        return self.left.available


class Growth:
    """Readings of the last ten minutes."""

    def __init__(self) -> None:
        self._pool: deque[tuple[float, Left]] = deque()
        self._readings: list[Reading] = []

    def add_pool(self, at: float, pool: PoolState) -> None:
        """Add a reading of System RAM, at rising times."""
        pages = pool.available_bytes if pool.ready_bytes is None else pool.ready_bytes + pool.swap_free_bytes
        self._pool.append((at, Left(pool.available_bytes, pages)))
        while at - self._pool[0][0] > POOL_SECONDS:
            self._pool.popleft()

    def falls(self, size: int) -> bool:
        """Return True if System RAM lost memory fast in the last seconds, however much is left."""
        return max(left.available for _, left in self._pool) - self._pool[-1][1].available >= FALL_RATIO * size

    def add(self, at: float, newest: float, found: Iterable[Candidate]) -> None:
        """Add the processes, if System RAM was read around that time.

        `at`, `newest`: when the oldest and the newest of their figures were read.
        """
        left = self._left(at)
        if left is None or (self._readings and at - self._readings[-1].at < MIN_GAP_SECONDS):
            return
        until = [left, *(one for when, one in self._pool if at < when <= newest)]
        if newest > at and (last := self._left(newest)) is not None:
            until.append(last)
        least = Left(min(one.available for one in until), min(one.pages for one in until))
        sizes = {one.key: one.footprint_bytes for one in found if one.footprint_bytes >= MIN_KEPT_BYTES}
        self._readings = thin([*self._readings, Reading(at, left, least, sizes)])

    def _left(self, at: float) -> Left | None:
        """Return what was left at a time, from the readings before and after it."""
        before = after = None
        for one in self._pool:
            if one[0] > at:
                after = one
                break
            before = one
        if before is None or after is None:
            # It is not older than a second: the loop reads at least that often.
            return before[1] if before and at - before[0] <= 1.0 else None
        part = (at - before[0]) / (after[0] - before[0])
        return Left(*(round(low + (high - low) * part) for low, high in zip(before[1], after[1], strict=True)))

    def measure(self, found: Iterable[Candidate]) -> tuple[tuple[Candidate, ...], float | None, float]:
        """Return the candidates with their growth, and the fall of System RAM in that time, at least and at most.

        In bytes a second. Without two readings, or if it did not fall, the first two are None.
        """
        if not self._readings or (fall := find_fall(self._readings)) is None:
            return tuple(found), None, 0.0
        grown = []
        for one in found:
            before = [reading.sizes.get(one.key, 0) for reading in fall.before]
            after = [reading.sizes.get(one.key, 0) for reading in fall.after]
            low = (min(after) - max(before)) / fall.seconds
            high = (max(after) - min(before)) / fall.seconds
            grown.append(replace(one, growth_bytes_per_second=low, max_growth_bytes_per_second=high))
        return tuple(grown), fall.bytes / fall.seconds, fall.most / fall.seconds


class Fall(NamedTuple):
    """A fall, at least and at most, with the readings before it and those at its end."""

    bytes: int
    most: int
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
    highest = readings[peak].left
    most = max(highest.available - last.least.available, highest.pages - last.least.pages)
    return Fall(size, most, last.at - readings[peak].at, readings[:first], readings[begin:])


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
