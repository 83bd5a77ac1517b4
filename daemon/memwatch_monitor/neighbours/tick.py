"""Compact form of a tick, in which machines follow each other, and the end of a machine's ticks in words.

A tick has at most 3 KiB, without command lines and users; that of a machine with one pool has less than 1 KiB.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.backends.devices import compute_capacity, read_system_ram
from memwatch.core.events import Event
from memwatch.core.model import Device, Pool, PoolKind, known_or
from memwatch.core.printable import printable
from memwatch.core.snapshot import Level, LevelOrUnknown, Pressure, Snapshot
from memwatch.reporting.answers import (
    MAX_REASONS,
    NAME_LENGTH,
    TEXT_LENGTH,
    Instant,
    MachineEvent,
    MachineLevel,
    Name,
    Text,
)
from memwatch.reporting.incidents.readings import find_places, size_in
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import build_parts
from memwatch.reporting.render.summary import (
    build_sentence,
    by_footprint,
    compute_headroom,
    find_notice,
    find_worst,
    until_utc,
)

SCHEMA = 1
# Room for 16 pools. Every version reads MAX_RECEIVED_BYTES.
MAX_BYTES = 3072
# A reader accepts more: names of an own kind may be long.
MAX_RECEIVED_BYTES = 4096
MAX_HOLDERS, MAX_EVENTS, MAX_POOLS = 5, 3, 16
# Of the holders: those with the most memory of the device whose headroom is sent.
MAX_ON_DEVICE = 3
MAX_SEEN = 30
# Of the name of a machine or device: words that do not fit into a tile, such as its memory, which its pools have.
KIND_REST = re.compile(r" (?:\d+ ?GB(?: HBM\d\w?)?|Developer Kit)\Z")
# Events that name neither users nor what programs write.
SENT_EVENTS = frozenset(
    {
        "collector",
        "driver",
        "late",
        "level",
        "memory.not_returned",
        "oom_kill",
        "process.orphaned",
        "started",
        "suspend",
        "unclean",
    }
)
Figure = Annotated[int, Meta(ge=0, lt=1 << 60)]
SeenAs = Literal["starting", "up", "late", "stopped", "silent", "unreachable", "refused"]


class TickError(ValueError):
    """Data that is not a tick. The message follows "sends"."""


class PoolTick(Struct, frozen=True, omit_defaults=True):
    """One pool in bytes; None where a figure is unknown.

    `kind`: that of the pool in the API. `gpu` and `processes`: what devices and processes hold of `used`, for
    System RAM only. Early development versions send none of the three.
    """

    id: Name
    label: Name
    size: Figure
    used: Figure | None = None
    available: Figure | None = None
    level: LevelOrUnknown = "unknown"
    kind: Name = ""
    gpu: Figure | None = None
    processes: Figure | None = None


class HolderTick(Struct, frozen=True, omit_defaults=True):
    """A process with its footprint in bytes.

    `held`: its memory on `headroom_of`, and `there`: its memory in the pool `worst`, if that is not the footprint.
    """

    name: Name
    bytes: Figure
    held: Figure | None = None
    there: Figure | None = None

    @property
    def held_bytes(self) -> int:
        return self.bytes if self.held is None else self.held

    @property
    def bytes_there(self) -> int:
        return self.bytes if self.there is None else self.there


class Tick(Struct, frozen=True, omit_defaults=True):
    """One tick of a machine. `sees`: state by `run` of the machines that it follows itself.

    `headroom`: bytes of `headroom_size` that a program can allocate on `headroom_of` now, without reclaim of page
    cache, and `headroom_after_reclaim` with it. `left_out`: it has more pools.
    `kind`: what the machine is, such as "8 × H100". `headline`: its most urgent figure. `worst`: the id
    of the pool that this is about. Early development versions send none of the three.
    """

    schema: int
    run: Name
    host: Name
    unix: Instant
    interval: Annotated[float, Meta(gt=0, le=3600)]
    level: LevelOrUnknown
    sentence: Text
    pools: Annotated[tuple[PoolTick, ...], Meta(max_length=MAX_POOLS)] = ()
    levels: Annotated[tuple[MachineLevel, ...], Meta(max_length=MAX_POOLS)] = ()
    headroom: Figure | None = None
    headroom_after_reclaim: Figure | None = None
    headroom_of: Name = ""
    headroom_size: Figure | None = None
    holders: Annotated[tuple[HolderTick, ...], Meta(max_length=MAX_HOLDERS)] = ()
    events: Annotated[tuple[MachineEvent, ...], Meta(max_length=MAX_EVENTS)] = ()
    sees: Annotated[dict[Name, SeenAs], Meta(max_length=MAX_SEEN)] = {}
    simulated: bool = False
    left_out: bool = False
    kind: Name = ""
    headline: Name = ""
    worst: Name = ""

    @property
    def worst_pool(self) -> PoolTick | None:
        """Return the pool with the least part available, None if none is known."""
        parts = [
            (pool.available / pool.size, number)
            for number, pool in enumerate(self.pools)
            if pool.size and pool.available is not None
        ]
        return self.pools[min(parts)[1]] if parts else None

    @property
    def largest_there(self) -> HolderTick | None:
        """Return the process with the most memory in the pool `worst`, None if none holds any, or is known to."""
        if not self.worst and len(self.pools) != 1:
            return None
        found = max(self.holders, key=lambda one: one.bytes_there, default=None)
        return found if found and found.bytes_there else None


class Header(Struct):
    """The part of a tick that every version has."""

    schema: int


def build_tick(snapshot: Snapshot, run: str, events: Iterable[Event] = ()) -> Tick:
    """Return the compact form of a snapshot. `run` identifies the sending process. `events`: newest first."""
    worst = find_worst(snapshot)
    levels = {verdict.target: verdict.level for verdict in snapshot.pressure}
    ranked = sorted(snapshot.pools, key=lambda pool: -levels.get(pool.id, -1))[:MAX_POOLS]
    headroom, after_reclaim, headroom_of, device = find_headroom(snapshot)
    whole = compute_capacity(device, snapshot) if device else read_system_ram(snapshot).room.size_bytes
    place = find_pool(snapshot, worst.target) if worst else ""
    return Tick(
        schema=SCHEMA,
        run=run,
        host=_cut(snapshot.host, NAME_LENGTH),
        unix=round(snapshot.unix, 3),
        interval=snapshot.interval_seconds,
        level=worst.level.word if worst else "unknown",
        sentence=describe_state(snapshot, worst),
        pools=tuple(
            _build_pool(pool, snapshot, levels[pool.id].word if pool.id in levels else "unknown")
            for pool in ranked
            if isinstance(pool.size_bytes, int)
        ),
        levels=tuple(_raised(snapshot)),
        headroom=headroom,
        headroom_after_reclaim=after_reclaim,
        headroom_of=_cut(headroom_of, NAME_LENGTH),
        headroom_size=known_or(whole, None),
        holders=tuple(_holders(snapshot, device, place)),
        events=_select(events),
        sees={one.run: one.seen_as for one in snapshot.neighbours if one.run},  # type: ignore[misc]
        simulated=snapshot.simulated,
        left_out=len(snapshot.pools) > MAX_POOLS,
        kind=_cut(describe_kind(snapshot), NAME_LENGTH),
        headline=_cut(describe_worst(snapshot, worst), NAME_LENGTH),
        worst=_cut(place, NAME_LENGTH),
    )


def _build_pool(pool: Pool, snapshot: Snapshot, level: LevelOrUnknown) -> PoolTick:
    held: dict[str, int] = {}
    if pool.kind is PoolKind.SYSTEM_RAM:
        shares = [share for share in snapshot.shares if share.within == pool.id]
        for part in build_parts(pool, shares):
            held[part.holder] = held.get(part.holder, 0) + part.size_bytes
    return PoolTick(
        _cut(pool.id, NAME_LENGTH),
        _cut(pool.label, NAME_LENGTH),
        pool.size_bytes,
        known_or(pool.used_bytes, None),
        known_or(pool.available_bytes, None),
        level,
        pool.kind.value,
        held.get("gpu"),
        held.get("processes"),
    )


def describe_kind(snapshot: Snapshot) -> str:
    """Name the kind of machine: "DGX Spark" where its devices share its memory, else "8 × H100"."""
    names = Counter(_short_name(device.name, device.vendor) for device in snapshot.devices)
    own = snapshot.machine.name
    if not names:
        return "no GPU"
    shares_memory = snapshot.machine.architecture in ("unified", "carveout")
    if shares_memory and isinstance(own, str):
        return _short_name(own, "NVIDIA")
    (name, count), *others = names.most_common()
    more = f" + {sum(number for _, number in others)}" if others else ""
    return f"{count} × {name}{more}" if count > 1 else f"{name}{more}"


def _short_name(name: str, vendor: str) -> str:
    return KIND_REST.sub("", name.removeprefix(f"{vendor} ").removeprefix("GeForce "))


def describe_worst(snapshot: Snapshot, worst: Pressure | None) -> str:
    """Return the most urgent figure, with the target's name unless it is the only one: "GPU 0 full in ~25 s"."""
    if worst is None:
        return ""
    label = f"{snapshot.labels.get(worst.target, worst.target)} " if len(snapshot.pressure) > 1 else ""
    left = words.full(worst) if worst.level is Level.CRITICAL else ""
    if words.is_recovering(worst):
        left = "recovering"
    found = f"{label}{left or words.ratio(worst.ratio)}"
    return found[:1].upper() + found[1:]


