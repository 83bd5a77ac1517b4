"""Limits of cgroups on GPU memory, as shares of the GPU's pool, and the kernel's count of GPU memory by owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.relations import bound_headroom
from memwatch.core.backends.devices import list_binding_limits
from memwatch.core.drivers.nvml.records import NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import OwnerNames, owner_folders, parse_owners
from memwatch.core.linux.dmem import DmemReading, is_within, nearest, region_address
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Architecture, Bytes, Device, Quality, Share, ShareKind, sum_figures
from memwatch.core.owners import OWNER_KINDS, KernelHeld
from memwatch.core.printable import printable, shorten_ids
from memwatch.core.snapshot import Machine, Snapshot
from memwatch.core.units import size

# Each limit is a share, a pressure target, and eight series.
MAX_LIMITS = 64
MAX_ID_CHARACTERS = 160
_NO_SPACE = str.maketrans(dict.fromkeys(' ,"\\{}', "_"))
# Regions that are a GPU's main memory. Others are named in the share's id.
MAIN_REGIONS = frozenset({"vram", "vram0", "vidmem"})
# Shares that are all of a GPU's memory, where it has no pool.
WHOLE_DEVICE = frozenset({ShareKind.CUDA_POOL, ShareKind.GPU_LIMIT})
# Drivers with TTM: their buffers are what a kernel with a `gpu` line in memory.stat charges to cgroups.
CHARGED_VENDORS = frozenset({"AMD", "Intel"})


M = TypeVar("M", Findings, Snapshot)


class Place(NamedTuple):
    """The pool or share that contains the memory of a GPU, and the GPU's size if it is known.

    `is_partition`: that share is the limit of memwatchd's own cgroup.
    """

    device: str
    address: tuple[int, ...] | None
    uuid: str | Absent
    id: str | None
    size_bytes: int | None
    is_partition: bool = False


class GroupLimit(Struct, frozen=True):
    """One limit: a cgroup and the GPU whose memory is limited. `nests`: limits of outer cgroups apply as well."""

    place: Place
    cgroup: str
    region: str
    limit_bytes: int
    used_bytes: Bytes
    source: str
    peak_bytes: Bytes = Absent.NOT_SUPPORTED
    protected_bytes: int = 0
    nests: bool = True


class Limits(NamedTuple):
    """Shares and owners' memory built from the readings, and notes by device (`""`: of the machine)."""

    shares: tuple[Share, ...] = ()
    held: tuple[KernelHeld, ...] = ()
    notes: Mapping[str, tuple[str, ...]] = {}
    own: tuple[str, ...] = ()
    left_out: int = 0


def with_gpu_limits(found: Findings) -> Findings:
    """Add the limits to the findings. Without any, the findings are returned unchanged."""
    found = with_charged_headroom(found)
    nvml = found.nvml if found.nvml and any(not isinstance(gpu.limits, Absent) for gpu in found.nvml.gpus) else None
    if found.dmem is None and nvml is None:
        return found
    limits = _build_cached(found, nvml)
    names = found.container_names or {}
    contained = found.machine is not None and found.machine.in_container
    shares = tuple(_with_name(share, names) for share in limits.shares)
    own = {share.device: share for share in shares if contained and share.id in limits.own}
    return replace(
        found,
        shares=(*found.shares, *shares),
        kernel_held=limits.held,
        devices=tuple(
            _with_limit(device, own.get(device.id), limits.notes.get(device.id, ())) for device in found.devices
        ),
        machine=_with_notes(found.machine, limits.notes.get("", ())),
        left_out={
            **(found.left_out or {}),
            "gpu_limits": limits.left_out,
            "nvidia_cgroups": sum(gpu.cgroups_left_out for gpu in nvml.gpus) if nvml else 0,
        },
    )


class CachedLimits(NamedTuple):
    """The limits of the last call, and the inputs they were built from."""

    dmem: DmemReading | None = None
    nvml: NvmlReading | None = None
    figures: tuple[object, ...] = ()
    limits: Limits = Limits()


# The readings change once a second at most, and 64 limits take half a millisecond.
_cached = CachedLimits()


