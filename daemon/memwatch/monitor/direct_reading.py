"""A reading of this machine without a daemon, and the first tick of a daemon."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from msgspec import Struct

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.sampler import Gatherer, Sampler
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.loop import Monitor
from memwatch.monitor.rules import MonitorRules

# Deadline of the first tick for collectors that may block. NVML opens in 0.1 to 1 s, or hangs.
FIRST_SECONDS = 2.0


def first_tick(sampler: Gatherer, monitor: Monitor) -> Snapshot:
    """Return the first snapshot, after waiting up to FIRST_SECONDS for drivers.

    Before the drivers have reported their GPUs, MemTotal may contain memory that is not System RAM, and device ids
    may still change. So no client may get an earlier snapshot.
    """
    sampler.wait_for_first(FIRST_SECONDS)
    return monitor.tick()


class DirectReading(Struct, frozen=True):
    """Collectors and rules for reading a machine. `replay` returns a snapshot of a recording instead."""

    roots: Roots
    collectors: Sequence[CollectorEntry]
    rules: MonitorRules = MonitorRules()
    replay: Callable[[], Snapshot] | None = None

    def snapshots(self) -> Generator[Snapshot, None, None]:
        """Yield a snapshot on each call of `next`. The collectors stay open in between."""
        clock = SystemClock()
        sampler = Sampler(self.collectors, clock)
        monitor = Monitor(sampler, clock, self.rules, read_identity(self.roots))
        sampler.start()
        try:
            yield first_tick(sampler, monitor)
            while True:
                yield monitor.tick()
        finally:
            sampler.stop()

    def read(self) -> Snapshot:
        """Take one sample with all collectors and close them."""
        if self.replay is not None:
            return self.replay()
        with closing(self.snapshots()) as snapshots:
            return next(snapshots)