def find_pool(snapshot: Snapshot, target: str) -> str:
    """Return the pool in which a target lies. A limit in no pool is its own."""
    parents = {share.id: share.within for share in snapshot.shares}
    pools = {pool.id for pool in snapshot.pools}
    place = target
    while place not in pools and place in parents:
        place = parents[place]
    return place if place in pools else target


def describe_state(snapshot: Snapshot, worst: Pressure | None) -> str:
    """Return the state of the machine, with the silence of its level. The silence's author is a user: not sent."""
    authorless = tuple(replace(one, made_by="") for one in snapshot.silences)
    notice = find_notice(replace(snapshot, silences=authorless), worst) if authorless else None
    silenced = _cut(f"; {notice.text(until_utc(notice.until_unix, snapshot.unix))}", TEXT_LENGTH) if notice else ""
    return _cut(build_sentence(snapshot, worst), TEXT_LENGTH - len(silenced)) + silenced


def find_headroom(snapshot: Snapshot) -> tuple[int | None, int | None, str, Device | None]:
    """Return the largest amounts that one device, or a machine without devices, can allocate, and which.

    The first is what it can allocate now, the second what it can after reclaim of page cache.
    """
    rooms = [(device.headroom_after_reclaim_bytes, device.name, device) for device in snapshot.devices]
    known = [(room, name, device) for room, name, device in rooms if isinstance(room, int)]
    if known:
        most, name, device = max(known, key=lambda one: one[:2])
        return known_or(device.headroom_bytes, None), most, name, device
    found = None if rooms else compute_headroom(snapshot)
    if found is None:
        return None, None, "", None
    return (
        known_or(found.headroom_bytes, None),
        known_or(found.headroom_after_reclaim_bytes, None),
        found.label,
        None,
    )


