"""Check which devices have room for a number of bytes, and explain the result. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Annotated, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.backends.devices import compute_capacity, describe_state, read_system_ram
from memwatch.core.doc import Doc
from memwatch.core.model import (
    PERHAPS_IN_RSS,
    RAM_LABEL,
    Absent,
    Architecture,
    Bytes,
    Device,
    Process,
    Thresholds,
    find_inside,
    find_root,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size

CPU = "cpu"
NAMED_HOLDERS = 2
NAMED_DEVICES = 2
# Default threshold of the critical level, as a fraction of a pool's size.
CRITICAL_RATIO = Thresholds().critical


class Demand(Struct, frozen=True):
    """Bytes on each GPU, and bytes in System RAM for each GPU. `runtime_bytes`: a GPU's context, none on a CPU.

    `ram_at_peak_bytes`: bytes in System RAM while the GPU has most, if these are less: components that take turns.
    `host_bytes`: of the engine's processes in System RAM, counted there and on GPUs whose memory is the same.
    """

    device_bytes: int
    ram_bytes: int = 0
    runtime_bytes: int = 0
    ram_at_peak_bytes: int | None = None
    host_bytes: int = 0

    @property
    def beside_bytes(self) -> int:
        return self.ram_bytes if self.ram_at_peak_bytes is None else self.ram_at_peak_bytes

    @property
    def cpu_bytes(self) -> int:
        """Everything that a run on the CPU holds: nothing is moved there, and there is no context."""
        return self.device_bytes + self.beside_bytes + self.host_bytes


class FitVerdict(Struct, frozen=True):
    """Result for one device or the CPU. `spare_bytes`: bytes left over, negative if short. `reason`: a sentence.

    `headroom_after_reclaim_bytes` decides. `needs_reclaim` is True if it fits only after the kernel has reclaimed
    page cache: `headroom_bytes`, what is free already, is less than the need. `need_bytes`: bytes from this device;
    `ram_need_bytes`: bytes that the plan moves to System RAM, which on unified memory are part of the former.
    `leased_bytes`: bytes that leases of others take from the headroom. `host_bytes`: the part of `need_bytes` that
    the engine's processes take beside the GPU's memory, where both are one.
    """

    device: str
    name: str
    fits: bool | Absent
    size_bytes: Annotated[Bytes, Doc("Maximum memory that it can use.")]
    headroom_after_reclaim_bytes: Annotated[Bytes, Doc("Memory that can be allocated after reclaim of page cache.")]
    spare_bytes: Annotated[Bytes, Doc("Bytes to spare; negative: bytes missing.")]
    reason: str
    headroom_bytes: Annotated[Bytes, Doc("Part of it that is free now, without reclaim.")] = Absent.NOT_AVAILABLE
    needs_reclaim: Annotated[
        bool | Absent,
        Doc("True if it fits only after the kernel has reclaimed page cache; null if that is unknown."),
    ] = False
    need_bytes: Annotated[int, Doc("Bytes that it needs from this device.")] = 0
    ram_need_bytes: Annotated[
        int, Doc("Bytes moved to system RAM; on unified memory they are part of need_bytes.")
    ] = 0
    leased_bytes: Annotated[int, Doc("Bytes that leases of others take from the headroom.")] = 0
    host_bytes: Annotated[
        int, Doc("Part of need_bytes of the engine's processes, where CPU and GPU share their memory.")
    ] = 0


def exceeds_totals(verdicts: Sequence[FitVerdict]) -> bool:
    """Return True if a need is more than each memory, and than all GPUs together: freeing memory does not help."""
    gpus = [one.size_bytes for one in verdicts if one.device != CPU]
    rooms = (sum_figures(gpus), *(one.size_bytes for one in verdicts))
    return all(isinstance(room, int) and one.need_bytes > room for one in verdicts for room in rooms)


class Holder(NamedTuple):
    """A process and the least it holds in the pools and shares that were checked."""

    process: Process
    held_bytes: int


class Split(Struct, frozen=True):
    """Several GPUs that hold a plan together."""

    devices: tuple[str, ...]
    bytes: Annotated[int, Doc("Bytes on each of them.")]
    spare_bytes: Annotated[int, Doc("What is left on the fullest.")]
    reason: str


class Fit(Struct, frozen=True):
    """Verdicts for all devices. `best`: the id of the device to use alone, None if no single one is best.

    `unknown`: why the answer is neither yes nor no, a sentence.
    """

    bytes: int
    best: str | None
    verdicts: tuple[FitVerdict, ...]
    split: Split | None = None
    unknown: str = ""

    @property
    def is_yes(self) -> bool:
        return self.best is not None or self.split is not None


def compute_fit(
    need: int | Demand,
    snapshot: Snapshot,
    reserve: int = 0,
    splits: Iterable[tuple[int, str, Demand]] = (),
    together: bool = False,
) -> Fit:
    """Check every GPU and the CPU. The best is the GPU with the most spare bytes, or the CPU if no GPU fits.

    `splits`: (number of GPUs, kind, demand on each); the first with room is taken where no single GPU fits, before
    the CPU, or in place of all others if `together`. `reserve` bytes stay free in each pool.
    """
    demand = need if isinstance(need, Demand) else Demand(need)
    gpus = (_on_device(demand, device, snapshot, reserve) for device in snapshot.devices)
    verdicts = (*gpus, _on_cpu(demand, snapshot, reserve))
    fitting = [one for one in verdicts if one.fits is True]
    alone = max((one for one in fitting if one.device != CPU), key=_spare, default=None)
    split = None if alone and not together else find_split(splits, snapshot, reserve)
    best = None if together else alone or (fitting[0] if fitting and not split else None)
    unsure = [] if best or split else [one for one in verdicts if isinstance(one.fits, Absent)]
    why = "; ".join(f"{one.device}: {one.reason}" for one in unsure[:NAMED_DEVICES])
    needed = demand.device_bytes + demand.runtime_bytes
    return Fit(needed, best.device if best else None, verdicts, split, f"{why}." if why else "")


def doubt(found: Fit, note: str) -> Fit:
    """Return the verdicts of a need that is a lower bound: without room, it does not fit; with room, it may."""
    if not found.is_yes:
        return found
    verdicts = tuple(
        replace(one, fits=Absent.NOT_AVAILABLE, reason=f"{one.reason}, if that is all it needs")
        if one.fits is True
        else one
        for one in found.verdicts
    )
    split, room = found.split, f"{size(found.bytes)} on {found.best}"
    if split:
        room = f"{size(split.bytes)} on each of {len(split.devices)} GPUs"
    return replace(found, best=None, split=None, verdicts=verdicts, unknown=f"There is room for {room}. {note}")


def _spare(verdict: FitVerdict) -> int:
    return verdict.spare_bytes if isinstance(verdict.spare_bytes, int) else -1


def find_split(splits: Iterable[tuple[int, str, Demand]], snapshot: Snapshot, reserve: int) -> Split | None:
    """Return the first of `splits` that has room on the GPUs with the most headroom and memory of their own."""
    whole = read_system_ram(snapshot).room.headroom_after_reclaim_bytes
    own = [
        (device.headroom_after_reclaim_bytes, device) for device in snapshot.devices if _is_own(device, snapshot)
    ]
    known = [(room, device) for room, device in own if isinstance(room, int)]
    rooms = sorted(known, key=lambda one: (-one[0], one[1].id))
    for count, how, demand in splits:
        if count > len(rooms):
            continue
        chosen = rooms[:count]
        host = max(_host_bytes(demand, device, snapshot) for _, device in chosen)
        each = demand.device_bytes + demand.runtime_bytes + host
        spare = chosen[-1][0] - reserve - each
        beside = count * demand.ram_bytes
        fits_ram = not beside or (isinstance(whole, int) and beside + reserve <= whole)
        if spare >= 0 and fits_ram:
            moved = f"; {size(beside)} in System RAM" if beside else ""
            reason = f"{how} on {count} GPUs, {size(each)} on each; leaves {size(spare)} on the fullest{moved}"
            return Split(tuple(device.id for _, device in chosen), each, spare, reason)
    return None


def _is_own(device: Device, snapshot: Snapshot) -> bool:
    """Return True for a usable GPU that shares its memory neither with the CPU nor with another GPU."""
    own = _pools(device.allocates_from, snapshot)
    others = {
        pool for one in snapshot.devices if one is not device for pool in _pools(one.allocates_from, snapshot)
    }
    ram = find_system_ram(snapshot.pools)
    shared = own & (others | ({ram.id} if ram else set()))
    return device.state == "ok" and not shared


def _pools(places: Iterable[str], snapshot: Snapshot) -> set[str]:
    within = {share.id: share.within for share in snapshot.shares}
    return {find_root(place, within) for place in places}


def has_context(device: Device) -> bool:
    """Return True if a process on the GPU has a CUDA or HIP context, whose cost is in no allocation."""
    return device.vendor.upper() in ("NVIDIA", "AMD")


def _on_device(demand: Demand, device: Device, snapshot: Snapshot, reserve: int) -> FitVerdict:
    whole, certain = compute_capacity(device, snapshot), device.headroom_bytes
    host = _host_bytes(demand, device, snapshot)
    need = demand.device_bytes + demand.runtime_bytes * has_context(device) + host
    blank = FitVerdict(
        device.id, device.name, False, whole, device.headroom_after_reclaim_bytes, 0, "", certain, need_bytes=need,
        host_bytes=host,
    )  # fmt: skip
    if device.state != "ok":
        reason = f"{device.id} {describe_state(device)}"
        return replace(blank, spare_bytes=Absent.NOT_AVAILABLE, reason=reason)
    own = _pools(device.allocates_from, snapshot)
    if not all(pool.size_bytes for pool in snapshot.pools if pool.id in own):
        return _without_size(blank, "its memory")
    on_gpu = _name_host(_judge(need, blank, find_holders(device, snapshot), reserve))
    if not demand.ram_bytes:
        return on_gpu
    within = _bytes_in_ram(need, device, snapshot)
    unified = within > 0
    beside = demand.beside_bytes if unified else demand.ram_bytes
    verdict = _join(on_gpu, _in_system_ram(within + beside, snapshot, reserve))
    gained = f"; {SAME_MEMORY.format(size(beside))}" if unified else ""
    total = need + beside if unified else need
    return replace(verdict, reason=verdict.reason + gained, need_bytes=total, ram_need_bytes=demand.ram_bytes)


def _host_bytes(demand: Demand, device: Device, snapshot: Snapshot) -> int:
    return demand.host_bytes if shares_memory(device, snapshot) else 0


def shares_memory(device: Device, snapshot: Snapshot) -> bool:
    """Return True for a GPU whose memory is that of its CPU: System RAM, or that of a machine that a user named."""
    ram = find_system_ram(snapshot.pools)
    is_in_ram = ram is not None and ram.id in _pools(device.allocates_from, snapshot)
    return is_in_ram or device.architecture is Architecture.UNIFIED


SAME_MEMORY = "the {} moved to System RAM stay in the same memory, so nothing is gained"


def _bytes_in_ram(need: int, device: Device, snapshot: Snapshot) -> int:
    """Return the part of a need on a GPU that is in System RAM: what its own pools cannot take."""
    ram = find_system_ram(snapshot.pools)
    pools = _pools(device.allocates_from, snapshot)
    if ram is None or ram.id not in pools:
        return 0
    own = [pool.available_bytes for pool in snapshot.pools if pool.id in pools - {ram.id}]
    return max(0, need - sum(one for one in own if isinstance(one, int)))


def _join(on_gpu: FitVerdict, in_ram: FitVerdict) -> FitVerdict:
    """Return the verdict of the pool with less to spare, under the name of the GPU."""
    left, right = on_gpu.spare_bytes, in_ram.spare_bytes
    if isinstance(left, Absent) or (isinstance(right, int) and left <= right):
        return on_gpu
    reason = f"System RAM: {in_ram.reason}"
    return replace(
        on_gpu,
        fits=in_ram.fits,
        spare_bytes=in_ram.spare_bytes,
        reason=reason,
        needs_reclaim=in_ram.needs_reclaim,
    )


def _on_cpu(demand: Demand, snapshot: Snapshot, reserve: int) -> FitVerdict:
    verdict = _in_system_ram(demand.cpu_bytes, snapshot, reserve)
    return _name_host(replace(verdict, host_bytes=demand.host_bytes))


def _name_host(verdict: FitVerdict) -> FitVerdict:
    """Name the engine's processes as a reason where only they make a plan too large."""
    short = -verdict.spare_bytes if isinstance(verdict.spare_bytes, int) else 0
    if not 0 < short <= verdict.host_bytes:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; its engine's processes are {size(verdict.host_bytes)} of it")


