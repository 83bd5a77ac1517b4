"""REST endpoints for the past: series, notable ticks, the last data of an unclean shutdown, and incidents."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from starlette.responses import Response

from memwatch.core.helper.codec import DecodeError
from memwatch.core.wire import rfc3339
from memwatch.reporting.answers import History, Series
from memwatch.reporting.history.notable_ticks import NotableTick, unpack
from memwatch.reporting.incidents.words import incident_json
from memwatch.reporting.render import json as as_json
from memwatch.reporting.render.json import JSON_TYPE
from memwatch_monitor.history.series import AllSeries, unit_of
from memwatch_monitor.history.tiers import Bucket
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.loop import Monitor
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.history_parameters import MAX_JITTER_SECONDS, build_file_name, parse_names, span
from memwatch_web.asgi.problems import ProblemError

MAX_POINTS = 2000
MAX_TICKS = 500
MAX_INCIDENTS, MAX_ID = 100, 40
FIGURES = ("min", "avg", "max")
# Time to decode and encode a tick, and one sample of a series in the last words.
TICK_SECONDS, FIGURE_SECONDS = 250e-6, 0.3e-6
NO_LAST_WORDS = "No last words: the previous run ended cleanly, or there was none."
NOTHING_KEPT = (
    "No last words: history is kept in memory only; start memwatchd with --state-dir DIR to keep it on disk."
)
NOTHING_BEFORE = "No last words: a recording has no previous run."


async def history(
    services: ApiServices,
    series: Annotated[list[str] | None, Query(description="Series names, repeated or separated by commas.")] = None,
    from_: Annotated[str | None, Query(alias="from", description="Unix seconds or RFC 3339.")] = None,
    to: Annotated[str | None, Query(description="Unix seconds or RFC 3339; now by default.")] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 300,
    format_: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
) -> Response:
    """Return history, aggregated into at most `points` buckets with minimum, average and maximum.

    The ten largest processes, units and containers have the series `process.PID-START.footprint_bytes` (START: Unix
    seconds), `unit.NAME.footprint_bytes` and `container.ID.footprint_bytes`, with `footprint_low_bytes` and
    `footprint_high_bytes` in its place where only bounds are known, and `device_bytes` where they hold GPU memory.
    `process.PID.footprint_bytes` is the latest process with that id.

    CSV has one row per bucket, three columns per series, and empty cells in gaps.
    """
    monitor = services.monitor
    past, shift = monitor.features.get(HistoryRecorder).series, monitor.to_wall(0.0)
    names = parse_names(series, past)
    start, end = span(monitor, from_, to, monitor.rules.history_seconds)

    def work() -> bytes:
        found = [series_json(past, shift, name, start, end, points) for name in names]
        if format_ == "csv":
            return render_csv(found).encode()
        return services.json_bytes(History(start, end, points, tuple(found)))

    seconds = past.estimate_seconds(len(names), start - shift, end - shift, points)
    # A row of CSV takes about as long as the bucket that it shows.
    key = ("history", *names, start, end, points, format_)
    body = await services.query(key, 2 * seconds if format_ == "csv" else seconds, work)
    if format_ == "csv":
        return _csv_file(body, build_file_name(monitor.identity.host, start, end))
    return Response(body, media_type=JSON_TYPE)


def series_json(past: AllSeries, shift: float, name: str, start: float, end: float, points: int) -> Series:
    """Return one series. `shift`: Unix time minus boot time, in seconds."""
    try:
        buckets = past.query(name, start - shift, end - shift, points)
    except KeyError:  # dropped for a new series since the names were checked
        buckets = []

    def column(figure: Callable[[Bucket], float | None]) -> tuple[float | None, ...]:
        return tuple(map(figure, buckets))

    return Series(
        name,
        unit_of(name),
        tuple(round(bucket.boottime + shift, 3) for bucket in buckets),
        column(lambda bucket: bucket.minimum),
        column(lambda bucket: bucket.average),
        column(lambda bucket: bucket.maximum),
    )


def _csv_file(body: bytes, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(body, media_type="text/csv; charset=utf-8; header=present", headers=headers)


def render_csv(series: Sequence[Series]) -> str:
    """Return three columns per series, such as `pool.ram.used_bytes avg [bytes]`. A gap is a row without values."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow(["time", *(f"{one.name} {figure} [{one.unit}]" for one in series for figure in FIGURES)])
    places = [{unix: index for index, unix in enumerate(one.unix)} for one in series]
    for unix in sorted({unix for one in series for unix in one.unix}):
        aggregates: list[Any] = [rfc3339(unix)]
        for one, place in zip(series, places, strict=True):
            index = place.get(unix)
            aggregates += (
                ["", "", ""] if index is None else [_cell(getattr(one, figure)[index]) for figure in FIGURES]
            )
        writer.writerow(aggregates)
    return output.getvalue()


