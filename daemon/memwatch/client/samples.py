"""Lines of `memwatch watch`, as vmstat prints them: a header now and then, one figure per pool, the level last."""

from __future__ import annotations

from typing import Any, NamedTuple

from memwatch.client.terminal.memory_map import DEVICE_SHARES
from memwatch.client.terminal.moment import LEVELS, STYLES
from memwatch.client.terminal.style import Line, Span
from memwatch.client.times import clock
from memwatch.render import words as wording

Json = dict[str, Any]
HEADER_EVERY = 20
MIN_WIDTH = 7
GIB = 1 << 30


class Column(NamedTuple):
    """A column: its title and its text."""

    title: str
    text: str


def columns_of(snapshot: Json) -> list[Column]:
    """Return the use of each pool and of devices in System RAM, its available part, swap and stalls."""
    found = []
    for pool in snapshot["pools"]:
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


def header_line(snapshot: Json) -> Line:
    """Return the titles. Sizes are in GiB, and ⊂ marks memory inside System RAM."""
    time_width = len(clock(snapshot["unix"]))
    titles = "".join(f" {one.title:>{_width(one)}}" for one in columns_of(snapshot))
    return (Span(f"{'GiB used':<{time_width}}{titles}  level", "bold"),)


def sample_line(snapshot: Json) -> Line:
    figures = "".join(f" {one.text:>{_width(one)}}" for one in columns_of(snapshot))
    level = find_worst_level(snapshot)
    word = wording.level(level)
    return Span(f"{clock(snapshot['unix'])}{figures}  "), Span(word, STYLES.get(level, ""))


def _width(one: Column) -> int:
    return max(MIN_WIDTH, len(one.title))


def find_worst_level(snapshot: Json) -> str:
    return str(max((one["level"] for one in snapshot["pressure"]), key=LEVELS.index, default=wording.DASH))
