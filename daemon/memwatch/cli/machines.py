"""`memwatch machines`: a daemon's machine and its neighbours, as a table, and those on which a need fits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from msgspec import Struct
from msgspec.structs import replace

from memwatch.cli.context import EXIT_OK, build_context, check_shape, common, print_errors
from memwatch.cli.http import Address, CommandError, ask, parse_url
from memwatch.cli.tables import MARKS, columns
from memwatch.core.model import RAM, Absent, known_or
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.wire import Json
from memwatch.reporting.answers import ListedMachine, MachineHolder, MachineTick
from memwatch.reporting.render import words as wording

METRICS = "/metrics"


class ScrapeTargets(NamedTuple):
    """Groups of targets as file_sd reads them, and the names of machines that Prometheus cannot reach."""

    groups: list[Json]
    left_out: list[str]


def build_targets(machines: Iterable[ListedMachine], own: Address) -> ScrapeTargets:
    """Return a group for each machine. `own`: the address by which this command reaches the daemon.

    A socket file cannot be scraped.
    """
    groups, left_out = [], []
    for one in sorted(machines, key=lambda machine: (not machine.is_self, machine.name)):
        address = own if one.is_self else parse_url(one.url or "")
        if address.scheme == "unix":
            left_out.append(one.name)
        else:
            groups.append(group_of(one, address))
    return ScrapeTargets(groups, left_out)


def group_of(machine: ListedMachine, address: Address) -> Json:
    """Return one machine as a group: its address without scheme and path, which are labels of Prometheus."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    labels = {} if machine.is_self else {"neighbour": machine.name}
    if address.scheme != "http":
        labels["__scheme__"] = address.scheme
    if address.prefix:
        labels["__metrics_path__"] = address.prefix + METRICS
    return {"targets": [f"{host}:{address.port}"], "labels": labels}


@click.command(short_help="This machine and its neighbours.")
@click.option(
    "--file-sd",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them to FILE as targets of Prometheus's file_sd.",
)
@common
def machines(file: Path | None, url: Address | None, as_json: bool) -> int:
    """List the daemon's machine and its neighbours, those that need an operator first.

    With --file-sd, write their addresses to a file that Prometheus reads at once when it changes.
    """
    context = build_context(url, as_json)
    answer = ask(context.address, "/api/v1/machines")
    if file is not None:
        return write_targets(file, answer.json, context.address)
    return context.show(answer.json, lambda: machine_lines(read_machines(answer.json)), answer.is_simulated)


def read_machines(sent: object) -> tuple[ListedMachine, ...]:
    """Decode `/api/v1/machines`. Raises TypeError, KeyError or ValueError for anything else."""
    found: tuple[ListedMachine, ...] = RECORDS.decode(tuple[ListedMachine, ...], sent)
    return found


def write_targets(file: Path, sent: object, own: Address) -> int:
    """Write the targets. The file is left as it is if there is none."""
    with check_shape(own):
        groups, left_out = build_targets(read_machines(sent), own)
    if not groups:
        raise CommandError(f"{file} is not written: a socket file cannot be scraped; use --url")
    from memwatch.cli.output import write_atomically

    write_atomically(file, json.dumps(groups, indent=2) + "\n")
    if left_out:
        print_errors([f"left out, as their address is a socket file: {', '.join(left_out)}"])
    print(f"{wording.count(len(groups), 'target')} in {file}")
    return EXIT_OK


def machine_lines(found: Sequence[ListedMachine]) -> Iterator[str]:
    rows = [("machine", "state", "can allocate", "last tick", ""), *map(_row, found)]
    yield from columns(rows, right=frozenset({2}))
    for one in found:
        if not isinstance(offset := one.clock_offset_seconds, Absent):
            way = "ahead" if offset > 0 else "behind"
            yield f"The clock of {one.name} is {wording.duration(abs(offset))} {way}."
    if sum(one.state != "found" for one in found) < 2:
        yield NO_NEIGHBOURS


def _row(one: ListedMachine) -> tuple[str, ...]:
    tick = one.last_tick
    if isinstance(tick, Absent):
        return one.name, one.state, wording.DASH, "" if one.state == "found" else "never", one.text
    most = tick.headroom_after_reclaim_bytes
    state = wording.level(tick.level) if one.state == "up" else one.state
    room = wording.DASH
    if not isinstance(most, Absent):
        room = wording.headroom(known_or(tick.headroom_bytes, most), most)
    return one.name, state, room, wording.age(one.age_seconds), one.text


NO_NEIGHBOURS = "No neighbours: add [[neighbours]] to memwatchd.toml to follow other machines."


