"""`memwatch history`: the history of a daemon as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import click

from memwatch.cli.address import Address
from memwatch.cli.context import Number, build_context, common, seconds_within
from memwatch.cli.http import ask
from memwatch.cli.tables import columns
from memwatch.cli.times import clock
from memwatch.monitor.render import words as wording

Json = dict[str, Any]
BLOCKS = "▁▂▃▄▅▆▇█"


@click.command(short_help="Min/avg/max over time.")
@click.option(
    "--series",
    multiple=True,
    metavar="NAME",
    help="Series, such as pool.ram.used_bytes or process.PID.footprint_bytes. May be repeated.",
)
@click.option(
    "--last",
    "seconds",
    default="10m",
    callback=seconds_within("1s", "366d", "10m"),
    metavar="DURATION",
    help="Time range, up to now.  [default: 10m]",
)
@click.option("--points", type=Number(2, 200, 20), default=20, help="Approximate number of rows.  [default: 20]")
@common
def history(series: tuple[str, ...], seconds: float, points: int, url: Address | None, as_json: bool) -> int:
    """Show min, avg and max of each pool, or of the given series, over a time range."""
    context = build_context(url, as_json)
    start = context.read_snapshot().unix - seconds
    query: list[tuple[str, object]] = [("from", start), ("points", points)]
    query += [("series", name) for name in series]
    answer = ask(context.address, f"/api/v1/history?{urlencode(query)}")
    return context.show(answer.json, lambda: render_lines(answer.json), answer.is_simulated)


def render_lines(found: Json) -> Iterator[str]:
    for one in found["series"]:
        if not any(value is not None for value in one["max"]):
            yield f"{one['name']}: no data in this time range"
            continue
        yield f"{one['name']}  {sparkline(one['max'])}"
        rows: list[tuple[str, ...]] = [("time", "min", "avg", "max")]
        for unix, low, mean, high in zip(one["unix"], one["min"], one["avg"], one["max"], strict=True):
            rows.append((clock(unix), *(_words(value, one["unit"]) for value in (low, mean, high))))
        yield from columns(rows, right=frozenset({1, 2, 3}))


def _words(value: float | None, unit: str) -> str:
    if value is None:
        return wording.DASH
    if unit == "bytes":
        return wording.size(int(value))
    return wording.ratio(value) if unit == "ratio" else f"{value:g}"


def sparkline(values: list[float | None]) -> str:
    """Return a sparkline scaled from 0 to the maximum. A gap is a space."""
    top = max((value for value in values if value is not None), default=0) or 1
    steps = len(BLOCKS) - 1
    return "".join(" " if value is None else BLOCKS[min(steps, round(value / top * steps))] for value in values)
