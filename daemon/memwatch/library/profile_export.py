"""Export of a profile as JSON, CSV, or a self-contained HTML page with a plot."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from html import escape

from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.units import size
from memwatch.library.samples import Peak, Sample

Rows = Sequence[tuple[str, Sample]]
LINES = (
    ("pool_used_bytes", "System RAM used", "#8899aa"),
    ("rss_bytes", "resident set", "#2266cc"),
    ("reserved_bytes", "reserved by allocators", "#dd9922"),
    ("allocated_bytes", "allocated", "#cc3333"),
)
WIDTH, HEIGHT, MAX_POINTS = 1000, 320, 2000


def as_json(interval: float, peaks: Sequence[Peak], samples: Rows) -> str:
    return json.dumps(
        {
            "schema": 1,
            "interval_seconds": interval,
            "peaks": RECORDS.encode_all(peaks),
            "samples": [{"stage": stage, **RECORDS.encode(sample)} for stage, sample in samples],
        },
        indent=1,
    )


def as_csv(_interval: float, _peaks: Sequence[Peak], samples: Rows) -> str:
    """Render CSV. Unknown values are empty. A stage that a spreadsheet would run as a formula gets a quote.

    Python before 3.13 writes a carriage return without quotes, and readers begin a row there.
    """
    names = Sample.__struct_fields__
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["stage", *names])
    for stage, sample in samples:
        figures = [getattr(sample, name) for name in names]
        safe = f"'{stage}" if stage[:1] in "=+-@\t\r" and stage else stage
        safe = safe.replace("\r", "\n")
        writer.writerow([safe, *("" if isinstance(figure, Absent) else figure for figure in figures)])
    return output.getvalue()


def as_html(interval: float, peaks: Sequence[Peak], samples: Rows) -> str:
    rows = "".join(_row(peak) for peak in peaks)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Memory profile</title>"
        "<style>body{font:15px system-ui;margin:2rem;max-width:70rem}td,th{padding:.2rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}svg{width:100%;border:1px solid #ccc}"
        ".key{display:inline-block;width:1em;height:.7em}</style>"
        f"<h1>Memory profile</h1><p>{len(samples)} samples, every {interval:g} s</p>{_plot(samples)}"
        "<h2>Peak of each stage</h2><table><tr><th>stage<th>samples<th>allocated<th>reserved<th>resident set"
        f"<th>System RAM used</tr>{rows}</table><p>~ greatest of the samples; the true peak may be higher.</html>\n"
    )


def _row(peak: Peak) -> str:
    names = ("allocated_bytes", "reserved_bytes", "rss_bytes", "pool_used_bytes")
    aggregates = "".join(f"<td>{_peak_words(getattr(peak, name), name in peak.exact)}" for name in names)
    return f"<tr><td>{escape(peak.stage)}<td>{peak.samples}{aggregates}</tr>"


def _peak_words(figure: Bytes, exact: bool) -> str:
    return _words(figure) if exact or isinstance(figure, Absent) else f"~ {_words(figure)}"


def _words(figure: Bytes) -> str:
    return f"— {figure.value.replace('_', ' ')}" if isinstance(figure, Absent) else size(figure)


def _plot(samples: Rows) -> str:
    """Render one line per known value. Above `MAX_POINTS` samples, each point is the maximum of several."""
    step = -(-len(samples) // MAX_POINTS) or 1
    pieces = [[sample for _, sample in samples[at : at + step]] for at in range(0, len(samples), step)]
    columns = {name: [_greatest(piece, name) for piece in pieces] for name, _, _ in LINES}
    top = max((one for column in columns.values() for one in column if one is not None), default=0) or 1
    lines, keys = "", ""
    for name, words, colour in LINES:
        points = " ".join(
            f"{WIDTH * at / max(1, len(pieces) - 1):.1f},{HEIGHT * (1 - value / top):.1f}"
            for at, value in enumerate(columns[name])
            if value is not None
        )
        if points:
            lines += f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
            keys += f' <span class=key style="background:{colour}"></span> {words}'
    svg = f'<svg viewBox="0 -6 {WIDTH} {HEIGHT + 12}" role="img" aria-label="Memory over time">{lines}</svg>'
    return f"<p>maximum of the plot: {size(top)};{keys}</p>{svg}"


def _greatest(piece: Sequence[Sample], name: str) -> int | None:
    known = [figure for figure in (getattr(sample, name) for sample in piece) if isinstance(figure, int)]
    return max(known, default=None)


WRITERS: dict[str, Callable[[float, Sequence[Peak], Rows], str]] = {
    ".json": as_json,
    ".csv": as_csv,
    ".html": as_html,
}
