"""CPU use of memwatchd, for the pages."""

from __future__ import annotations

import threading
from collections import deque

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot

# Long enough to smooth the 10 ms steps of CPU time at 0.1% of a core.
CPU_WINDOW_SECONDS = 60.0
# Below this no value is shown: the first page would read a third of a core, the cost of rendering itself.
MIN_CPU_SECONDS = 10.0


class CpuShare:
    """CPU use of memwatchd as a fraction of one core, over the last minute of rendered snapshots. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque()

    def measure(self, snapshot: Snapshot) -> float | Absent:
        with self._lock:
            return self._measure(snapshot)

    def _measure(self, snapshot: Snapshot) -> float | Absent:
        now = (snapshot.monotonic, snapshot.self_usage.cpu_seconds)
        if self._seen and self._seen[-1] > now:
            self._seen.clear()
        if not self._seen or self._seen[-1] != now:
            self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1][0] < now[0] - CPU_WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        seconds = now[0] - since
        return (now[1] - before) / seconds if seconds >= MIN_CPU_SECONDS else Absent.NOT_AVAILABLE