def _in_system_ram(need: int, snapshot: Snapshot, reserve: int) -> FitVerdict:
    ram = find_system_ram(snapshot.pools)
    whole, certain, room = read_system_ram(snapshot).room
    blank = FitVerdict(CPU, ram.label if ram else "CPU", False, whole, room, 0, "", certain, need_bytes=need)
    if ram is None or not ram.size_bytes:
        return _without_size(blank, RAM_LABEL)
    return _judge(need, blank, _holders(snapshot, {ram.id}), reserve)


def _without_size(blank: FitVerdict, memory: str) -> FitVerdict:
    """Return that it is not known. A size of 0 is a figure that nothing reports: no memory has it."""
    none = Absent.NOT_AVAILABLE
    return replace(
        blank, fits=none, size_bytes=none, headroom_after_reclaim_bytes=none, headroom_bytes=none, spare_bytes=none,
        reason=f"the size of {memory} is not known",
    )  # fmt: skip


def _judge(need: int, blank: FitVerdict, holders: Sequence[Holder], reserve: int) -> FitVerdict:
    room, whole = blank.headroom_after_reclaim_bytes, blank.size_bytes
    if isinstance(room, Absent):
        why = f"its headroom is not known ({room.value.replace('_', ' ')})"
        return replace(blank, fits=room, spare_bytes=room, reason=why)
    spare = room - reserve - need
    beside = f" beside the reserve of {size(reserve)}" if reserve else ""
    if spare >= 0:
        tight = isinstance(whole, int) and whole > 0 and spare < whole * (1 - CRITICAL_RATIO)
        warning = f", which is critical: less than {1 - CRITICAL_RATIO:.0%} of {size(whole)}" if tight else ""  # type: ignore[arg-type]
        reclaim = _needs_reclaim(need, blank)
        how = f"; only {size(blank.headroom_bytes)} is free before reclaim" if reclaim is True else ""  # type: ignore[arg-type]
        reason = f"leaves {size(spare)}{beside}{warning}{how}"
        return replace(blank, fits=True, spare_bytes=spare, reason=reason, needs_reclaim=reclaim)
    if isinstance(whole, int) and need + reserve > whole:
        reason = f"short by {size(need + reserve - whole)}{beside}: its total is {size(whole)}"
        return replace(blank, spare_bytes=spare, reason=reason)
    reason = f"short by {size(-spare)} now{beside}; {_advice_for(holders, -spare)}"
    return replace(blank, spare_bytes=spare, reason=reason)


