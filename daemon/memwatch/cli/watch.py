"""`memwatch watch` and `memwatch top`: one line per sample, or a live view."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from memwatch.cli import status
from memwatch.cli.charset import stdout_is_ascii
from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    Number,
    SnapshotAnswer,
    build_context,
    check_shape,
    common,
    seconds_within,
)
from memwatch.cli.http import Address
from memwatch.cli.output import paint_lines, stdout_depth, stdout_width
from memwatch.cli.tables import clock
from memwatch.cli.terminal.moment import STYLES
from memwatch.cli.terminal.style import Depth, Line, Span
from memwatch.core.model import HELD_BY_DEVICES, Absent, Bytes, Pool, PoolKind, Share, sum_figures
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import GIB
from memwatch.core.wire import rfc3339
from memwatch.reporting.render import words as wording

# Lines of `memwatch watch`, as vmstat prints them: a header now and then, one figure per pool, the level last.

HEADER_EVERY = 20
MIN_WIDTH = 7
# Two spaces and the longest word, "critical".
LEVEL_WIDTH = 10


class Column(NamedTuple):
    """A column: its title and its text."""

    title: str
    text: str


def columns_of(snapshot: Snapshot, width: int | None = None) -> list[Column]:
    """Return the use of each pool and of devices in System RAM, its available part, swap and stalls.

    The other pools are added up, beside the fullest of them, where they do not fit into `width` cells.
    """
    found = _columns(snapshot, snapshot.pools)
    others = [pool for pool in snapshot.pools if pool.kind is not PoolKind.SYSTEM_RAM]
    needed = sum(_width(one) + 1 for one in found) + len(clock(snapshot.unix)) + LEVEL_WIDTH
    if width is None or needed <= width or len(others) < 2:
        return found
    columns = _columns(snapshot, [pool for pool in snapshot.pools if pool not in others])
    at = next((number for number, one in enumerate(columns) if one.title in ("swap", "stall")), len(columns))
    return [*columns[:at], *_summed(others), *columns[at:]]


def _summed(pools: Sequence[Pool]) -> list[Column]:
    ratios = [
        (pool.used_bytes / pool.size_bytes, pool)
        for pool in pools
        if isinstance(pool.used_bytes, int) and pool.size_bytes
    ]
    ratio, fullest = max(ratios, key=lambda one: one[0], default=(0.0, None))
    name = f"{fullest.id.upper()} {wording.ratio(ratio):>6}" if fullest else wording.DASH
    used = sum_figures(pool.used_bytes for pool in pools)
    return [
        Column(f"{len(pools)} GPUs", _gib(used)),
        Column(f"{'fullest':>12}", name),
    ]


def _columns(snapshot: Snapshot, pools: Sequence[Pool]) -> list[Column]:
    found = []
    for pool in pools:
        is_ram = pool.kind is PoolKind.SYSTEM_RAM
        found.append(Column("RAM" if is_ram else pool.id.upper(), _gib(pool.used_bytes)))
        if is_ram:
            found += [
                Column(_share_title(share), _gib(share.used_bytes))
                for share in snapshot.shares
                if share.within == pool.id and share.kind in HELD_BY_DEVICES
            ]
            found.append(Column("avail", _gib(pool.available_bytes)))
    if not isinstance(snapshot.swap, Absent):
        found.append(Column("swap", _gib(snapshot.swap.used_bytes)))
    if not isinstance(snapshot.psi, Absent):
        found.append(Column("stall", wording.ratio(snapshot.psi.some.ratio_10s)))
    return found


def _share_title(share: Share) -> str:
    return f"{'c=' if stdout_is_ascii() else '⊂'}{share.label.split()[0][:8]}"


def _gib(count: Bytes) -> str:
    return wording.DASH if isinstance(count, Absent) else f"{count / GIB:,.1f}"


def header_line(snapshot: Snapshot, width: int | None = None) -> Line:
    """Return the titles. Sizes are in GiB, and ⊂ marks memory inside System RAM."""
    time_width = len(clock(snapshot.unix))
    titles = "".join(f" {one.title:>{_width(one)}}" for one in columns_of(snapshot, width))
    return (Span(f"{'GiB used':<{time_width}}{titles}  level", "bold"),)


def sample_line(snapshot: Snapshot, width: int | None = None) -> Line:
    figures = "".join(f" {one.text:>{_width(one)}}" for one in columns_of(snapshot, width))
    level = find_worst_level(snapshot)
    word = wording.level(level)
    return Span(f"{clock(snapshot.unix)}{figures}  "), Span(word, STYLES.get(level, ""))


def _width(one: Column) -> int:
    return max(MIN_WIDTH, len(one.title))


def find_worst_level(snapshot: Snapshot) -> str:
    worst = snapshot.worst_level
    return wording.DASH if worst is None else worst.word


TOP = 10
# Terminals that cannot move their cursor.
NO_CURSOR = ("", "dumb")

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
    for number, answer in enumerate(islice(ticks(context, interval), count)):
        with check_shape(context.address):
            if number == 0:
                context.print_simulated(answer.snapshot.simulated)
            print("\n".join(_lines_of(answer, number, as_csv, context.as_json)), flush=True)
    return EXIT_OK


def _lines_of(answer: SnapshotAnswer, number: int, as_csv: bool, as_json: bool) -> list[str]:
    """Return the lines of a sample, with a header before the first, and before every 20th in the table."""
    if as_json:
        return [json.dumps(answer.json)]
    snapshot = answer.snapshot
    if as_csv:
        head = [csv_head(snapshot)] if number == 0 else []
        return [printable(line) for line in (*head, csv_line(snapshot))]
    width = stdout_width() if sys.stdout.isatty() else None
    head_now = [header_line(snapshot, width)] if number % HEADER_EVERY == 0 else []
    return paint_lines([*head_now, sample_line(snapshot, width)])


def ticks(context: ClientContext, interval: float) -> Iterator[SnapshotAnswer]:
    """Yield each tick once, even if the daemon is polled more often."""
    before: object = None
    for number, answer in enumerate(context.snapshots(interval)):
        with check_shape(context.address):
            seq = answer.snapshot.seq
        if number == 0 or seq != before:
            before = seq
            yield answer


def csv_head(snapshot: Snapshot) -> str:
    names = [f"{name}.used_bytes" for name in snapshot.labels]
    return _csv(["time", "level", *names, *(f"{pool.id}.available_bytes" for pool in snapshot.pools)])


def csv_line(snapshot: Snapshot) -> str:
    """Return a CSV line. An empty field is an unknown value."""
    used = [place.used_bytes for place in snapshot.places]
    left = [pool.available_bytes for pool in snapshot.pools]
    known = [one if isinstance(one, int) else "" for one in (*used, *left)]
    return _csv([rfc3339(snapshot.unix), find_worst_level(snapshot), *known])


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

    Colours follow TERM, COLORTERM, NO_COLOR and CLICOLOR_FORCE. If stdout is not a terminal, or TERM is dumb, the
    view is printed once as text, or --count times.
    """
    context = build_context(url, as_json)
    is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in NO_CURSOR
    if context.as_json or not (once or is_live):
        for answer in islice(context.snapshots(interval), count or 1):
            context.show_painted(answer, lambda shot=answer: picture(shot.snapshot))  # type: ignore[misc]
        return EXIT_OK
    from memwatch.cli.terminal.app import print_once, run_top

    return print_once(context) if once else run_top(context, interval, count)


def picture(snapshot: Snapshot) -> Iterator[str]:
    age = max(0.0, time.time() - snapshot.unix)
    lines = status.render_lines(
        snapshot, age if age > 5 else None, stdout_width(), stdout_depth() > Depth.NONE, TOP
    )
    yield from paint_lines(lines)
