"""Chart of the last minutes of a run, drawn by the server as SVG lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct

from memwatch.monitor.history.disk.last_run import Sample, UncleanShutdown
from memwatch.monitor.history.notable_ticks import Tick

WIDTH, HEIGHT = 1000.0, 200.0
# A longer pause is drawn as a gap.
GAP_SECONDS = 2.5
RATIO_OF = "pressure.{}.ratio"


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
    length = max(samples[-1].boottime - start, 1e-9)
    pieces: list[list[str]] = []
    before, last = -inf, 0.0
    for one in samples:
        ratio = one.figures.get(name)
        if ratio is None:
            continue
        if one.boottime - before > GAP_SECONDS:
            pieces.append([])
        x, y = (one.boottime - start) / length * WIDTH, (1 - min(ratio, 1.0)) * HEIGHT
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        before, last = one.boottime, ratio
    return Line(label, tuple(" ".join(piece) for piece in pieces), last) if pieces else None
