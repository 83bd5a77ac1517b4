"""What was: the history in buckets, the ticks that mattered, and the last words of a run that ended uncleanly."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from memwatch.history.notable_ticks import NotableTick, unpack
from memwatch.history.series import unit_of
from memwatch.history.tiers import Bucket
from memwatch.monitor.loop import Monitor
from memwatch.render import json as as_json
from memwatch_web.api.history_csv import build_file_name, render_csv
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import ProblemError

MAX_SERIES = 20
MAX_POINTS = 2000
MAX_TICKS = 500
NO_LAST_WORDS = "The run before this one ended cleanly, or there was none: there are no last words."
NOTHING_KEPT = "Nothing survives a restart here: start memwatchd with --state-dir DIR to have last words."


async def history(
    services: Services,
    series: Annotated[list[str] | None, Query(description="Names, repeated or separated by commas.")] = None,
    from_: Annotated[str | None, Query(alias="from", description="Unix seconds or RFC 3339.")] = None,
    to: Annotated[str | None, Query(description="Unix seconds or RFC 3339; now by default.")] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 300,
    format_: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
) -> Response:
    """The past, gathered into at most `points` buckets with least, mean and greatest value.

    As CSV it is a file with a row a bucket, three columns a series, and empty cells in gaps.
    """
    monitor = services.monitor
    names = parse_names(series, monitor.history.names())
    start, end = span(monitor, from_, to, monitor.rules.history_seconds)
    found = [series_json(monitor, name, start, end, points) for name in names]
    if format_ == "csv":
        return _csv_file(found, build_file_name(monitor.identity.host, start, end))
    return services.json({"from": start, "to": end, "points": points, "series": found})


def _csv_file(series: list[dict[str, Any]], name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(render_csv(series), media_type="text/csv; charset=utf-8; header=present", headers=headers)


async def ticks(
    services: Services,
    from_: Annotated[str | None, Query(alias="from", description="Unix seconds or RFC 3339.")] = None,
    to: Annotated[str | None, Query(description="Unix seconds or RFC 3339; now by default.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_TICKS)] = 100,
) -> Response:
    """Ticks that mattered, newest first: a level changed, a process was killed, or the hour had no worse one.

    Each has the processes that held the most memory then.
    """
    monitor = services.monitor
    start, end = span(monitor, from_, to, monitor.rules.coarse_seconds)
    notable_ticks = monitor.ticks.between(monitor.to_boottime(start), monitor.to_boottime(end) + 0.001, limit)
    return services.json([_tick_json(monitor, one) for one in reversed(notable_ticks)])


def _tick_json(monitor: Monitor, notable_ticks: NotableTick) -> dict[str, Any]:
    return as_json.tick_json(unpack(notable_ticks.data), monitor.to_wall(notable_ticks.boottime))


async def last_words(services: Services) -> Response:
    """The last two minutes of the run before this one, where that did not end cleanly."""
    words = services.monitor.unclean_shutdown
    if words is None:
        raise ProblemError(404, NO_LAST_WORDS if services.monitor.history_writer else NOTHING_KEPT)
    return services.json(as_json.unclean_shutdown_json(words))


def span(monitor: Monitor, from_: str | None, to: str | None, seconds: float) -> tuple[float, float]:
    """From when to when, as Unix seconds; by default the last `seconds` until now."""
    end = instant("to", to, monitor.to_wall(monitor.history.end))
    start = instant("from", from_, max(0.0, end - seconds))
    if start >= end:
        raise ProblemError(422, f"from is {start} and to is {end}: from must be earlier than to.")
    return start, end


def parse_names(values: list[str] | None, known: list[str]) -> list[str]:
    """The series asked for, or the used bytes of every pool when none is named."""
    names = [name for one in values or [] for name in one.split(",") if name]
    if values and not names:
        raise ProblemError(422, "series names nothing: leave it out for the used bytes of every pool.")
    if not names:
        return [name for name in known if name.startswith("pool.") and name.endswith(".used_bytes")]
    for name in names:
        if name not in known:
            raise ProblemError(
                422, f"series is {name[:80]!r}: no such series. There are: {', '.join(sorted(known))}."
            )
    if len(names) > MAX_SERIES:
        raise ProblemError(422, f"series names {len(names)} series: at most {MAX_SERIES} in one request.")
    return names


def instant(name: str, text: str | None, default: float) -> float:
    """A time parameter as Unix seconds."""
    if text is None:
        return default
    try:
        unix = float(text)
    except ValueError:
        unix = _rfc3339(text)
    if not math.isfinite(unix) or abs(unix) > 1e11:
        raise ProblemError(
            422, f"{name} is {text[:80]!r}: give Unix seconds or a time such as 2026-01-31T12:00:00Z."
        )
    refuse_before_1970(name, unix)
    return unix


def refuse_before_1970(name: str, unix: float) -> None:
    """Unix seconds below zero are a mistake: -1 was meant to be a second ago. Raises Problem."""
    if unix < 0:
        raise ProblemError(422, f"{name} is before 1970: use a time such as 2026-01-31T12:00:00Z.")


def _rfc3339(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00").replace(" ", "+"))
        return parsed.replace(tzinfo=parsed.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def series_json(monitor: Monitor, name: str, start: float, end: float, points: int) -> dict[str, Any]:
    shift = monitor.to_wall(0.0)
    buckets = monitor.history.query(name, start - shift, end - shift, points)

    def column(figure: Callable[[Bucket], float | None]) -> list[float | None]:
        return [figure(bucket) for bucket in buckets]

    return {
        "name": name,
        "unit": unit_of(name),
        "unix": [round(bucket.boottime + shift, 3) for bucket in buckets],
        "min": column(lambda bucket: bucket.minimum),
        "avg": column(lambda bucket: bucket.average),
        "max": column(lambda bucket: bucket.maximum),
    }
