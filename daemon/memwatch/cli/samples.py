"""Lines of `memwatch watch`, as vmstat prints them: a header now and then, one figure per pool, the level last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memwatch.cli.terminal.memory_map import DEVICE_SHARES
from memwatch.cli.terminal.moment import LEVELS, STYLES
from memwatch.cli.terminal.style import Line, Span
from memwatch.cli.times import clock
from memwatch.monitor.render import words as wording

Json = dict[str, Any]
HEADER_EVERY = 20
MIN_WIDTH = 7
# Two spaces and the longest word, "critical".
LEVEL_WIDTH = 10
GIB = 1 << 30


class Column(NamedTuple):
    """A column: its title and its text."""

    title: str
    text: str


def columns_of(snapshot: Json, width: int | None = None) -> list[Column]:
    """Return the use of each pool and of devices in System RAM, its available part, swap and stalls.

    The other pools are added up, beside the fullest of them, where they do not fit into `width` cells.
    """
    found = _columns(snapshot, snapshot["pools"])
    others = [pool for pool in snapshot["pools"] if pool["kind"] != "system_ram"]
    needed = sum(_width(one) + 1 for one in found) + len(clock(snapshot["unix"])) + LEVEL_WIDTH
    if width is None or needed <= width or len(others) < 2:
        return found
    columns = _columns(snapshot, [pool for pool in snapshot["pools"] if pool not in others])
    at = next((number for number, one in enumerate(columns) if one.title in ("swap", "stall")), len(columns))
    return [*columns[:at], *_summed(others), *columns[at:]]


def _summed(pools: Sequence[Json]) -> list[Column]:
    used = [pool["used_bytes"] for pool in pools]
    known = [pool for pool in pools if pool["used_bytes"] is not None and pool["size_bytes"]]
    fullest = max(known, key=lambda pool: pool["used_bytes"] / pool["size_bytes"], default=None)
    ratio = wording.ratio(fullest["used_bytes"] / fullest["size_bytes"]) if fullest else ""
    name = f"{fullest['id'].upper()} {ratio:>6}" if fullest else wording.DASH
    return [
        Column(f"{len(pools)} GPUs", _gib(None if None in used else sum(used))),
        Column(f"{'fullest':>12}", name),
    ]


def _columns(snapshot: Json, pools: Sequence[Json]) -> list[Column]:
    found = []
    for pool in pools:
        is_ram = pool["kind"] == "system_ram"
        found.append(Column("RAM" if is_ram else pool["id"].upper(), _gib(pool["used_bytes"])))
        if is_ram:
            found += [
                Column(_share_title(share), _gib(share["used_bytes"]))
                for share in snapshot["shares"]
                if share["within"] == pool["id"] and share["kind"] in DEVICE_SHARES
            ]
            found.append(Column("avail", _gib(pool["available_bytes"])))
    if snapshot["swap"]:
        found.append(Column("swap", _gib(snapshot["swap"]["used_bytes"])))
    if snapshot["psi"]:
        found.append(Column("stall", wording.ratio(snapshot["psi"]["some"]["ratio_10s"])))
    return found


def _share_title(share: Json) -> str:
    return f"⊂{str(share['label']).split()[0][:8]}"


def _gib(count: int | None) -> str:
    return wording.DASH if count is None else f"{count / GIB:,.1f}"


def header_line(snapshot: Json, width: int | None = None) -> Line:
    """Return the titles. Sizes are in GiB, and ⊂ marks memory inside System RAM."""
    time_width = len(clock(snapshot["unix"]))
    titles = "".join(f" {one.title:>{_width(one)}}" for one in columns_of(snapshot, width))
    return (Span(f"{'GiB used':<{time_width}}{titles}  level", "bold"),)


def sample_line(snapshot: Json, width: int | None = None) -> Line:
    figures = "".join(f" {one.text:>{_width(one)}}" for one in columns_of(snapshot, width))
    level = find_worst_level(snapshot)
    word = wording.level(level)
    return Span(f"{clock(snapshot['unix'])}{figures}  "), Span(word, STYLES.get(level, ""))


def _width(one: Column) -> int:
    return max(MIN_WIDTH, len(one.title))


def find_worst_level(snapshot: Json) -> str:
    return str(max((one["level"] for one in snapshot["pressure"]), key=LEVELS.index, default=wording.DASH))
