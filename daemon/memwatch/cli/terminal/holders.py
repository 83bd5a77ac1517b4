"""Names of the largest processes inside the bars, where their bytes are and the names have room. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memwatch.cli.terminal.memory_map import GPU_HELD, Name, Segment
from memwatch.cli.terminal.moment import Moment
from memwatch.cli.terminal.sizes import short
from memwatch.cli.terminal.style import cells

Json = dict[str, Any]
# Smaller processes are not named.
MIN_NAMED_RATIO, MAX_NAMED = 0.015, 6


def names_in(found: Sequence[Segment], pool: Json, moment: Moment) -> list[Name]:
    """Return the names inside the bar of a pool: by RSS in its processes, by GPU memory in that of devices."""
    snapshot = moment.snapshot
    if moment.note:  # processes of another time
        return []
    inside = places_in(pool, snapshot["shares"])
    names: list[Name] = []
    for segment in found:
        if segment.part.kind == "anonymous" and pool["kind"] == "system_ram":
            held = [(one["rss_bytes"] or 0, one) for one in snapshot["processes"]]
        elif segment.part.kind in GPU_HELD:
            held = [(held_in(one, inside), one) for one in snapshot["processes"]]
        else:
            continue
        names += _place(segment, pool["size_bytes"], held)
    return names


def names_of_share(share: Json, end: int, moment: Moment) -> list[Name]:
    """Return the names in the used cells of a share's bar, 0 to `end`."""
    used = share["used_bytes"] or 0
    if not used or not end or moment.note:
        return []
    held = [(held_in(one, {share["id"]}), one) for one in moment.snapshot["processes"]]
    return list(_name(0, end, used, used, held))


def places_in(place: Json, shares: Sequence[Json]) -> set[str]:
    """Return the ids of a pool and of all shares inside it."""
    found = {place["id"]}
    for share in shares:  # parents come first
        if share["within"] in found:
            found.add(share["id"])
    return found


def held_in(process: Json, places: set[str]) -> int:
    held: Mapping[str, int | None] = process["device_bytes"] or {}
    return sum(size for place, size in held.items() if place in places and isinstance(size, int))


def _place(segment: Segment, size: int, held: Iterable[tuple[int, Json]]) -> Iterator[Name]:
    if size and segment.part.size_bytes:
        yield from _name(segment.start, segment.end, segment.part.size_bytes, size, held)


def _name(start: int, end: int, whole: int, size: int, held: Iterable[tuple[int, Json]]) -> Iterator[Name]:
    """Divide the cells of a part among its largest holders, as long as they fit: resident sets share pages."""
    left, done, count = whole, 0, 0
    for bytes_held, process in sorted(held, key=lambda one: (-one[0], one[1]["pid"])):
        if bytes_held > left or bytes_held < MIN_NAMED_RATIO * size or count == MAX_NAMED:
            continue
        first = start + round(done / whole * (end - start))
        last = start + round((done + bytes_held) / whole * (end - start))
        name = process["name"] or ""
        if name and cells(name) == len(name):
            yield Name(first, last, (f"{name} {short(bytes_held)}", name), is_last=last == end)
        left, done, count = left - bytes_held, done + bytes_held, count + 1
