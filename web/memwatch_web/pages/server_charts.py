"""Charts that the server draws as SVG: the last minutes of a run, use of a neighbour, sizes of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from memwatch.reporting.history.last_run import Sample, UncleanShutdown
from memwatch.reporting.history.notable_ticks import Tick
from memwatch.reporting.render.drawing import TimeAxis
from memwatch.reporting.render.past import split_at_gaps
from memwatch_monitor.neighbours.tick import Tick as NeighbourTick

# In units of the drawings, which are stretched to the width of the page.
WIDTH, HEIGHT = 1000.0, 200.0
# A longer pause is drawn as a gap.
RUN_GAP_SECONDS = 2.5
RATIO_OF = "pressure.{}.ratio"
# Longer without a reading is a gap: the process was not among the largest.
PROCESS_GAP_SECONDS = 150.0
MIN_SPAN_SECONDS = 60.0
# Of a sparkline. The scale spans at least a tenth of the largest value, so that noise looks flat.
SPARK_WIDTH, SPARK_HEIGHT, MIN_SPAN = 60, 16, 0.1


def _join(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


class Line(Struct, frozen=True):
    """A line of the chart. `paths`: one list of SVG points for each piece without a gap."""

    label: str
    paths: tuple[str, ...]
    last_ratio: float


class Row(Struct, frozen=True):
    """One sample of the table: its time and the used fraction of each target, in the order of the lines."""

    unix: float
    ratios: tuple[float | None, ...]


class LastRunChart(Struct, frozen=True):
    start: float
    end: float
    lines: tuple[Line, ...]
    rows: tuple[Row, ...]


def build_chart(words: UncleanShutdown) -> LastRunChart:
    """Draw the use of each target until the end of the run."""
    labels = find_labels(words.last, words.samples)
    start, end = words.samples[0].unix, words.samples[-1].unix
    names = {RATIO_OF.format(target): label for target, label in labels.items()}
    lines = {name: line for name in names if (line := build_line(names[name], name, words.samples))}
    rows = [Row(one.unix, tuple(one.figures.get(name) for name in lines)) for one in words.samples]
    return LastRunChart(start, end, tuple(lines.values()), tuple(reversed(rows)))


def find_labels(last: Tick | None, samples: Sequence[Sample]) -> Mapping[str, str]:
    """Return the labels of the targets by id."""
    if last is not None:
        return {one.target: one.label for one in last.pressure}
    before, after = RATIO_OF.split("{}")
    names = {name for one in samples for name in one.figures if name.startswith(before) and name.endswith(after)}
    return {name[len(before) : -len(after)]: name[len(before) : -len(after)] for name in sorted(names)}


def build_line(label: str, name: str, samples: Sequence[Sample]) -> Line | None:
    start = samples[0].boottime
    axis = TimeAxis(start, max(samples[-1].boottime, start + 1e-9))
    known = [(one.boottime, ratio) for one in samples if (ratio := one.figures.get(name)) is not None]
    points = ((at, axis.at(at) * WIDTH, (1 - min(ratio, 1.0)) * HEIGHT) for at, ratio in known)
    return Line(label, tuple(map(_join, split_at_gaps(points, RUN_GAP_SECONDS))), known[-1][1]) if known else None


def draw_ticks(ticks: Sequence[NeighbourTick], step_seconds: float) -> LastRunChart | None:
    """Draw the use of each pool. None for fewer than two ticks. Longer than 2.5 steps without one is a gap."""
    if len(ticks) < 2:
        return None
    samples = [Sample(one.unix / step_seconds, one.unix, measure_use(one)) for one in ticks]
    lines = [build_line(pool.label, RATIO_OF.format(pool.id), samples) for pool in ticks[-1].pools]
    known: tuple[Line, ...] = tuple(line for line in lines if line)
    return LastRunChart(ticks[0].unix, ticks[-1].unix, known, ()) if known else None


def measure_use(tick: NeighbourTick) -> dict[str, float]:
    return {
        RATIO_OF.format(pool.id): pool.used / pool.size
        for pool in tick.pools
        if pool.used is not None and pool.size
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


def draw_sizes(sizes: Sequence[tuple[float, int]], shift: float) -> SizeChart | None:
    """Draw the sizes on a scale from zero. None for fewer than two readings."""
    if len(sizes) < 2:
        return None
    end = sizes[-1][0]
    axis = TimeAxis(min(sizes[0][0], end - MIN_SPAN_SECONDS), end)
    least, most = min(size for _, size in sizes), max(size for _, size in sizes)
    top = round_up(most)
    points = ((at, axis.at(at) * WIDTH, (1 - size / top) * HEIGHT) for at, size in sizes)
    pieces = split_at_gaps(points, PROCESS_GAP_SECONDS)
    return SizeChart(
        axis.start + shift,
        end + shift,
        top,
        least,
        most,
        tuple(_join(piece) for piece in pieces),
        tuple(_join([(piece[0][0], HEIGHT), *piece, (piece[-1][0], HEIGHT)]) for piece in pieces),
    )


def round_up(size: int) -> int:
    """Return a size of one digit in its binary unit, at least `size`."""
    unit = 1 << max(0, (max(size, 1).bit_length() - 1) // 10 * 10)
    return next(step * unit for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if step * unit >= size)


def build_path(past: Iterable[tuple[float, int]], start: float, seconds: float) -> str:
    """Return the SVG path of sizes over time, for SPARK_WIDTH by SPARK_HEIGHT. Empty for fewer than two points."""
    points = [(at, size) for at, size in past if at >= start]
    if len(points) < 2:
        return ""
    least, most = min(size for _, size in points), max(size for _, size in points)
    span = max(most - least, most * MIN_SPAN, 1)
    top = (most + least + span) / 2  # a flat line is in the middle
    places = [
        (round((at - start) / seconds * SPARK_WIDTH), round(1 + (top - size) / span * (SPARK_HEIGHT - 2)))
        for at, size in points
    ]
    return "M" + "L".join(f"{x} {y}" for x, y in _corners(places))


def _corners(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the inner points of horizontal segments."""
    inner = zip(places, places[1:], places[2:], strict=False)
    kept = [here for before, here, after in inner if not before[1] == here[1] == after[1]]
    return [places[0], *kept, places[-1]]
