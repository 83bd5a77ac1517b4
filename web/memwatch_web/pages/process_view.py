"""Data of the page of one process: its parts, its past, and the chart of its size. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from memwatch.core.allocators import AllocatorReport
from memwatch.core.model import Absent, Bytes, Process
from memwatch.core.processes.growth import GrowthTracker, ProcessPast
from memwatch.core.snapshot import Snapshot

# Of the drawing; it is stretched to the width of the page.
WIDTH, HEIGHT = 1000.0, 200.0
# Longer without a reading is a gap: the process was not among the largest.
GAP_SECONDS = 150.0
MIN_SPAN_SECONDS = 60.0

# The kernel's oom_score and oom_score_adj.
OomScore: TypeAlias = "tuple[int, int] | Absent"


# Labels of its series on the page of one process.
FIGURE_WORDS = {
    "footprint_bytes": "footprint",
    "footprint_low_bytes": "footprint, at least",
    "footprint_high_bytes": "footprint, at most",
    "device_bytes": "GPU memory",
}


class SizeChart(Struct, frozen=True):
    """Size of a process over time. `lines` and `areas`: SVG points, one for each piece without a gap.

    `start_unix`, `end_unix`: the edges. `top_bytes`: the upper edge, a round size. `least_bytes` and `most_bytes`:
    the extremes.
    """

    start_unix: float
    end_unix: float
    top_bytes: int
    least_bytes: int
    most_bytes: int
    lines: tuple[str, ...]
    areas: tuple[str, ...]


class ProcessView(Struct, frozen=True):
    """One process. `ended`: it is no longer listed; the figures are its last ones, of `last_unix`.

    `series`: recorded footprint of its unit and container, by kind.
    """

    process: Process
    ended: bool
    last_unix: float
    growth: Mapping[str, Bytes]
    chart: SizeChart | None
    reports: tuple[AllocatorReport, ...]
    oom_score: OomScore
    series: Mapping[str, str] = field(default_factory=dict)


def find_process(snapshot: Snapshot, past: ProcessPast | None, pid: int) -> Process | None:
    """Return the listed process with this id, else the last one that was listed."""
    listed = next((one for one in snapshot.processes if one.pid == pid), None)
    return listed or (past.process if past else None)


def build_process_view(
    snapshot: Snapshot, growth: GrowthTracker, pid: int, shift: float, oom_score: OomScore
) -> ProcessView | None:
    """Return the view of a process, None if nothing is known of it. `shift`: Unix time minus boot time."""
    past = growth.find(pid)
    process = find_process(snapshot, past, pid)
    if process is None:
        return None
    ended = all(one.pid != pid for one in snapshot.processes)
    sizes = list(past.sizes) if past else []
    size = process.footprint_low_bytes
    if not ended and not isinstance(size, Absent):
        sizes.append((snapshot.unix - shift, size))
    return ProcessView(
        process,
        ended,
        sizes[-1][0] + shift if sizes else snapshot.unix,
        growth.growth_by_window(process),
        draw_sizes(sizes, shift),
        tuple(one for one in snapshot.claims if one.pid == pid),
        Absent.NOT_AVAILABLE if ended else oom_score,
    )


def draw_sizes(sizes: Sequence[tuple[float, int]], shift: float) -> SizeChart | None:
    """Draw the sizes on a scale from zero. None for fewer than two readings."""
    if len(sizes) < 2:
        return None
    end = sizes[-1][0]
    start = min(sizes[0][0], end - MIN_SPAN_SECONDS)
    least, most = min(size for _, size in sizes), max(size for _, size in sizes)
    top = round_up(most)
    pieces: list[list[tuple[float, float]]] = []
    before = start
    for at, size in sizes:
        if not pieces or at - before > GAP_SECONDS:
            pieces.append([])
        pieces[-1].append(((at - start) / (end - start) * WIDTH, (1 - size / top) * HEIGHT))
        before = at
    return SizeChart(
        start + shift,
        end + shift,
        top,
        least,
        most,
        tuple(_points(piece) for piece in pieces),
        tuple(_points([(piece[0][0], HEIGHT), *piece, (piece[-1][0], HEIGHT)]) for piece in pieces),
    )


def round_up(size: int) -> int:
    """Return a size of one digit in its binary unit, at least `size`."""
    unit = 1 << max(0, (max(size, 1).bit_length() - 1) // 10 * 10)
    return next(step * unit for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if step * unit >= size)


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