class Need(Struct, frozen=True):
    """Bytes on one device, and in System RAM. The reserve stays free in both. `is_least`: a lower bound.

    `host_bytes`: of the engine's processes, where the machine has no other memory than System RAM.
    """

    bytes: int
    ram_bytes: int = 0
    reserve_bytes: int = 0
    is_least: bool = False
    host_bytes: int = 0


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
    headroom_after_reclaim_bytes: int | None = None
    short_bytes: int | None = None
    moved: tuple[Mover, ...] = ()


def place(need: Need, machines: Sequence[ListedMachine], fits_here: bool | None) -> list[Placement]:
    """Judge the machines, those where it fits first. `fits_here`: known for this one."""
    placed = [_place(need, one, fits_here if one.is_self else None) for one in machines if one.state != "found"]
    if need.is_least:
        placed = [replace(one, fits=None, reason=f"{one.reason}, at least") if one.fits else one for one in placed]
    rank = {True: 0, None: 1, False: 2}
    return sorted(placed, key=lambda one: (rank[one.fits], -(one.headroom_after_reclaim_bytes or 0), one.name))


def placement_lines(placed: Sequence[Placement]) -> Iterator[str]:
    yield "Machines:"
    yield from (f"{MARKS[one.fits]} {one.name}: {one.reason}" for one in placed)
    if len(placed) < 2:
        yield NO_NEIGHBOURS
    if any(one.fits is False for one in placed):
        yield "Only one device of each machine is considered, and up to five processes that it reports."


def _place(need: Need, machine: ListedMachine, known: bool | None) -> Placement:
    name, tick = machine.name, machine.last_tick
    if isinstance(tick, Absent):
        return Placement(name, None, f"unknown: it is {machine.state}")
    if machine.state != "up":
        age = wording.duration(machine.age_seconds)
        return Placement(name, None, f"unknown: it is {machine.state}; its last figures are {age} old")
    room, device = known_or(tick.headroom_after_reclaim_bytes, None), tick.headroom_of or None
    if known:
        return Placement(name, True, "fits, see above", device, room)
    if room is None:
        return Placement(name, known, "unknown: it reports no headroom", device)
    needed = need.bytes + need.reserve_bytes
    if all(pool.id == RAM for pool in tick.pools):
        needed += need.host_bytes
    short = needed - room
    if short <= 0:
        return _place_in_ram(need, name, tick, device, room)
    why = f"short by {wording.size(short)} on {device}"
    whole = tick.headroom_size_bytes
    if not isinstance(whole, Absent) and needed > whole:
        return Placement(name, False, f"{why}, which has {wording.size(whole)} in total", device, room, short)
    holders = [one for one in tick.holders if one.held_bytes]
    moved = _choose(holders, short)
    return Placement(name, False, f"{why}; {_describe(holders, moved)}", device, room, short, moved)


def _place_in_ram(need: Need, name: str, tick: MachineTick, device: str | None, room: int) -> Placement:
    """Check the part that a plan moves to System RAM. The device has room."""
    can = f"{wording.size(room)} can be allocated on {device}"
    if not need.ram_bytes:
        return Placement(name, True, can, device, room)
    left = next((pool.available_bytes for pool in tick.pools if pool.id == RAM), Absent.NOT_AVAILABLE)
    if isinstance(left, Absent):
        return Placement(name, None, f"{can}; System RAM unknown", device, room)
    short = need.ram_bytes + need.reserve_bytes - left
    if short > 0:
        return Placement(name, False, f"{can}; short by {wording.size(short)} in System RAM", device, room, short)
    return Placement(name, True, f"{can}, {wording.size(left)} in System RAM", device, room)


def _choose(holders: Sequence[MachineHolder], short: int) -> tuple[Mover, ...]:
    """Return the smallest process that is enough, or the fewest of the largest; () if all are not enough."""
    ranked = sorted(holders, key=lambda one: one.held_bytes)
    alone = next((one for one in ranked if one.held_bytes >= short), None)
    chosen = [alone] if alone else []
    while not alone and ranked and sum(one.held_bytes for one in chosen) < short:
        chosen.append(ranked.pop())
    enough = sum(one.held_bytes for one in chosen) >= short
    return tuple(Mover(one.name, one.held_bytes) for one in chosen) if enough else ()


def _describe(holders: Sequence[MachineHolder], moved: Sequence[Mover]) -> str:
    if moved:
        names = ", ".join(f"{one.name} ({wording.size(one.held_bytes)})" for one in moved)
        return f"{names} would have to go elsewhere"
    if not holders:
        return "it reports no process that holds memory there"
    total = sum(one.held_bytes for one in holders)
    if len(holders) == 1:
        return f"its largest process holds {wording.size(total)}, which is not enough"
    return f"its {len(holders)} largest processes hold {wording.size(total)} together, which is not enough"
