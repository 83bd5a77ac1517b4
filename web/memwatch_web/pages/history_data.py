"""Chart data for the script of /history, with fewer digits than the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import Any

from memwatch.core.model import Absent, Pool
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.tiers import Bucket
from memwatch.monitor.render.composition import build_layers, find_sources, split, split_now
from memwatch.monitor.render.summary import find_worst
from memwatch_web.pages.annotations import Annotation
from memwatch_web.pages.charts import DASHES, Chart, Curve, find_pool
from memwatch_web.pages.history_query import WindowData

Json = dict[str, Any]
MIB = 1 << 20


def build_data(found: WindowData, numbered: Iterable[tuple[int, Annotation]], snapshot: Snapshot) -> Json:
    """Return the chart data. `numbered`: the flags listed below the charts."""
    window = found.window
    charts = [_chart_data(chart, found, snapshot) for chart in found.charts]
    _send_times_once([curve for chart in charts for curve in chart["curves"]])
    return {
        "start": window.start,
        "end": window.end,
        "now": snapshot.unix,
        "live": window.live,
        "grain_seconds": window.grain_seconds,
        "poll_seconds": window.range.poll_seconds,
        "charts": charts,
        "gaps": [[gap.start, gap.end] for gap in found.gaps],
        "flags": [_flag_data(number, flag, snapshot) for number, flag in numbered],
    }


def _chart_data(chart: Chart, found: WindowData, snapshot: Snapshot) -> Json:
    pool = next((one for one in found.stacked if one.id == chart.id), None)
    return {
        "id": chart.id,
        "label": chart.label,
        "unit": chart.unit,
        "top": chart.top,
        "stack": build_stack(pool, found, snapshot) if pool else None,
        "seconds_to_full": find_seconds_to_full(chart.id, snapshot),
        "runs": [[run.start, run.end, run.level.word] for run in found.spans_behind(chart)],
        "curves": [_curve_data(curve, found.buckets[curve.name], chart.unit) for curve in chart.curves],
    }


def build_chart_point(snapshot: Snapshot) -> Json:
    """Return what the chart of the overview adds with each sample, and the pool that it begins with: the worst."""
    worst = find_worst(snapshot)
    return {
        "pool": (find_pool(worst.target, snapshot) if worst else None)
        or next((p.id for p in snapshot.pools), None),
        "pools": {
            pool.id: {
                "used": None if isinstance(pool.used_bytes, Absent) else pool.used_bytes,
                "layers": [None if one is None else int(one) for one in split_now(pool, snapshot)],
                "seconds_to_full": find_seconds_to_full(pool.id, snapshot),
            }
            for pool in snapshot.pools
        },
    }


def find_seconds_to_full(target: str, snapshot: Snapshot) -> float | None:
    stated = [one.seconds_to_full for one in snapshot.pressure if one.target == target]
    return next((one for one in stated if not isinstance(one, Absent)), None)


def build_stack(pool: Pool, found: WindowData, snapshot: Snapshot) -> Json:
    """Return the composition of a pool in MiB: layers from the bottom, at the times of the curve of use."""
    sources = find_sources(pool, snapshot.shares)
    available, free, rest, *devices = (
        by_time(found.buckets.get(name, ()))
        for name in (sources.available, sources.free, sources.unattributed, *sources.devices)
    )
    used = found.buckets[sources.used]
    columns = [
        split(
            pool,
            one.average,
            available.get(one.boottime),
            free.get(one.boottime),
            rest.get(one.boottime),
            [held.get(one.boottime) for held in devices],
        )
        for one in used
    ]
    layers = build_layers(pool, sources)
    return {
        "layers": [
            {
                "holder": layer.holder,
                "label": layer.label,
                "values": [
                    None if column[number] is None else round((column[number] or 0) / MIB) for column in columns
                ],
            }
            for number, layer in enumerate(layers)
        ],
    }


def by_time(buckets: Sequence[Bucket]) -> dict[float, float | None]:
    return {one.boottime: one.average for one in buckets}


def _flag_data(number: int, flag: Annotation, snapshot: Snapshot) -> Json:
    """Return one flag. Level changes appear in the chart of their pool, other events in all charts."""
    place = find_pool(flag.target, snapshot) if flag.kind == "level" and flag.target else None
    return {"unix": flag.unix, "number": number, "word": flag.word, "kind": flag.kind, "chart": place}


def _round(value: float, places: int) -> float:
    return round(value, places) if places > 0 else round(round(value), places)


def _decimal_places(value: float, unit: str) -> int:
    """Return four, or for bytes that of the fifth significant digit: negative from 100,000 on."""
    return min(0, 4 - floor(log10(max(abs(value), 1.0)))) if unit == "bytes" else 4


def _send_times_once(curves: Sequence[Json]) -> None:
    """Leave out the times of all curves that have those of the first one: 100 kB for eight GPUs."""
    for one in curves[1:]:
        if one["unix"] == curves[0]["unix"]:
            one["unix"] = None


def _curve_data(curve: Curve, buckets: Sequence[Bucket], unit: str) -> Json:
    short = [_shorten(one, unit) for one in buckets]
    return {
        "name": curve.name,
        "colour": curve.colour,
        "dash": DASHES[curve.dash % len(DASHES)],
        "unix": [round(one.boottime, 1) for one in buckets],
        "avg": [mean for mean, _, _ in short],
        "below": [below for _, below, _ in short],
        "above": [above for _, _, above in short],
    }


def _shorten(bucket: Bucket, unit: str) -> tuple[float | None, float | None, float | None]:
    """Return the mean, rounded to five significant digits of bytes or four decimals: labels have four digits.

    With it come the distances of the minimum and the maximum, in no finer steps. They stay the same where memory
    changes steadily and are 0 where it hardly changes. The page of eight GPUs transfers 19 kB less.
    """
    mean, least, most = bucket.average, bucket.minimum, bucket.maximum
    if mean is None or least is None or most is None:
        return None, None, None
    places = _decimal_places(mean, unit)
    return _round(mean, places), _round(abs(mean - least), places), _round(abs(most - mean), places)
