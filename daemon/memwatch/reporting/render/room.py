"""Steps that make room for a number of bytes: their order, and the bytes that each frees. Pure functions.

The figures before and after are those of `fit`: after the steps it says yes, and without one of them it does not.
memwatchd performs none of them: it shows a command to copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.leased import way_out, with_leases_used
from memwatch.core.accounting.relations import HeadroomCalculator
from memwatch.core.backends.devices import list_binding_limits, read_system_ram
from memwatch.core.doc import Doc
from memwatch.core.leases import without_lease
from memwatch.core.model import (
    Absent,
    Bytes,
    Device,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json, Shape, Wire
from memwatch.planning.answer import answer_beside_leases, answer_size
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.fit import CPU, Fit, FitVerdict, compute_fit, shares_memory
from memwatch.reporting.render import words
from memwatch.reporting.render.actions import Freed, describe_owner, measure_held
from memwatch.reporting.render.room_candidates import NO_ASKER, RANKS, Asker, Candidate, StepKind, list_candidates

# A holder of less is not worth a step.
MIN_FREED_BYTES = 64 << 20


class RoomStep(Struct, frozen=True):
    """One thing that goes. `freed_bytes` is certain; the steps before it have gone by then."""

    kind: Annotated[
        StepKind,
        Doc(
            "`model`: its server unloads it and stays. `idle_engine`: a server without requests. `engine`: one of "
            "unknown use. `busy_engine`: one with requests. `program`: anything else."
        ),
    ]
    subject: Annotated[str, Doc("Server with its models, or program.", examples=("Ollama qwen3:8b",))]
    pid: Annotated[int, Doc("Its largest process.")]
    pids: Annotated[tuple[int, ...], Doc("All of its listed processes that end.")]
    owner: Annotated[str, Doc("User, and container or service.")]
    freed_bytes: Annotated[int, Doc("Bytes that are available for certain once it has gone.")]
    freed_most_bytes: Annotated[Bytes, Doc("Most bytes of it there: its processes may share pages.")]
    available_bytes: Annotated[int, Doc("Bytes available then, after reclaim of page cache.")]
    command: Annotated[str | None, Doc("Command to copy; null if none is known.")]
    hint: Annotated[str, Doc("The server's own way to release memory, with an unknown effect; may be empty.")]
    state: Annotated[str, Doc("What is known of its use now; empty for a program.")]
    cost: Annotated[str, Doc("Cost of starting it again, as far as it is known.")]
    reload_bytes: Annotated[Bytes, Doc("Weights that a server loads again; no time of a load is known.")]
    run_seconds: Annotated[float | Absent, Doc("Time since its largest process started.")]

    @property
    def freed(self) -> Freed:
        return Freed(self.freed_bytes, self.freed_most_bytes)


class RoomTarget(Struct, frozen=True):
    """A device or the CPU. `fit`: the verdict now, beside the leases of others. `after`: that after the steps."""

    fit: FitVerdict
    after: FitVerdict
    steps: Annotated[
        tuple[RoomStep, ...],
        Doc("What goes, in this order; all that can, if that is not enough. Empty if it fits now or never."),
    ]
    enough: Annotated[bool | Absent, Doc("True if it fits now or after the steps; null if memory is not known.")]
    alternatives: Annotated[tuple[RoomStep, ...], Doc("Others of which each alone would be enough as well.")]
    unknown: Annotated[tuple[str, ...], Doc("Holders of an unknown size, which are not counted.")]
    text: Annotated[str, Doc("The answer as a sentence.")]


class RoomAnswer(Struct, frozen=True):
    """Answer for each device. `best`: the device to use, null if the steps are not enough anywhere."""

    bytes: int
    best: Annotated[str | None, Doc("Device to use; null if all that can go is not enough, or if it is not known.")]
    targets: tuple[RoomTarget, ...]

    @property
    def is_unknown(self) -> bool:
        """True if some memory is not known, and none of the rest is enough."""
        return self.best is None and any(isinstance(one.enough, Absent) for one in self.targets)


class Spot(NamedTuple):
    """A target: its id in a verdict of `fit`, the machine with it, and the pools and shares that bound it."""

    id: str
    here: Snapshot
    places: tuple[str, ...]
    outermost: tuple[str, ...]


def find_room_for(
    need: int, snapshot: Snapshot, target: str = "", own_lease: str = "", asker: Asker = NO_ASKER
) -> RoomAnswer:
    """Return what would have to go on each device, or on `target`: a device, a MIG instance, a pool or "cpu".

    `own_lease`: the lease of the asker, which does not count. Raises InvalidInputError for an unknown target.
    """
    ids = [target] if target else default_targets(snapshot)
    candidates = sorted(list_candidates(snapshot, asker), key=lambda one: one.cost)
    found = tuple(_answer(need, snapshot, find_spot(snapshot, one), own_lease, candidates) for one in ids)
    return RoomAnswer(need, _choose(found), found)


def _choose(found: Sequence[RoomTarget]) -> str | None:
    """Return the device with room now, as `fit` chooses it, else the one whose steps cost least."""
    possible = [one for one in found if one.enough is True]
    best = min(possible, key=_preference, default=None)
    return best.fit.device if best else None


def _preference(one: RoomTarget) -> tuple[object, ...]:
    spare = one.fit.spare_bytes if isinstance(one.fit.spare_bytes, int) else 0
    worst = max((RANKS[step.kind] for step in one.steps), default=-1)
    freed = sum(step.freed_bytes for step in one.steps)
    return bool(one.steps), one.fit.device == CPU, worst, len(one.steps), freed, -spare, one.fit.device


def default_targets(snapshot: Snapshot) -> list[str]:
    """Return all devices, and the CPU unless its memory is that of a GPU."""
    devices = [one.id for one in snapshot.devices]
    return devices if any(shares_memory(one, snapshot) for one in snapshot.devices) else [*devices, CPU]


def list_room_targets(snapshot: Snapshot) -> list[str]:
    """Return the targets that may be named."""
    instances = [one.id for one in snapshot.shares if one.kind is ShareKind.MIG_INSTANCE]
    return list(dict.fromkeys([*(one.id for one in snapshot.devices), *instances, *_pool_ids(snapshot), CPU]))


def _pool_ids(snapshot: Snapshot) -> Iterator[str]:
    """Yield System RAM, and pools that a device fills alone: for these, the device is asked."""
    yield from (one.id for one in snapshot.pools if one.kind is PoolKind.SYSTEM_RAM or _device_in(one, snapshot))


def _device_in(pool: Pool, snapshot: Snapshot) -> Device | None:
    return next((one for one in snapshot.devices if one.allocates_from == (pool.id,)), None)


def find_spot(snapshot: Snapshot, target: str) -> Spot:
    """Return the place of a target. Raises InvalidInputError."""
    ram = find_system_ram(snapshot.pools)
    device = next((one for one in snapshot.devices if one.id == target), None)
    pool = next((one for one in snapshot.pools if one.id == target), None)
    if device is None and pool is not None and pool is not ram:
        device = _device_in(pool, snapshot)
    share = next((one for one in snapshot.shares if one.id == target), None)
    if device is None and share is not None and share.kind is ShareKind.MIG_INSTANCE:
        device = _as_device(share, snapshot)
    within = {one.id: one.within for one in snapshot.shares}
    if device is not None:
        paths = [tuple(way_out(place, within)) for place in device.allocates_from]
        outermost = tuple(dict.fromkeys(target if share else path[-1] for path in paths))
        places = tuple(dict.fromkeys(place for path in paths for place in path))
        others = tuple(one for one in snapshot.devices if one.id != device.id)
        return Spot(device.id, replace(snapshot, devices=(device, *others)), places, outermost)
    if target == CPU or (ram is not None and target == ram.id):
        limits = [one.id for one in list_binding_limits(snapshot.shares, snapshot.machine)]
        ids = (ram.id,) if ram else ()
        return Spot(CPU, snapshot, (*ids, *limits), ids)
    use = ", ".join(list_room_targets(snapshot))
    raise InvalidInputError(f'target is "{target[:80]}", which this machine does not have; use one of {use}')


def _as_device(instance: Share, snapshot: Snapshot) -> Device:
    """Return a MIG instance as a program sees it: a device that allocates from it alone."""
    whole = next((one for one in snapshot.devices if one.id == instance.device), None)
    blank = Absent.NOT_AVAILABLE
    if whole is None:
        raise InvalidInputError(f"{instance.id} belongs to no device that is read; use the device's id")
    alone = replace(
        whole,
        id=instance.id,
        name=f"{whole.name}, {instance.label}",
        allocates_from=(instance.id,),
        headroom_bytes=blank,
        headroom_after_reclaim_bytes=blank,
    )
    return HeadroomCalculator(snapshot.pools, snapshot.shares).with_headroom(alone)


def _answer(
    need: int, snapshot: Snapshot, spot: Spot, own_lease: str, candidates: Sequence[Candidate]
) -> RoomTarget:
    now = _verdict(answer_beside_leases(spot.here, own_lease, lambda seen: answer_size(need, "", seen)).fit, spot)
    unknown = tuple(_list_unknown(candidates, snapshot, spot))
    blank = RoomTarget(now, now, (), now.fits, (), unknown, "")
    if now.fits is not False or not isinstance(now.spare_bytes, int):
        return replace(blank, text=_sentence(blank))
    if isinstance(now.size_bytes, int) and need > now.size_bytes:
        return replace(blank, text=_sentence(blank))
    scale = Scale(spot, snapshot, with_leases_used(spot.here, without_lease(snapshot.leases, own_lease)))
    useful = [one for one in candidates if scale.holds(one)]
    chosen = _choose_steps(useful, scale, min(need, scale.available(useful)))
    after = _verdict(compute_fit(need, scale.without(chosen)), spot)
    alone = [one for one in useful if one not in chosen and scale.available((one,)) >= need]
    found = replace(
        blank,
        after=after,
        steps=tuple(_take_in_turn(chosen, scale, snapshot)),
        enough=after.fits,
        alternatives=tuple(next(iter(_take_in_turn((one,), scale, snapshot))) for one in alone),
    )
    return replace(found, text=_sentence(found))


def _verdict(fit: Fit, spot: Spot) -> FitVerdict:
    return next(one for one in fit.verdicts if one.device == spot.id)


def _choose_steps(useful: Sequence[Candidate], scale: Scale, goal: int) -> tuple[Candidate, ...]:
    """Return the cheapest candidates until `goal` bytes are available, without those that others make needless."""
    count = bisect_left(range(len(useful)), goal, key=lambda most: scale.available(useful[:most]))
    chosen = list(useful[:count])
    for one in reversed(chosen.copy()):
        rest = [other for other in chosen if other is not one]
        if scale.available(rest) >= goal:
            chosen = rest
    return tuple(chosen)


class Scale:
    """Headroom of one target without some of its holders. `here`: with the leases of others in use."""

    def __init__(self, spot: Spot, snapshot: Snapshot, here: Snapshot) -> None:
        self._spot, self._snapshot, self._here = spot, snapshot, here
        self._calculator = HeadroomCalculator(here.pools, here.shares)
        self._measured: dict[tuple[int, ...], Mapping[str, int]] = {}

    def holds(self, one: Candidate) -> bool:
        return max(self._measure(one).values(), default=0) >= MIN_FREED_BYTES

    def available(self, gone: Sequence[Candidate]) -> int:
        """Return the bytes that are available after reclaim once these have gone, 0 if that is not known."""
        is_cpu = self._spot.id == CPU
        room = read_system_ram(self.without(gone)).room if is_cpu else self._freed(gone)[2][0]
        left = room.headroom_after_reclaim_bytes
        return left if isinstance(left, int) else 0

    def most(self, one: Candidate) -> Bytes:
        """Return the most that may come back from a holder."""
        parts = [measure_held(one.members, self._snapshot, place).high_bytes for place in self._spot.outermost]
        return sum_figures(parts)

    def without(self, gone: Sequence[Candidate]) -> Snapshot:
        """Return the machine once these have gone."""
        pools, shares, devices = self._freed(gone)
        return replace(self._here, pools=pools, shares=shares, devices=devices)

    def _freed(self, gone: Sequence[Candidate]) -> tuple[tuple[Pool, ...], tuple[Share, ...], tuple[Device, ...]]:
        here = self._here
        freed = {place: sum(self._measure(one)[place] for one in gone) for place in self._spot.places}
        if not any(freed.values()):
            return here.pools, here.shares, here.devices
        pools = tuple(_freed_pool(one, freed.get(one.id, 0)) for one in here.pools)
        shares = tuple(_freed_share(one, freed.get(one.id, 0)) for one in here.shares)
        after = HeadroomCalculator(pools, shares)
        first = tuple(_freed_device(one, self._calculator, after) for one in here.devices[:1])
        return pools, shares, (*first, *here.devices[1:])

    def _measure(self, one: Candidate) -> Mapping[str, int]:
        key = tuple(member.pid for member in one.sure)
        if key not in self._measured:
            self._measured[key] = {place: self._held(one, place) for place in self._spot.places}
        return self._measured[key]

    def _held(self, one: Candidate, place: str) -> int:
        """Return what certainly comes back to a place. Of a pool with huge pages, that is resident memory only."""
        pool = next((pool for pool in self._here.pools if pool.id == place), None)
        sure = one.sure
        if pool is not None and pool.set_aside_bytes:
            sure = tuple(replace(member, device_bytes={}) for member in sure)
        return measure_held(sure, self._snapshot, place).low_bytes


def _freed_pool(pool: Pool, freed: int) -> Pool:
    """Return bytes to a pool, at most what holders can have of it: not the kernel's part, or the driver's."""
    used, available, free = pool.used_bytes, pool.available_bytes, pool.free_bytes
    if not freed or isinstance(used, Absent) or isinstance(available, Absent):
        return pool
    kernel = sum(part.size_bytes for part in pool.contents if part.kind == "kernel")
    reserved = pool.reserved_bytes if isinstance(pool.reserved_bytes, int) else 0
    back = max(0, min(freed, used - max(kernel, reserved)))
    return replace(
        pool,
        used_bytes=used - back,
        available_bytes=available + back,
        free_bytes=free if isinstance(free, Absent) else min(pool.size_bytes, free + back),
        contents=(),
    )


def _freed_share(share: Share, freed: int) -> Share:
    used = share.used_bytes
    return share if isinstance(used, Absent) or not freed else replace(share, used_bytes=max(0, used - freed))


def _freed_device(device: Device, before: HeadroomCalculator, after: HeadroomCalculator) -> Device:
    """Raise the headroom as its chains rise. Where a limit beyond these is smaller, nothing is certain."""
    blank = replace(device, headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE, headroom_bytes=Absent.NOT_AVAILABLE)
    old, new = before.with_headroom(blank), after.with_headroom(blank)
    if device.headroom_after_reclaim_bytes != old.headroom_after_reclaim_bytes:
        return device
    return replace(
        device,
        headroom_bytes=new.headroom_bytes,
        headroom_after_reclaim_bytes=new.headroom_after_reclaim_bytes,
    )


def _take_in_turn(chosen: Sequence[Candidate], scale: Scale, snapshot: Snapshot) -> Iterator[RoomStep]:
    before = scale.available(())
    for count, one in enumerate(chosen, 1):
        available = scale.available(chosen[:count])
        yield _build_step(one, scale.most(one), available - before, available, snapshot)
        before = available


def _build_step(one: Candidate, most: Bytes, freed: int, available: int, snapshot: Snapshot) -> RoomStep:
    process = one.process
    started = process.start_time
    seconds = started if isinstance(started, Absent) else max(0.0, round(snapshot.unix - started, 3))
    return RoomStep(
        one.kind,
        one.subject,
        process.pid,
        tuple(sorted(member.pid for member in one.members)),
        describe_owner(process, snapshot),
        freed,
        most if isinstance(most, Absent) else max(most, freed),
        available,
        one.command,
        one.hint,
        one.state,
        describe_cost(one, seconds),
        one.reload_bytes,
        seconds,
    )


def describe_cost(one: Candidate, run_seconds: float | Absent) -> str:
    """Return the cost of starting it again: of a server the weights to load, of a program its work."""
    if one.kind == "program":
        since = "an unknown time" if isinstance(run_seconds, Absent) else words.duration(run_seconds)
        return f"it has run for {since}, and loses work that is not saved"
    weights = (
        "its weights" if isinstance(one.reload_bytes, Absent) else f"{words.size(one.reload_bytes)} of weights"
    )
    stays = "its server stays and loads" if one.kind == "model" else "at its next start it loads"
    return f"{stays} {weights} again; how fast is not known"


def _list_unknown(candidates: Sequence[Candidate], snapshot: Snapshot, spot: Spot) -> Iterator[str]:
    """Yield a text for each holder in a target of which no size is known."""
    for one in candidates:
        if not any(isinstance(part, Absent) for member in one.members for part in _figures(member)):
            continue
        found = [measure_held(one.members, snapshot, place) for place in spot.outermost]
        unknown = next((part.high_bytes for part in found if isinstance(part.high_bytes, Absent)), None)
        if unknown and not any(part.low_bytes for part in found):
            yield f"{one.subject} ({one.process.pid}): {words.ABSENT_WORDS[unknown]}"


def _figures(process: Process) -> Iterable[Bytes]:
    return process.rss_bytes, *process.device_bytes.values()


def _sentence(found: RoomTarget) -> str:
    now, after = found.fit, found.after
    if now.fits is True:
        return f"Fits now: {now.reason}."
    if isinstance(now.fits, Absent) or not found.steps or found.enough is True:
        text = now.reason if not found.steps else f"then it fits: {after.reason}"
        return f"{text[0].upper()}{text[1:]}."
    left = after.headroom_after_reclaim_bytes
    missing = -after.spare_bytes if isinstance(after.spare_bytes, int) else 0
    return (
        f"Not enough: with all of these gone {words.size(left)} are available of {words.size(now.need_bytes)}, "
        f"{words.size(missing)} are missing."
    )


ROOM = Wire((Shape(RoomAnswer, "Room"), Shape(RoomTarget), Shape(RoomStep)))


def room_json(found: RoomAnswer) -> Json:
    return ROOM.encode(found)