def encode_tick(tick: Tick) -> bytes:
    """Return the tick as JSON of at most MAX_BYTES. What does not fit is left out, the least useful part first."""
    for smaller in _shorter(tick):
        data = msgspec.json.encode(smaller)
        if len(data) <= MAX_BYTES:
            return data
    raise AssertionError("the shortest tick is too long")


def decode_tick(data: bytes) -> Tick:
    """Parse a tick from another machine. Every text is printable and bounded. Raises TickError."""
    if len(data) > MAX_RECEIVED_BYTES:
        raise TickError(f"a tick of more than {MAX_RECEIVED_BYTES} bytes")
    try:
        schema = _HEADER.decode(data).schema
        if schema != SCHEMA:
            raise TickError(f"schema {schema}, and this version reads {SCHEMA}: use one version on both machines")
        tick = _TICK.decode(data)
        if tick.headroom_after_reclaim is None and tick.headroom is not None:  # of an early development version
            tick = replace(tick, headroom=None, headroom_after_reclaim=tick.headroom)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TickError("data that is not a tick") from None
    return tick if data.isascii() and b"\\" not in data else _made_printable(tick)


def _made_printable(tick: Tick) -> Tick:
    """Escape what does not print. Needed only for texts outside ASCII or with escapes."""
    return _clean(tick)  # type: ignore[no-any-return]


def _clean(value: Any) -> Any:  # noqa: ANN401  a field of a tick
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    if isinstance(value, dict):
        return {printable(name): state for name, state in value.items()}
    if isinstance(value, Struct):
        return replace(value, **{name: _clean(getattr(value, name)) for name in value.__struct_fields__})
    return value


