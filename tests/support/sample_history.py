"""History after thirty days, with values that are easy or hard to compress."""

from __future__ import annotations

import gc
import random
import tracemalloc
from array import array
from collections.abc import Callable

from memwatch.reporting.history.tier import PLACES, Aggregates, RowBlock
from memwatch_monitor.history.tiers import History

SERIES = [f"pool.gpu{number % 8}.figure{number}_bytes" for number in range(100)]


def full_history(cells_of: Callable[[int], Aggregates], end: float = 3e6) -> History:
    """Return history with all rows of all tiers in use; `cells_of` makes that many rows of one series."""
    history = History()
    for tier in history.tiers:
        step = tier.spec.step_seconds
        times = array("d", [end - step * back for back in range(tier.rows, 0, -1)])
        tier.load(RowBlock(times, dict.fromkeys(SERIES, cells_of(tier.rows))))
    return history


def still(rows: int) -> Aggregates:
    """Return a value that never changes."""
    return Aggregates(array("f", [5e9]) * rows, array("f", [5e9]) * rows, array("H", [0]) * rows)


def jumping(rows: int) -> Aggregates:
    """Return values that vary by 20 MB around 20 GB, in pages, with as wide a span in every row."""
    least = array("f", [2e10 + 4096 * random.randrange(5000) for _ in range(rows)])
    most = array("f", [value + 4096 * random.randrange(5000) for value in least])
    return Aggregates(least, most, array("H", [random.randrange(PLACES) for _ in range(rows)]))


def noise(rows: int) -> Aggregates:
    """Return random bits, which compress worst."""
    least = array("f", random.randbytes(4 * rows))
    return Aggregates(least, array("f", random.randbytes(4 * rows)), array("H", random.randbytes(2 * rows)))


def memory_mb(cells_of: Callable[[int], Aggregates]) -> float:
    """Return the memory of all tiers, full, with 100 series."""
    gc.collect()
    tracemalloc.start()
    history = full_history(cells_of)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(history) == history.tiers[0].rows
    return used / 1e6
