"""State folder with an hour of history of a demo machine, a row each second."""

from __future__ import annotations

import random
import time
from itertools import cycle, islice
from pathlib import Path

from memwatch.core.snapshot import Snapshot
from memwatch_monitor.history.records import ROWS, STARTED, STOPPED, pack_entry
from memwatch_monitor.history.ring_file import TIERS, Stamp, boot_bytes
from memwatch_monitor.history.series import collect_figures
from memwatch_monitor.history.tiers import History
from memwatch_monitor.history.writer import Files
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames

SECONDS, ROWS_PER_RECORD = 3600, 400
JITTER_SECONDS = 0.02


def write_hour_of_past(folder: Path, demo: str) -> None:
    """Write the folder as a daemon would have left it that has just watched the demo's machine for an hour."""
    folder.mkdir(mode=0o700)
    frames = list(read_frames(path_of(demo)))
    end = time.clock_gettime(time.CLOCK_BOOTTIME)
    wall_offset, boot = time.time() - end, boot_bytes(frames[0].boot_id)

    def stamp(boottime: float) -> Stamp:
        return Stamp(1, boottime, boottime + wall_offset, boot)

    files = Files(folder, 64 << 20, end)
    files.start(stamp(end - SECONDS))
    files.append("flight", STARTED, stamp(end - SECONDS), b"")
    for name, tier in zip(TIERS, _replayed(frames, end).tiers, strict=True):
        for first in range(tier.first, tier.added, ROWS_PER_RECORD):
            block = tier.row_block(first, min(tier.added, first + ROWS_PER_RECORD))
            files.append(name, ROWS, stamp(block.times[-1]), pack_entry(block))
    files.append("flight", STOPPED, stamp(end), b"")
    files.stop(30.0)


def _replayed(frames: list[Snapshot], end: float) -> History:
    history, figures, jitter = History(), [collect_figures(frame) for frame in frames], random.Random(1)
    for number, row in enumerate(islice(cycle(figures), SECONDS)):
        history.add(end - SECONDS + number + jitter.uniform(0.0, JITTER_SECONDS), row)
    return history