def _build_cached(found: Findings, nvml: NvmlReading | None) -> Limits:
    global _cached
    places, stale = build_places(found), found.stale & {"dmem", "nvml"}
    if _cached.dmem is found.dmem and _cached.nvml is nvml and _cached.figures == (places, stale):
        return _cached.limits
    limits = build_limits(found.dmem, nvml, places, stale)
    _cached = CachedLimits(found.dmem, nvml, (places, stale), limits)
    return limits


def build_limits(
    dmem: DmemReading | None, nvml: NvmlReading | None, places: Sequence[Place], stale: frozenset[str]
) -> Limits:
    """Build shares from the kernel's limits, and from the driver's for GPUs that the kernel does not limit."""
    found, lost = _split_matched(_list_kernel_limits(dmem, places, "dmem" in stale))
    known = {limit.place.device for limit in found}
    found += [
        limit for limit in _list_driver_limits(nvml, places, "nvml" in stale) if limit.place.device not in known
    ]
    found.sort(key=lambda limit: (limit.cgroup != "/", -limit.limit_bytes, limit.cgroup, limit.place.device))
    kept = found[:MAX_LIMITS]
    left_out = len(found) - len(kept) + (dmem.left_out if dmem else 0)
    notes: dict[str, tuple[str, ...]] = {}
    if lost:
        notes[""] = (f"Limits on {', '.join(lost)} are not shown: no GPU memory shown here is that region.",)
    if left_out and kept:
        notes[kept[0].place.device] = (
            f"Only the {len(kept)} largest cgroup limits on GPU memory are shown; {left_out} are left out.",
        )
    shares = build_shares(kept)
    own = dmem.own if dmem else "/"
    mine = [limit.cgroup for limit in kept if is_within(own, limit.cgroup)]
    return Limits(
        tuple(shares),
        tuple(_sum_held(dmem, places, "dmem" in stale)),
        notes,
        tuple(share.id for share, limit in zip(shares, kept, strict=True) if limit.cgroup in mine),
        left_out,
    )


def build_places(found: Findings) -> tuple[Place, ...]:
    """Return the place of each GPU's memory: its pool, its limit inside a partition, or its CUDA Pool."""
    sizes = {pool.id: pool.size_bytes for pool in found.pools}
    shares = {share.device: share for share in found.shares if share.kind in WHOLE_DEVICE}
    wholes = {share.device: sizes.get(share.within) for share in shares.values()}
    return tuple(
        _build_place(device, sizes.get(device.id), shares.get(device.id), wholes.get(device.id))
        for device in found.devices
    )


def _build_place(device: Device, size_bytes: int | None, share: Share | None, around: int | None) -> Place:
    """`size_bytes`: size of the GPU's pool; `around`: that of the pool around `share`."""
    address = pci_numbers(device.pci)
    if size_bytes is not None or share is None:
        return Place(device.id, address, device.uuid, device.id if size_bytes is not None else None, size_bytes)
    if isinstance(share.limit_bytes, int):
        return Place(device.id, address, device.uuid, share.id, share.limit_bytes, is_partition=True)
    return Place(device.id, address, device.uuid, share.id, around)


def _list_kernel_limits(
    dmem: DmemReading | None, places: Sequence[Place], stale: bool
) -> Iterator[GroupLimit | str]:
    """Yield a limit, or the name of a limited region that is no GPU's."""
    for group in dmem.groups if dmem else ():
        for one in group.regions:
            if one.limit_bytes is None:
                continue
            place = _find_place(one.region, places)
            if place is None or place.id is None:
                yield one.region
                continue
            if place.is_partition and dmem and is_within(dmem.own, group.cgroup):
                continue
            yield GroupLimit(
                place,
                group.cgroup,
                one.region.rpartition("/")[2],
                one.limit_bytes,
                Absent.STALE if stale else one.used_bytes,
                "cgroup:dmem.max",
                one.peak_bytes,
                one.protected_bytes,
            )


