"""Machines on which a need fits, and the processes of the others that would have to move. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from memwatch.cli.tables import MARKS
from memwatch.monitor.render import words as wording

Json = dict[str, Any]
RAM = "ram"
NO_NEIGHBOURS = "No neighbours: add [[neighbours]] to memwatchd.toml to follow other machines."


class Need(Struct, frozen=True):
    """Bytes on one device, and in System RAM. The reserve stays free in both. `is_least`: a lower bound."""

    bytes: int
    ram_bytes: int = 0
    reserve_bytes: int = 0
    is_least: bool = False


class Mover(Struct, frozen=True):
    """A process that would have to go elsewhere."""

    name: str
    held_bytes: int


class Placement(Struct, frozen=True):
    """Result for one machine. `fits`: None if a figure that decides is unknown. `moved`: the fewest processes."""

    name: str
    fits: bool | None
    reason: str
    device: str | None = None
    headroom_bytes: int | None = None
    short_bytes: int | None = None
    moved: tuple[Mover, ...] = ()

    def as_json(self) -> Json:
        return to_builtins(self)  # type: ignore[no-any-return]


def place(need: Need, machines: Sequence[Json], fits_here: bool | None) -> list[Placement]:
    """Judge the machines of `/api/v1/machines`, those where it fits first. `fits_here`: known for this one."""
    placed = [
        _place(need, one, fits_here if one["is_self"] else None) for one in machines if one["state"] != "found"
    ]
    if need.is_least:
        placed = [replace(one, fits=None, reason=f"{one.reason}, at least") if one.fits else one for one in placed]
    rank = {True: 0, None: 1, False: 2}
    return sorted(placed, key=lambda one: (rank[one.fits], -(one.headroom_bytes or 0), one.name))


def placement_lines(placed: Sequence[Placement]) -> Iterator[str]:
    yield "Machines:"
    yield from (f"{MARKS[one.fits]} {one.name}: {one.reason}" for one in placed)
    if len(placed) < 2:
        yield NO_NEIGHBOURS
    if any(one.fits is False for one in placed):
        yield "Only one device of each machine is considered, and up to five processes that it reports."


def _place(need: Need, machine: Json, known: bool | None) -> Placement:
    name, tick = machine["name"], machine["last_tick"]
    if tick is None or machine["state"] != "up":
        age = f"; its last figures are {wording.duration(machine['age_seconds'])} old" if tick else ""
        return Placement(name, None, f"unknown: it is {machine['state']}{age}")
    room, device = tick["headroom_bytes"], tick["headroom_of"] or None
    if known:
        return Placement(name, True, "fits, see above", device, room)
    if room is None:
        return Placement(name, known, "unknown: it reports no headroom", device)
    short = need.bytes + need.reserve_bytes - room
    if short <= 0:
        return _place_in_ram(need, name, tick, device, room)
    why = f"short by {wording.size(short)} on {device}"
    whole = tick["headroom_size_bytes"]
    if whole is not None and need.bytes + need.reserve_bytes > whole:
        return Placement(name, False, f"{why}, which has {wording.size(whole)} in total", device, room, short)
    holders = [one for one in tick["holders"] if one["held_bytes"]]
    moved = _choose(holders, short)
    return Placement(name, False, f"{why}; {_describe(holders, moved)}", device, room, short, moved)


def _place_in_ram(need: Need, name: str, tick: Json, device: str | None, room: int) -> Placement:
    """Check the part that a plan moves to System RAM. The device has room."""
    can = f"{wording.size(room)} can be allocated on {device}"
    if not need.ram_bytes:
        return Placement(name, True, can, device, room)
    left = next((pool["available_bytes"] for pool in tick["pools"] if pool["id"] == RAM), None)
    if left is None:
        return Placement(name, None, f"{can}; System RAM unknown", device, room)
    short = need.ram_bytes + need.reserve_bytes - left
    if short > 0:
        return Placement(name, False, f"{can}; short by {wording.size(short)} in System RAM", device, room, short)
    return Placement(name, True, f"{can}, {wording.size(left)} in System RAM", device, room)


def _choose(holders: Sequence[Json], short: int) -> tuple[Mover, ...]:
    """Return the smallest process that is enough, or the fewest of the largest; () if all are not enough."""
    ranked = sorted(holders, key=lambda one: one["held_bytes"])
    alone = next((one for one in ranked if one["held_bytes"] >= short), None)
    chosen = [alone] if alone else []
    while not alone and ranked and sum(one["held_bytes"] for one in chosen) < short:
        chosen.append(ranked.pop())
    enough = sum(one["held_bytes"] for one in chosen) >= short
    return tuple(Mover(one["name"], one["held_bytes"]) for one in chosen) if enough else ()


def _describe(holders: Sequence[Json], moved: Sequence[Mover]) -> str:
    if moved:
        names = ", ".join(f"{one.name} ({wording.size(one.held_bytes)})" for one in moved)
        return f"{names} would have to go elsewhere"
    if not holders:
        return "it reports no process that holds memory there"
    total = sum(one["held_bytes"] for one in holders)
    if len(holders) == 1:
        return f"its largest process holds {wording.size(total)}, which is not enough"
    return f"its {len(holders)} largest processes hold {wording.size(total)} together, which is not enough"
