"""Chart data for the script of /history, with fewer digits than the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memwatch.history.tiers import Bucket
from memwatch.snapshot import Snapshot
from memwatch_web.pages.annotations import Annotation
from memwatch_web.pages.charts import Chart, Curve, find_pool
from memwatch_web.pages.history_query import WindowData

Json = dict[str, Any]


def build_data(found: WindowData, numbered: Iterable[tuple[int, Annotation]], snapshot: Snapshot) -> Json:
    """Return the chart data. `numbered`: the flags listed below the charts."""
    window = found.window
    return {
        "start": window.start,
        "end": window.end,
        "now": snapshot.unix,
        "live": window.live,
        "grain_seconds": window.grain_seconds,
        "poll_seconds": window.range.poll_seconds,
        "charts": [_chart_data(chart, found) for chart in found.charts],
        "gaps": [[gap.start, gap.end] for gap in found.gaps],
        "flags": [_flag_data(number, flag, snapshot) for number, flag in numbered],
    }


def _chart_data(chart: Chart, found: WindowData) -> Json:
    return {
        "id": chart.id,
        "unit": chart.unit,
        "top": chart.top,
        "runs": [[run.start, run.end, run.level.word] for run in found.spans_behind(chart)],
        "curves": [_curve_data(curve, found.buckets[curve.name], chart.unit) for curve in chart.curves],
    }


def _flag_data(number: int, flag: Annotation, snapshot: Snapshot) -> Json:
    """Return one flag. Level changes appear in the chart of their pool, other events in all charts."""
    place = find_pool(flag.target, snapshot) if flag.kind == "level" and flag.target else None
    return {"unix": flag.unix, "number": number, "word": flag.word, "kind": flag.kind, "chart": place}


def _curve_data(curve: Curve, buckets: Sequence[Bucket], unit: str) -> Json:
    """Return one curve, rounded to whole bytes or five decimals."""
    digits = 0 if unit == "bytes" else 5

    def column(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else int(value) if not digits else round(value, digits) for value in values]

    return {
        "name": curve.name,
        "colour": curve.colour,
        "dashed": curve.dashed,
        "unix": [round(one.boottime, 1) for one in buckets],
        "min": column([one.minimum for one in buckets]),
        "avg": column([one.average for one in buckets]),
        "max": column([one.maximum for one in buckets]),
    }