def _split_matched(found: Iterable[GroupLimit | str]) -> tuple[list[GroupLimit], list[str]]:
    limits: list[GroupLimit] = []
    lost: dict[str, None] = {}
    for one in found:
        if isinstance(one, str):
            lost[printable(one)] = None
        else:
            limits.append(one)
    return limits, list(lost)


def _list_driver_limits(nvml: NvmlReading | None, places: Sequence[Place], stale: bool) -> Iterator[GroupLimit]:
    """Yield the limits that NVIDIA's driver enforces itself. These do not nest."""
    by_uuid = {place.uuid: place for place in places if isinstance(place.uuid, str)}
    for gpu in nvml.gpus if nvml else ():
        place = by_uuid.get(gpu.uuid) if isinstance(gpu.uuid, str) else None
        if place is None or place.id is None or isinstance(gpu.limits, Absent):
            continue
        for one in gpu.limits:
            if one.own and place.is_partition:
                continue
            used = Absent.STALE if stale else one.used_bytes
            yield GroupLimit(
                place,
                one.cgroup,
                "vram",
                one.hard_bytes,
                used,
                "nvml:memory_limits_v1",
                protected_bytes=one.soft_bytes,
                nests=False,
            )


def _find_place(region: str, places: Sequence[Place]) -> Place | None:
    """Return the place of a region by its PCI address."""
    address = pci_numbers(region_address(region))
    return None if address is None else next((one for one in places if one.address == address), None)


def build_shares(limits: Sequence[GroupLimit]) -> list[Share]:
    """Build a share for each limit, within that of the innermost outer cgroup with a limit on the same memory."""
    ids: dict[tuple[str, str, str], str] = {}
    for limit in limits:
        ids[_key(limit)] = _unique(_id_of(limit), ids.values())
    inside: dict[tuple[str, str], list[str]] = {}
    for limit in limits:
        if limit.nests:
            inside.setdefault((limit.place.device, limit.region), []).append(limit.cgroup)
    sizes: dict[str, int] = {}
    shares: dict[str, Share] = {}
    for limit in sorted(limits, key=lambda limit: len(limit.cgroup)):  # outer cgroups first
        outer = nearest(limit.cgroup, inside.get((limit.place.device, limit.region), ())) if limit.nests else None
        parent = ids[limit.place.device, limit.region, outer] if outer else str(limit.place.id)
        most, its_id = sizes.get(parent, limit.place.size_bytes), ids[_key(limit)]
        shares[its_id] = _build_share(limit, its_id, parent, most)
        sizes[its_id] = limit.limit_bytes if most is None else min(limit.limit_bytes, most)
    return [shares[ids[_key(limit)]] for limit in limits]


def _build_share(limit: GroupLimit, its_id: str, within: str, most: int | None) -> Share:
    protected = min(limit.protected_bytes, limit.limit_bytes)
    exceeds, peak = most is not None and limit.limit_bytes > most, _bounded(limit.peak_bytes, limit.place)
    notes = {
        f"its limit of {size(limit.limit_bytes)} exceeds its parent": exceeds,
        f"{size(protected)} guaranteed": protected > 0,
        f"peak {size(peak)}" if isinstance(peak, int) else "": True,
        f"memory of {limit.region}": limit.region not in MAIN_REGIONS,
    }
    return Share(
        id=its_id,
        kind=ShareKind.GPU_LIMIT,
        label=f"{_label_of(limit.cgroup)} limit",
        within=within,
        used_bytes=_bounded(limit.used_bytes, limit.place),
        limit_bytes=most if exceeds and most is not None else limit.limit_bytes,
        source=limit.source,
        quality=Quality.MEASURED,
        device=limit.place.device,
        note="; ".join(text for text, holds in notes.items() if text and holds) or None,
        peak_bytes=peak,
    )


def _bounded(figure: Bytes, place: Place) -> Bytes:
    """Reject a figure that exceeds the memory of the GPU."""
    exceeds = isinstance(figure, int) and place.size_bytes is not None and figure > place.size_bytes
    return Absent.INCONSISTENT if exceeds else figure


def _key(limit: GroupLimit) -> tuple[str, str, str]:
    return limit.place.device, limit.region, limit.cgroup


