"""The first reading of a machine, by a daemon or in place of one."""

from __future__ import annotations

import time

from memwatch.clock import SystemClock
from memwatch.monitor.loop import Monitor
from memwatch.monitor.sampler import Gatherer, Sampler
from memwatch.snapshot import Snapshot
from memwatchd import wiring
from memwatchd.settings.schema import Settings

# How long the first tick waits for collectors that may block. NVML opens in 0.1 to 1 s, or hangs.
FIRST_SECONDS = 2.0


def first_tick(sampler: Gatherer, monitor: Monitor) -> Snapshot:
    """The first snapshot, before anybody may ask for one. It waits a moment for drivers.

    Until they have said what GPUs there are, MemTotal may contain memory that is not System RAM, and devices
    would change their ids.
    """
    sampler.wait_for_first(FIRST_SECONDS)
    return monitor.tick()


def read_machine(settings: Settings) -> Snapshot:
    """Ask every collector once, and let go of all of them. Raises RecordingError where a recording is to be
    read."""
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
