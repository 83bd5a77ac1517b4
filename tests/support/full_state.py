"""State folder with thirty days of history: all rows of all tiers, and all notable ticks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from memwatch.reporting.history.notable_ticks import MAX_TICKS, build_tick, pack
from memwatch_monitor.history.records import ROWS, STARTED, STOPPED, TICK, pack_entry
from memwatch_monitor.history.ring_file import TIERS, Stamp
from memwatch_monitor.history.series import collect_figures
from memwatch_monitor.history.writer import Files
from support.sample_history import full_history, jumping
from support.sample_snapshots import mig_server

SIZE, SIZE_SETTING = 256 << 20, "256MiB"
# Boot time at the end of the saved run: longer than the history.
END = 3e6
BOOT = b"another boot".ljust(16)
ROWS_PER_RECORD = 400


def write_full_state(folder: Path) -> float:
    """Write the folder as an earlier boot would have left it, a minute before this one. Return that time."""
    folder.mkdir(mode=0o700)
    now = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 60.0
    files = Files(folder, SIZE, now)

    def stamp(boottime: float) -> Stamp:
        return Stamp(1, boottime, now - END + boottime, BOOT)

    files.start(stamp(0.0))
    files.append("flight", STARTED, stamp(0.0), b"")
    history = full_history(jumping, END)
    for name, tier in zip(TIERS, history.tiers, strict=True):
        for first in range(tier.first, tier.added, ROWS_PER_RECORD):
            block = tier.row_block(first, min(tier.added, first + ROWS_PER_RECORD))
            files.append(name, ROWS, stamp(block.times[-1]), pack_entry(block))
    _write_ticks(files, stamp)
    files.append("flight", STOPPED, stamp(END), b"")
    files.stop(30.0)
    return now


def _write_ticks(files: Files, stamp: Callable[[float], Stamp]) -> None:
    snapshot = mig_server()
    tick = build_tick(snapshot, END, collect_figures(snapshot))
    for number in range(MAX_TICKS):
        at = END - 60.0 * (MAX_TICKS - number)
        files.append("ticks", TICK, stamp(at), pack(replace(tick, seq=number, boottime=at)))
