"""Time in which threads were runnable while the cores were busy with others, over a window."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct


class Delays(Struct, frozen=True):
    """Delay of each thread since its start, in seconds."""

    unix: float
    by_thread: dict[str, float]


@contextmanager
def recorded_delays(*pids: int) -> Iterator[list[Delays]]:
    """Record, ten times a second, how long each thread was runnable without a core."""
    recorded: list[Delays] = []
    ended = threading.Event()

    def record() -> None:
        while not ended.wait(0.1):
            recorded.append(Delays(time.time(), read_delays(pids)))

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    yield recorded
    ended.set()
    thread.join(5.0)


def read_delays(pids: Sequence[int]) -> dict[str, float]:
    delays = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # a thread that has ended since
                delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return delays


def most_lost(recorded: list[Delays], begin: float, end: float) -> float:
    """Return the delay of the thread that was delayed most: less than all threads together."""
    within = [one for one in recorded if begin <= one.unix <= end]
    if not within:
        return 0.0
    first, last = within[0].by_thread, within[-1].by_thread
    return max((last[thread] - first[thread] for thread in first.keys() & last.keys()), default=0.0)
