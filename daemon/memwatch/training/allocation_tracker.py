"""Allocation records that a program keeps itself: tag, size, location and age."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from memwatch.planning.arguments import (
    InvalidInputError,
    check_choice,
    check_count,
    check_function,
    check_seconds,
    check_text,
    parse_bytes,
)

Location = Literal["gpu", "cpu"]
LOCATIONS = ("gpu", "cpu")
MAX_LIVE = 1_000_000


class Allocation(Struct, frozen=True):
    id: int
    tag: str
    size_bytes: int
    location: Location
    at: float


class Holdings(Struct, frozen=True):
    """Live allocations: their number and bytes, the peak of their bytes, and bytes by tag."""

    live: int
    current_bytes: int
    peak_bytes: int
    by_tag: dict[str, int]


class AllocationTracker:
    """Tracker of allocations: `id = tracker.add("kv cache", 4 << 30)`, later `tracker.remove(id)`. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        check_function(clock, "clock", "time.monotonic")
        self._clock = clock
        self._live: dict[int, Allocation] = {}
        self._ids = itertools.count(1)
        self._current: Counter[Location] = Counter()
        self._peak: Counter[Location] = Counter()
        self._lock = threading.RLock()

    def add(self, tag: str, size_bytes: int | str, location: Location = "gpu") -> int:
        """Record an allocation and return its id.

        Raises InvalidInputError for an invalid tag, size or location, and above a million live allocations.
        """
        check_text(tag, "tag", "kv cache")
        count = parse_bytes(size_bytes, "size_bytes")
        check_choice(location, "location", LOCATIONS, "gpu")
        with self._lock:
            if len(self._live) >= MAX_LIVE:
                raise InvalidInputError(f"{MAX_LIVE} allocations are recorded, the most allowed; remove freed ones")
            found = Allocation(next(self._ids), tag, count, location, self._clock())
            self._live[found.id] = found
            self._current[location] += count
            self._peak[location] = max(self._peak[location], self._current[location])
        return found.id

    def remove(self, allocation_id: int) -> bool:
        """Remove an allocation. Returns False if there is none with that id. Raises InvalidInputError for no id."""
        check_count(allocation_id, "allocation_id", 1)
        with self._lock:
            found = self._live.pop(allocation_id, None)
            if found is not None:
                self._current[found.location] -= found.size_bytes
        return found is not None

    def find_old_allocations(self, older_than: float) -> list[Allocation]:
        """Return allocations older than `older_than` seconds, oldest first: candidates for a leak."""
        limit = self._clock() - check_seconds(older_than, "older_than", 600)
        with self._lock:
            return [one for one in self._live.values() if one.at < limit]

    def holdings(self, location: Location = "gpu") -> Holdings:
        check_choice(location, "location", LOCATIONS, "gpu")
        with self._lock:
            live = [one for one in self._live.values() if one.location == location]
            tags: Counter[str] = Counter()
            for one in live:
                tags[one.tag] += one.size_bytes
            return Holdings(len(live), self._current[location], self._peak[location], dict(tags.most_common()))