def _id_of(limit: GroupLimit) -> str:
    """Build an id that is safe in labels, queries and HTML: `gpu0.limit.system.slice/ollama.service`."""
    path = printable(shorten_ids(limit.cgroup.strip("/"))).translate(_NO_SPACE) or "self"
    suffix = "" if limit.region in MAIN_REGIONS else f".{printable(limit.region).translate(_NO_SPACE)}"
    return f"{limit.place.device}.limit.{path[-MAX_ID_CHARACTERS:]}{suffix}"


def _unique(wanted: str, taken: Iterable[str]) -> str:
    others, number, found = set(taken), 2, wanted
    while found in others:
        found, number = f"{wanted}~{number}", number + 1
    return found


def _label_of(cgroup: str) -> str:
    """Name a cgroup by the innermost owner that it is; otherwise by its path."""
    if cgroup == "/":
        return "this container's"
    names = parse_owners({"": cgroup})
    folders = owner_folders(names, cgroup)
    shown = names.printable()
    for kind, text in (("container", "container {}"), ("pod", "pod {}"), ("job", "job {}"), ("unit", "{}")):
        if folders.get(kind) == cgroup:
            return text.format(getattr(shown, kind))
    return printable(cgroup)


def _with_name(share: Share, names: Mapping[str, str]) -> Share:
    """Replace a container's id by its name, if a container runtime reports it."""
    words = share.label.split(" ")
    if words[0] != "container" or len(words) != 3 or words[1] not in names:
        return share
    return replace(share, label=f"{names[words[1]]} limit")


def _sum_held(dmem: DmemReading | None, places: Sequence[Place], stale: bool) -> Iterator[KernelHeld]:
    """Yield the memory that the kernel counts for each owner, whose cgroup contains that of its descendants."""
    sums: dict[tuple[str, str], dict[str, Bytes]] = {}
    for group in dmem.groups if dmem else ():
        for kind, name in _owners_of(group.cgroup):
            held = sums.setdefault((kind, name), {})
            for one in group.regions:
                place = _find_place(one.region, places)
                if place is not None and place.id is not None:
                    used = Absent.STALE if stale else one.used_bytes
                    total = sum_figures((held.get(place.id, 0), used))
                    held[place.id] = _bounded(total, place)
    for kind in OWNER_KINDS:
        yield from (KernelHeld(kind, name, held) for (one, name), held in sums.items() if one == kind and held)


def _owners_of(cgroup: str) -> list[tuple[str, str]]:
    """Return the owners whose own cgroup this is, by kind."""
    names: OwnerNames = parse_owners({"": cgroup})
    shown = names.printable()
    return [(kind, str(getattr(shown, kind))) for kind, at in owner_folders(names, cgroup).items() if at == cgroup]


def _with_limit(device: Device, own: Share | None, notes: Sequence[str]) -> Device:
    """Bound the headroom by the limit of the container that memwatchd runs in, and add notes."""
    bound = own.left_bytes if own else Absent.NOT_SUPPORTED
    if isinstance(bound, int):
        device = bound_headroom(device, bound)
    return replace(device, notes=(*device.notes, *notes)) if notes else device


def _with_notes(machine: Machine | None, notes: Sequence[str]) -> Machine | None:
    if machine is None or not notes:
        return machine
    return replace(machine, explanation=" ".join([machine.explanation, *notes]).strip())


def with_charged_headroom(found: M) -> M:
    """Bound the headroom of integrated GPUs by the limits that bind, if the kernel charges their memory to them."""
    machine = found.machine
    if machine is None or not machine.charges_gpu_memory:
        return found
    limits = [share.left_bytes for share in list_binding_limits(found.shares, machine)]
    left = min([limit for limit in limits if isinstance(limit, int)], default=None)
    if left is None:
        return found
    return replace(found, devices=tuple(_charged(device, left) for device in found.devices))


def _charged(device: Device, left: int) -> Device:
    uses_ram = device.architecture is Architecture.UNIFIED and device.vendor in CHARGED_VENDORS
    return bound_headroom(device, left) if uses_ram else device
