"""Bytes that the history writes in a day of virtual time, with the real writer, by file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.events import EventLog
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.history.notable_ticks import NotableTicks
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.ring_file import BLOCK, blocks_for, open_ring_set, prepare
from memwatch_monitor.history.tiers import History
from memwatch_monitor.history.writer import HistoryWriter
from support.fakes import FakeClock
from support.sample_parts import GIB, pressure, vram
from support.sample_snapshots import discrete_gpu

SIZE, DAY, GPUS = 64 << 20, 86_400.0, 8
BOOT = "5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e"
# A tick begins that much later than planned, at most.
LATE_SECONDS = 0.0005


def eight_gpus() -> Snapshot:
    """Return eight cards with ten processes, all levels OK. Such a tick takes 1 KB."""
    base = discrete_gpu()
    cards = tuple(
        vram(f"gpu{card}.vram", f"GPU {card} VRAM", size=24 * GIB, used=9 * GIB, reserved=0) for card in range(GPUS)
    )
    devices = tuple(
        replace(base.devices[0], id=f"gpu{card}", pci=f"0000:{card + 1:02}:00.0", allocates_from=(cards[card].id,))
        for card in range(GPUS)
    )
    targets = [one.target for one in base.pressure if "gpu" not in one.target] + [card.id for card in cards]
    several = [replace(base.processes[at % len(base.processes)], pid=5000 + at) for at in range(10)]
    return replace(
        base,
        pools=(*(pool for pool in base.pools if "gpu" not in pool.id), *cards),
        devices=devices,
        processes=tuple(several),
        pressure=tuple(pressure(target, Level.LOW, 0.4) for target in targets),
    )


class RunningHistory:
    """History of a machine on a virtual clock. `moving` of its series change each second, the others stay."""

    def __init__(self, folder: Path, series: int, moving: int) -> None:
        self.clock = FakeClock()
        self.history = History()
        self.holders = HolderHistory()
        self.writer = HistoryWriter(folder, SIZE, self.clock, BOOT)
        self.writer.restore(lambda: self.history, self.holders, NotableTicks(), EventLog())
        prepare(self.writer.files.ring_set, self.writer._stamp())
        self._random = random.Random(series)
        self._snapshot = eight_gpus()
        self._moving = [f"pool.gpu{number % 8}.figure{number}_bytes" for number in range(series)][:moving]
        names = [f"pool.gpu{number % 8}.figure{number}_bytes" for number in range(series)]
        self._figures = {name: self._random.random() * 64e9 for name in names}

    def tick(self, started: float) -> None:
        """Run the tick that was planned for `started`."""
        self.clock.now = round(started + self._random.random() * LATE_SECONDS, 9)
        for name in self._moving:
            self._figures[name] += self._random.gauss(0, 1e6)
        self.history.add_row(self.clock.boottime(), self._figures)
        self.holders.add(self.clock.boottime(), self._snapshot)
        self.writer.add(replace(self._snapshot, unix=self.clock.wall()), self.clock.boottime(), {}, None)

    def unwritten_seconds(self) -> float:
        """Return the time from the oldest row that is not on disk to now."""
        times = self.history.written_since(0, self.writer._next[0])[0].times
        return self.clock.boottime() - times[0] if times else 0.0


class DiskDay(NamedTuple):
    """Bytes a day by file, and the greatest age of a row that was not on disk."""

    written: Mapping[str, float]
    unwritten_seconds: float

    @property
    def megabytes(self) -> float:
        return sum(self.written.values()) / 1e6


def run_day(folder: Path, series: int, moving: int, hours: float) -> DiskDay:
    """Return what is written a day while all levels are OK, from that many. No thread runs."""
    running = RunningHistory(folder, series, moving)
    flush_at = began = running.clock.now
    longest = 0.0
    for second in range(round(hours * 3600)):
        if began + second >= flush_at:
            running.clock.now = flush_at
            longest = max(longest, running.unwritten_seconds())
            flush_at += running.writer.max_row_age - running.writer.flush()
        running.tick(began + second)
    running.writer.files.stop(0.0)
    ring_set = open_ring_set(folder, SIZE, running.clock.wall())
    found = {}
    for name, ring in ring_set.rings.items():
        ring.close()
        blocks = sum(blocks_for(record.length) for record in ring_set.contents[name].records)
        found[name] = blocks * BLOCK * DAY / (hours * 3600)
    return DiskDay(found, longest)