def _needs_reclaim(need: int, verdict: FitVerdict) -> bool | Absent:
    certain = verdict.headroom_bytes
    return certain if isinstance(certain, Absent) else need > certain


def _advice_for(holders: Sequence[Holder], missing: int) -> str:
    """Name the largest holders. Promise that it fits only if their known memory covers the missing bytes."""
    named = holders[:NAMED_HOLDERS]
    if not named:
        return "it fits if other processes free memory"
    if alone := [one for one in named if one.held_bytes >= missing]:
        which = "this one" if len(alone) == 1 else "one of these"
        return f"it fits if {which} frees memory: {_holder_words(alone)}"
    words = _holder_words(named)
    if sum(one.held_bytes for one in named) >= missing:
        return f"it fits if these free memory: {words}"
    if sum(one.held_bytes for one in holders) >= missing:
        return f"it fits if other processes free memory; the largest: {words}"
    return f"the memory that processes are known to hold is not enough; the largest: {words}"


def _holder_words(holders: Iterable[Holder]) -> str:
    return ", ".join(f"{one.process.title} ({one.process.pid}) {size(one.held_bytes)}" for one in holders)


def find_holders(device: Device, snapshot: Snapshot) -> list[Holder]:
    """Return the processes whose memory limits the headroom of a device, largest first."""
    return _holders(snapshot, {_narrowest(place, snapshot) for place in device.allocates_from})


def _holders(snapshot: Snapshot, places: Set[str]) -> list[Holder]:
    """Return the processes that hold memory in these pools or shares, or in shares inside them, largest first."""
    unsure = {share.id for share in snapshot.shares if share.kind in PERHAPS_IN_RSS}
    inside = find_inside(places, snapshot.shares)
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