def _cell(value: float | None) -> float | str:
    if value is None:
        return ""
    return int(value) if value.is_integer() else value


async def ticks(
    services: ApiServices,
    from_: Annotated[str | None, Query(alias="from", description="Unix seconds or RFC 3339.")] = None,
    to: Annotated[str | None, Query(description="Unix seconds or RFC 3339; now by default.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_TICKS)] = 100,
) -> Response:
    """Return notable ticks, newest first: with a change of level or an OOM kill, and the worst of each hour.

    Each has the largest processes at that time.
    """
    monitor = services.monitor
    start, end = span(monitor, from_, to, monitor.rules.coarse_seconds)
    notable_ticks = monitor.features.get(HistoryRecorder).ticks.between(
        monitor.to_boottime(start), monitor.to_boottime(end) + MAX_JITTER_SECONDS, limit
    )
    key = ("ticks", start, end, limit)
    body = await services.query(
        key, len(notable_ticks) * TICK_SECONDS, lambda: services.json_bytes(_ticks_json(monitor, notable_ticks))
    )
    return Response(body, media_type=JSON_TYPE)


def _ticks_json(monitor: Monitor, notable_ticks: Sequence[NotableTick]) -> list[dict[str, Any]]:
    """Return the ticks, newest first, without those of another version, which were counted at startup."""
    found = []
    for one in reversed(notable_ticks):
        with suppress(DecodeError):
            found.append(as_json.tick_json(unpack(one.data), monitor.to_wall(one.boottime)))
    return found


async def last_words(services: ApiServices) -> Response:
    """Return the last two minutes of the previous run if it did not end cleanly."""
    recorder = services.monitor.features.get(HistoryRecorder)
    words = recorder.unclean_shutdown
    if words is None:
        if services.monitor.simulated:
            raise ProblemError(404, NOTHING_BEFORE)
        raise ProblemError(404, NO_LAST_WORDS if recorder.writer else NOTHING_KEPT)
    figures = sum(len(sample.figures) for sample in words.samples)
    body = await services.query("last-words", figures * FIGURE_SECONDS, lambda: services.json_bytes(words))
    return Response(body, media_type=JSON_TYPE)


async def incidents(services: ApiServices, limit: Annotated[int, Query(ge=1, le=MAX_INCIDENTS)] = 20) -> Response:
    """Return incidents, newest first: what took the memory, what was killed and by whom, and what came back.

    An incident begins with a critical level (not with full GPU memory alone), a kill, a lost GPU, a gap in the
    samples, or an unclean end.
    """
    found = services.monitor.features.get(IncidentObserver).log.heads()[:limit]
    return services.json([incident_json(one) for one in found])


async def incident(services: ApiServices, incident_id: Annotated[str, Path(max_length=MAX_ID)]) -> Response:
    """Return an incident with its timeline, and with the memory of the largest processes over time."""
    found = services.monitor.features.get(IncidentObserver).log.find(incident_id)
    if found is None:
        raise ProblemError(404, "no such incident: GET /api/v1/incidents lists those that are kept.")
    return services.json(incident_json(found))
