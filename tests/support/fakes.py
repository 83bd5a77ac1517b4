"""Fakes: a manual clock, a wait of a thread that follows it, and a collector that can fail."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from msgspec import Struct

from memwatch.core.findings import Findings
from memwatch.core.model import Pool, PoolKind, Quality
from support.waiting import wait_until

GIB = 1 << 30
LOOK_SECONDS = 0.005


class FakeClock(Struct):
    """Manual clock for all three time scales."""

    now: float = 1000.0
    slept: float = 0.0
    wall_offset: float = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now + self.slept

    def wall(self) -> float:
        return self.boottime() + self.wall_offset


@dataclass
class FakeCollector:
    """Collector that returns the given findings, or raises the given error."""

    name: str = "fake"
    period_seconds: float = 0.0
    may_block: bool = False
    findings: Findings = field(default_factory=Findings)
    error: Exception | None = None
    calls: int = 0
    closed: bool = False

    def collect(self) -> Findings:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.findings

    def close(self) -> None:
        self.closed = True


def ram(used: int, size: int = 64 * GIB, pool_id: str = "ram") -> Pool:
    """Return System RAM with this much used."""
    return Pool(
        id=pool_id,
        kind=PoolKind.SYSTEM_RAM,
        label="System RAM",
        size_bytes=size,
        used_bytes=used,
        available_bytes=size - used,
        free_bytes=(size - used) // 2,
        source="test",
        quality=Quality.MEASURED,
    )


class ManualWait:
    """Wait that ignores the pause: the thread looks at its clock again after 5 ms, or when it is notified."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self, waiting: threading.Event | threading.Condition, _seconds: float | None) -> None:
        self._looks += 1
        waiting.wait(LOOK_SECONDS)

    def settle(self) -> None:
        """Return when the thread has looked twice from now on, and found nothing to do."""
        wanted = self._looks + 2
        wait_until(lambda: self._looks >= wanted)
