"""`memwatch watch` and `memwatch top`: one line per sample, or a live view."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import click

from memwatch.client import tree
from memwatch.client.address import Address
from memwatch.client.context import (
    EXIT_OK,
    ClientContext,
    Number,
    build_context,
    check_shape,
    common,
    seconds_within,
)
from memwatch.client.figures import figure, size
from memwatch.client.tables import columns
from memwatch.client.tree import process_notes
from memwatch.model import NAMELESS
from memwatch.printable import printable
from memwatch.render import words as wording

Json = dict[str, Any]
TOP = 10
HOME, CLEAR_BELOW, CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

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
    """Print one line per sample: each pool and share, and the worst level. Ctrl-C ends it."""
    context = build_context(url, as_json)
    if as_csv and context.as_json:
        raise click.UsageError("--csv and --json are mutually exclusive; use one of them")
    line_of: Callable[[Json], str] = csv_line if as_csv else json.dumps if context.as_json else words_line
    for number, snapshot in enumerate(islice(ticks(context, interval), count)):
        with check_shape(context.address):
            if number == 0:
                context.print_simulated(snapshot["simulated"])
            if as_csv and number == 0:
                print(printable(csv_head(snapshot)))
            print(line_of(snapshot) if context.as_json else printable(line_of(snapshot)), flush=True)
    return EXIT_OK


def ticks(context: ClientContext, interval: float) -> Iterator[Json]:
    """Yield each tick once, even if the daemon is polled more often."""
    before: object = None
    for number, snapshot in enumerate(context.snapshots(interval)):
        with check_shape(context.address):
            seq = snapshot["seq"]
        if number == 0 or seq != before:
            before = seq
            yield snapshot


def words_line(snapshot: Json) -> str:
    whole = {pool["id"]: f" of {size(pool, 'size_bytes')}" for pool in snapshot["pools"]}
    places = [
        f"{place['label']} {size(place, 'used_bytes')}{whole.get(name, '')}" for name, place in _places(snapshot)
    ]
    return f"{wording.clock(snapshot['unix'])}  {', '.join(places)}  {find_worst_level(snapshot)}"


def find_worst_level(snapshot: Json) -> str:
    order = ("low", "medium", "high", "critical")
    return str(max((one["level"] for one in snapshot["pressure"]), key=order.index, default=wording.DASH))


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
@common
def top(interval: float, count: int | None, url: Address | None, as_json: bool) -> int:
    """Live view of pools, their contents, GPUs and the largest processes. Ctrl-C ends it.

    If stdout is not a terminal, the view is printed once, or --count times.
    """
    context = build_context(url, as_json)
    live = sys.stdout.isatty() and not context.as_json
    shots = islice(context.snapshots(interval), count if live or count else 1)
    if not live:
        for snapshot in shots:
            context.show(snapshot, lambda shot=snapshot: picture(shot))  # type: ignore[misc]
        return EXIT_OK
    print(ENTER, end="")
    try:
        for snapshot in shots:
            with check_shape(context.address):
                _draw([printable(line) for line in picture(snapshot)])
    finally:
        print(LEAVE, end="", flush=True)
    return EXIT_OK


def picture(snapshot: Json) -> Iterator[str]:
    age = max(0.0, time.time() - snapshot["unix"])
    yield from tree.render_lines(snapshot, age if age > 5 else None)
    yield ""
    rows: list[tuple[str, ...]] = [("pid", "name", "footprint", "rss", "owner")]
    listed = sorted(snapshot["processes"], key=lambda one: -_least_footprint(one))[:TOP]
    rows += [_process_row(process) for process in listed]
    yield from columns(rows, right=frozenset({0, 2, 3}))
    yield from process_notes(listed)
    scan = snapshot.get("process_scan")
    if scan and scan.get("note"):  # some processes are hidden
        yield scan["note"]


def _least_footprint(process: Json) -> int:
    """Return the footprint or its lower bound; -1 if unknown. Older daemons do not send the bound."""
    known = process["footprint_bytes"], process.get("footprint_low_bytes")
    return next((one for one in known if one is not None), -1)


def _process_row(process: Json) -> tuple[str, ...]:
    owner = process["container"] or process["unit"] or process["user"] or wording.DASH
    resident = size(process, "rss_bytes")
    return str(process["pid"]), _name(process)[:24], _footprint(process), resident, str(owner)[:40]


def _name(process: Json) -> str:
    return str(process["name"] or NAMELESS)


def _footprint(process: Json) -> str:
    if process["footprint_bytes"] is None and process.get("footprint_low_bytes") is not None:
        return wording.between(process["footprint_low_bytes"], figure(process, "footprint_high_bytes"))
    return size(process, "footprint_bytes")


def _draw(lines: list[str]) -> None:
    width, height = shutil.get_terminal_size()
    shown = [line[:width] for line in lines[: height - 1]]
    print(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in shown) + CLEAR_BELOW, end="", flush=True)
