"""One reading of this machine, without a daemon."""

from __future__ import annotations

from memwatch.clock import SystemClock
from memwatch.collectors import enlist
from memwatch.monitor import Monitor
from memwatch.sampler import Sampler
from memwatch.snapshot import Snapshot
from memwatchd import wiring
from memwatchd.settings.model import Settings

SLOW_SOURCES_SECONDS = 2.0


def read_machine(settings: Settings) -> Snapshot:
    """Ask every source once, slow ones for two seconds at most, and let go of all of them."""
    roots, clock = wiring.roots_of(settings), SystemClock()
    sampler = Sampler(enlist(roots, wiring.collector_options_of(settings)), clock)
    monitor = Monitor(sampler, clock, wiring.rules_of(settings), wiring.identity_of(roots))
    sampler.start()
    try:
        sampler.wait_for_first(SLOW_SOURCES_SECONDS)
        return monitor.tick()
    finally:
        sampler.stop()
