"""`memwatch history`: the recent past of a daemon in lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import click

from memwatch.render import words as wording
from memwatchd.client.address import Address
from memwatchd.client.context import Number, build_context, common, seconds_within
from memwatchd.client.http import ask
from memwatchd.client.tables import columns

Json = dict[str, Any]
BLOCKS = "▁▂▃▄▅▆▇█"


@click.command(short_help="The recent past: least, mean and greatest.")
@click.option("--series", multiple=True, metavar="NAME", help="Such as pool.ram.used_bytes; may be repeated.")
@click.option(
    "--last",
    "seconds",
    default="10m",
    callback=seconds_within("1s", "366d", "10m"),
    metavar="DURATION",
    help="How far.  [default: 10m]",
)
@click.option("--points", type=Number(2, 200, 20), default=20, help="About so many lines.  [default: 20]")
@common
def history(series: tuple[str, ...], seconds: float, points: int, url: Address | None, as_json: bool) -> int:
    """The recent past of each pool, or of the series named: least, mean and greatest of each stretch."""
    question = build_context(url, as_json)
    now = ask(question.address, "/api/v1/snapshot").json["unix"]
    query: list[tuple[str, object]] = [("from", now - seconds), ("points", points)]
    query += [("series", name) for name in series]
    answer = ask(question.address, f"/api/v1/history?{urlencode(query)}")
    return question.show(answer.json, lambda: render_lines(answer.json), answer.is_simulated)


def render_lines(found: Json) -> Iterator[str]:
    for one in found["series"]:
        if not any(value is not None for value in one["max"]):
            yield f"{one['name']}: nothing is remembered of that time"
            continue
        yield f"{one['name']}  {sparkline(one['max'])}"
        rows: list[tuple[str, ...]] = [("time", "least", "mean", "greatest")]
        for unix, low, mean, high in zip(one["unix"], one["min"], one["avg"], one["max"], strict=True):
            rows.append((wording.clock(unix), *(_words(value, one["unit"]) for value in (low, mean, high))))
        yield from columns(rows, right=frozenset({1, 2, 3}))


def _words(value: float | None, unit: str) -> str:
    if value is None:
        return wording.DASH
    if unit == "bytes":
        return wording.size(int(value))
    return wording.ratio(value) if unit == "ratio" else f"{value:g}"


def sparkline(values: list[float | None]) -> str:
    """From 0 to the greatest; a gap is a space."""
    top = max((value for value in values if value is not None), default=0) or 1
    steps = len(BLOCKS) - 1
    return "".join(" " if value is None else BLOCKS[min(steps, round(value / top * steps))] for value in values)
