"""Check which devices have room for a number of bytes, and explain the result. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.accounting.relations import PERHAPS_IN_RSS
from memwatch.backends.devices import certain_part, compute_capacity, describe_state, read_system_ram
from memwatch.model import Absent, Bytes, Device, Process, find_system_ram
from memwatch.snapshot import Snapshot
from memwatch.units import size

CPU = "cpu"
NAMED_HOLDERS = 2
# Default threshold of the critical level, as a fraction of a pool's size.
CRITICAL_RATIO = 0.95


class FitVerdict(Struct, frozen=True):
    """Result for one device or the CPU. `spare_bytes`: bytes left over, negative if short. `reason`: a sentence.

    `headroom_bytes` decides. `needs_reclaim` is True if it fits only after the kernel has reclaimed page cache:
    `headroom_certain_bytes`, what is free already, is less than the need.
    """

    device: str
    name: str
    fits: bool | Absent
    size_bytes: Bytes
    headroom_bytes: Bytes
    spare_bytes: Bytes
    reason: str
    headroom_certain_bytes: Bytes = Absent.NOT_AVAILABLE
    needs_reclaim: bool | Absent = False


class Holder(NamedTuple):
    """A process and the least it holds in the pools and shares that were checked."""

    process: Process
    held_bytes: int


class Fit(Struct, frozen=True):
    """Verdicts for all devices. `best`: the id of the device to use, None if it fits nowhere."""

    bytes: int
    best: str | None
    verdicts: tuple[FitVerdict, ...]


def compute_fit(need: int, snapshot: Snapshot) -> Fit:
    """Check every GPU and the CPU. The best is the GPU with the most spare bytes, or the CPU if no GPU fits."""
    verdicts = (*(_on_device(need, device, snapshot) for device in snapshot.devices), _on_cpu(need, snapshot))
    fitting = [one for one in verdicts if one.fits is True]
    gpus = [one for one in fitting if one.device != CPU]
    best = max(gpus, key=_spare, default=fitting[0] if fitting else None)
    return Fit(need, best.device if best else None, verdicts)


def _spare(verdict: FitVerdict) -> int:
    return verdict.spare_bytes if isinstance(verdict.spare_bytes, int) else -1


def _on_device(need: int, device: Device, snapshot: Snapshot) -> FitVerdict:
    whole, certain = compute_capacity(device, snapshot), device.headroom_certain_bytes
    blank = FitVerdict(device.id, device.name, False, whole, device.headroom_bytes, 0, "", certain)
    if device.state != "ok":
        reason = f"{device.id} {describe_state(device)}"
        return replace(blank, spare_bytes=Absent.NOT_AVAILABLE, reason=reason)
    holders = _holders(snapshot, {_narrowest(place, snapshot) for place in device.allocates_from})
    return _judge(need, blank, holders)


def _on_cpu(need: int, snapshot: Snapshot) -> FitVerdict:
    ram = find_system_ram(snapshot.pools)
    if ram is None:
        reason = "no data for System RAM"
        return FitVerdict(CPU, "CPU", Absent.NOT_AVAILABLE, *(Absent.NOT_AVAILABLE,) * 3, reason)
    whole, room = read_system_ram(snapshot)
    certain = certain_part(room, ram.free_bytes)
    blank = FitVerdict(CPU, ram.label, False, whole, room, 0, "", certain)
    return _judge(need, blank, _holders(snapshot, {ram.id}))


def _judge(need: int, blank: FitVerdict, holders: Sequence[Holder]) -> FitVerdict:
    room, whole = blank.headroom_bytes, blank.size_bytes
    if isinstance(room, Absent):
        why = f"its headroom is not known ({room.value.replace('_', ' ')})"
        return replace(blank, fits=room, spare_bytes=room, reason=why)
    spare = room - need
    if spare >= 0:
        tight = isinstance(whole, int) and whole > 0 and spare < whole * (1 - CRITICAL_RATIO)
        warning = f", which is critical: less than {1 - CRITICAL_RATIO:.0%} of {size(whole)}" if tight else ""  # type: ignore[arg-type]
        reclaim = _needs_reclaim(need, blank)
        how = f"; only {size(blank.headroom_certain_bytes)} is free before reclaim" if reclaim is True else ""  # type: ignore[arg-type]
        reason = f"leaves {size(spare)}{warning}{how}"
        return replace(blank, fits=True, spare_bytes=spare, reason=reason, needs_reclaim=reclaim)
    if isinstance(whole, int) and need > whole:
        reason = f"short by {size(need - whole)}: its total is {size(whole)}"
        return replace(blank, spare_bytes=spare, reason=reason)
    reason = f"short by {size(-spare)} now; {_advice_for(holders, -spare)}"
    return replace(blank, spare_bytes=spare, reason=reason)


def _needs_reclaim(need: int, verdict: FitVerdict) -> bool | Absent:
    certain = verdict.headroom_certain_bytes
    return certain if isinstance(certain, Absent) else need > certain


def _advice_for(holders: Sequence[Holder], missing: int) -> str:
    """Name the largest holders. Promise that it fits only if their known memory covers the missing bytes."""
    named = holders[:NAMED_HOLDERS]
    words = ", ".join(f"{one.process.title} ({one.process.pid}) {size(one.held_bytes)}" for one in named)
    if not words:
        return "it fits if other processes free memory"
    if sum(one.held_bytes for one in named) >= missing:
        return f"it fits if these free memory: {words}"
    if sum(one.held_bytes for one in holders) >= missing:
        return f"it fits if other processes free memory; the largest: {words}"
    return f"the memory that processes are known to hold is not enough; the largest: {words}"


def _holders(snapshot: Snapshot, places: Set[str]) -> list[Holder]:
    """Return the processes that hold memory in these pools or shares, or in shares inside them, largest first."""
    within = {share.id: share.within for share in snapshot.shares}
    unsure = {share.id for share in snapshot.shares if share.kind in PERHAPS_IN_RSS}
    inside = {place for place in {*places, *within} if not places.isdisjoint(_way_out(place, within))}
    ram = find_system_ram(snapshot.pools)
    counts_rss = ram is not None and ram.id in places
    found = [Holder(process, _held(process, inside, unsure, counts_rss)) for process in snapshot.processes]
    return sorted((one for one in found if one.held_bytes), key=lambda one: -one.held_bytes)


def _held(process: Process, inside: Set[str], unsure: Set[str], counts_rss: bool) -> int:
    """Return a lower bound: device memory that may be part of the process's RSS is not counted twice."""
    known = {place: held for place, held in process.device_bytes.items() if place in inside}
    sums = [0, 0]
    for place, held in known.items():
        sums[place in unsure] += held if isinstance(held, int) else 0
    beyond, perhaps = sums
    rss = process.rss_bytes if counts_rss and isinstance(process.rss_bytes, int) else 0
    return beyond + max(rss, perhaps)


def _narrowest(place: str, snapshot: Snapshot) -> str:
    """Return the share or pool with the least room between `place` and its pool.

    Only memory freed there increases the headroom.
    """
    shares = {share.id: share for share in snapshot.shares}
    bounds: list[tuple[int, str]] = []
    while place in shares:
        share = shares[place]
        if isinstance(share.limit_bytes, int) and isinstance(share.used_bytes, int):
            bounds.append((share.limit_bytes - share.used_bytes, place))
        place = share.within
    pools = [pool.available_bytes for pool in snapshot.pools if pool.id == place]
    bounds += [(available, place) for available in pools if isinstance(available, int)]
    return min(bounds, default=(0, place))[1]


def _way_out(place: str, within: Mapping[str, str]) -> Iterator[str]:
    yield place
    while place in within:
        place = within[place]
        yield place
