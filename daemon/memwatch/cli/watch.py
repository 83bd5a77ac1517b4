"""`memwatch watch` and `memwatch top`: one line per sample, or a live view."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from memwatch.cli import status
from memwatch.cli.address import Address
from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    Number,
    build_context,
    check_shape,
    common,
    seconds_within,
)
from memwatch.cli.figures import figure
from memwatch.cli.output import paint_lines, stdout_depth, stdout_width
from memwatch.cli.samples import HEADER_EVERY, find_worst_level, header_line, sample_line
from memwatch.cli.terminal.style import Depth
from memwatch.core.printable import printable

Json = dict[str, Any]
TOP = 10

INTERVAL = click.option(
    "--interval",
    callback=seconds_within("100ms", "1h", "500ms"),
    default="1s",
    metavar="DURATION",
    help="Sampling interval, 100ms to 1h. A plain number is in seconds.  [default: 1s]",
)
COUNT = click.option("--count", type=Number(1, 1 << 40, 10), default=None, help="Stop after this many samples.")


@click.command(short_help="Print samples continuously.")
@INTERVAL
@COUNT
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, sizes in bytes.")
@common
def watch(interval: float, count: int | None, as_csv: bool, url: Address | None, as_json: bool) -> int:
    """Print one line per sample in columns: used GiB of each pool, available System RAM, swap, stalls and the worst
    level. Ctrl-C ends it."""
    context = build_context(url, as_json)
    if as_csv and context.as_json:
        raise click.UsageError("--csv and --json are mutually exclusive; use one of them")
    for number, snapshot in enumerate(islice(ticks(context, interval), count)):
        with check_shape(context.address):
            if number == 0:
                context.print_simulated(snapshot["simulated"])
            print("\n".join(_lines_of(snapshot, number, as_csv, context.as_json)), flush=True)
    return EXIT_OK


def _lines_of(snapshot: Json, number: int, as_csv: bool, as_json: bool) -> list[str]:
    """Return the lines of a sample, with a header before the first, and before every 20th in the table."""
    if as_json:
        return [json.dumps(snapshot)]
    if as_csv:
        head = [csv_head(snapshot)] if number == 0 else []
        return [printable(line) for line in (*head, csv_line(snapshot))]
    width = stdout_width() if sys.stdout.isatty() else None
    head_now = [header_line(snapshot, width)] if number % HEADER_EVERY == 0 else []
    return paint_lines([*head_now, sample_line(snapshot, width)])


def ticks(context: ClientContext, interval: float) -> Iterator[Json]:
    """Yield each tick once, even if the daemon is polled more often."""
    before: object = None
    for number, snapshot in enumerate(context.snapshots(interval)):
        with check_shape(context.address):
            seq = snapshot["seq"]
        if number == 0 or seq != before:
            before = seq
            yield snapshot


def _places(snapshot: Json) -> list[tuple[str, Json]]:
    return [(place["id"], place) for place in (*snapshot["pools"], *snapshot["shares"])]


def csv_head(snapshot: Json) -> str:
    names = [f"{name}.used_bytes" for name, _ in _places(snapshot)]
    return _csv(["time", "level", *names, *(f"{pool['id']}.available_bytes" for pool in snapshot["pools"])])


def csv_line(snapshot: Json) -> str:
    """Return a CSV line. An empty field is an unknown value."""
    used = [figure(place, "used_bytes") for _, place in _places(snapshot)]
    left = [figure(pool, "available_bytes") for pool in snapshot["pools"]]
    known = [one if isinstance(one, int) else "" for one in (*used, *left)]
    return _csv([snapshot["time"], find_worst_level(snapshot), *known])


def _csv(fields: list[Any]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="").writerow(fields)
    return output.getvalue()


@click.command(short_help="Live view.")
@INTERVAL
@COUNT
@click.option("--once", is_flag=True, help="Print one picture and exit.")
@common
def top(interval: float, count: int | None, once: bool, url: Address | None, as_json: bool) -> int:
    """Live view of pools, their contents, GPUs, processes, history and events. Press ? for the keys, q to quit.

    Colours follow TERM, COLORTERM, NO_COLOR and CLICOLOR_FORCE. If stdout is not a terminal, the view is printed
    once as text, or --count times.
    """
    context = build_context(url, as_json)
    if context.as_json or not (once or sys.stdout.isatty()):
        for snapshot in islice(context.snapshots(interval), count or 1):
            context.show_painted(snapshot, lambda shot=snapshot: picture(shot))  # type: ignore[misc]
        return EXIT_OK
    from memwatch.cli import top as interface

    return interface.print_once(context) if once else interface.run(context, interval, count)


def picture(snapshot: Json) -> Iterator[str]:
    age = max(0.0, time.time() - snapshot["unix"])
    lines = status.render_lines(
        snapshot, age if age > 5 else None, stdout_width(), stdout_depth() > Depth.NONE, TOP
    )
    yield from paint_lines(lines)
