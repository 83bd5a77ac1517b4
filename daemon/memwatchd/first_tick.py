"""First sample of a machine, with or without a daemon."""

from __future__ import annotations

import time

from memwatch.clock import SystemClock
from memwatch.monitor.loop import Monitor
from memwatch.monitor.sampler import Gatherer, Sampler
from memwatch.snapshot import Snapshot
from memwatchd import wiring
from memwatchd.settings.schema import Settings

# Deadline of the first tick for collectors that may block. NVML opens in 0.1 to 1 s, or hangs.
FIRST_SECONDS = 2.0


def first_tick(sampler: Gatherer, monitor: Monitor) -> Snapshot:
    """Return the first snapshot, after waiting up to FIRST_SECONDS for drivers.

    Before the drivers have reported their GPUs, MemTotal may contain memory that is not System RAM, and device ids
    may still change. So no client may get an earlier snapshot.
    """
    sampler.wait_for_first(FIRST_SECONDS)
    return monitor.tick()


def read_machine(settings: Settings) -> Snapshot:
    """Take one sample with all collectors and close them. Raise RecordingError if a recording is unreadable."""
    player = wiring.open_player(settings, time.time())
    if player is not None:
        identity = wiring.replay_identity(player)
        return Monitor(player, player.clock, wiring.build_rules(settings, player), identity).tick()
    roots, clock = wiring.build_roots(settings), SystemClock()
    sampler = Sampler(wiring.list_enabled_collectors(settings), clock)
    monitor = Monitor(sampler, clock, wiring.build_rules(settings), wiring.read_identity(roots))
    sampler.start()
    try:
        return first_tick(sampler, monitor)
    finally:
        sampler.stop()