def _shorter(tick: Tick) -> Iterable[Tick]:
    yield tick
    for count in range(len(tick.events) - 1, -1, -1):
        tick = replace(tick, events=tick.events[:count])
        yield tick
    tick = replace(tick, levels=tuple(replace(one, reasons=one.reasons[:1]) for one in tick.levels))
    yield tick
    for count in range(len(tick.levels) - 1, 1, -1):
        yield replace(tick, levels=tick.levels[:count])
    tick = replace(tick, levels=tick.levels[:1])
    for count in range(len(tick.pools) - 1, 1, -1):
        tick = replace(tick, pools=tick.pools[:count], left_out=True)
        yield tick
    tick = replace(tick, pools=tick.pools[:1], left_out=True)
    for count in (3, 1, 0):
        yield replace(tick, holders=tick.holders[:count])
    yield replace(tick, holders=(), levels=(), sees={})
    yield Tick(tick.schema, tick.run, "", tick.unix, tick.interval, tick.level, "", left_out=True)


def _raised(snapshot: Snapshot) -> Iterable[MachineLevel]:
    raised = [verdict for verdict in snapshot.pressure if verdict.level > Level.LOW]
    for verdict in sorted(raised, key=lambda one: -one.level)[:MAX_POOLS]:
        texts = tuple(_cut(reason.text, TEXT_LENGTH) for reason in verdict.reasons[:MAX_REASONS])
        yield MachineLevel(_cut(verdict.target, NAME_LENGTH), verdict.level.word, texts)


def _holders(snapshot: Snapshot, device: Device | None, place: str) -> Iterable[HolderTick]:
    """Yield the largest processes by footprint, and those with the most memory of the device and in the pool."""
    from memwatch.planning.fit import find_holders  # when another machine follows this one

    held = {one.process.pid: one.held_bytes for one in find_holders(device, snapshot)} if device else {}
    ranked = by_footprint(snapshot.processes)
    places = find_places(snapshot, place)
    there = {one.pid: size_in(one, places) or 0 for one in ranked} if place else {}
    first = [*list(held)[:MAX_ON_DEVICE], *sorted(there, key=lambda pid: -there[pid])[:1]]
    sent = [*dict.fromkeys([*first, *(one.pid for one in ranked)])][:MAX_HOLDERS]
    for process in ranked:
        if process.pid in sent and isinstance(footprint := process.footprint_low_bytes, int):
            sizes = held.get(process.pid, 0) if device else footprint, there.get(process.pid, footprint)
            yield HolderTick(
                _cut(process.title, NAME_LENGTH), footprint, *(None if one == footprint else one for one in sizes)
            )


def _select(events: Iterable[Event]) -> tuple[MachineEvent, ...]:
    sent = [event for event in events if event.kind in SENT_EVENTS][:MAX_EVENTS]
    return tuple(MachineEvent(round(one.unix, 3), one.kind, _cut(one.text, TEXT_LENGTH)) for one in sent)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


_HEADER = msgspec.json.Decoder(Header)
_TICK = msgspec.json.Decoder(Tick)


def decode_all(ticks: Sequence[bytes]) -> list[Tick]:
    """Decode ticks that were accepted before."""
    return [decode_tick(one) for one in ticks]


FALL_SECONDS = 10.0
# Below this part of the pool a second, use is steady.
MIN_FALL_RATIO = 0.001


class LastWords(Struct, frozen=True):
    """The last tick, and how fast its fullest pool lost available memory; None if it did not."""

    tick: Tick
    falling_bytes_per_second: int | None
    sentence: str


def tell_last_words(ticks: Sequence[Tick]) -> LastWords | None:
    """Describe the end of these ticks, the oldest first. Times are of the neighbour's own clock."""
    if not ticks:
        return None
    last = ticks[-1]
    pool, falling = last.worst_pool, None
    parts = [f"heartbeat stopped at {words.clock(last.unix)}"]
    if pool is not None and pool.available is not None:
        falling = measure_fall(ticks, pool)
        parts.append(f"{units.size(pool.available)} left in {pool.label}")
    largest = last.largest_there
    if largest and (pool is None or pool.id == last.worst or len(last.pools) == 1):
        parts.append(f"{largest.name} {units.size(largest.bytes_there)}")
    if falling is not None:
        parts.append(f"falling {units.size(falling)}/s")
    return LastWords(last, falling, ", ".join(parts))


def measure_fall(ticks: Sequence[Tick], pool: PoolTick) -> int | None:
    """Return the loss of available memory per second in the last FALL_SECONDS, None if there was none."""
    last = ticks[-1]
    known = [
        (tick.unix, one.available)
        for tick in ticks
        if 0 <= last.unix - tick.unix <= FALL_SECONDS
        for one in tick.pools
        if one.id == pool.id and one.available is not None
    ]
    (began, before), (ended, after) = known[0], known[-1]
    if ended <= began:
        return None
    rate = (before - after) / (ended - began)
    return int(rate) if rate > MIN_FALL_RATIO * pool.size else None
