"""Merge the findings of all collectors, and derive the facts that need several of them. Pure functions.

Other sources than /proc/meminfo know more of System RAM in an LXC container, and with zram. In an LXC container,
/proc/meminfo shows the container's limit as MemTotal. A GPU uses System RAM of the whole machine and is not charged
to a container. So System RAM is taken from the machine's NUMA nodes, and the limit becomes a share of it, as in
every other container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import chain, compress
from operator import attrgetter, is_not
from typing import Any, NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory, NpuMemory, has_orphans, with_large_holders
from memwatch.core.accounting.driver_errors import with_logged
from memwatch.core.accounting.relations import (
    bound_held,
    find_sizes,
    find_used,
    with_device_bytes,
    with_device_memories,
)
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import LXCFS
from memwatch.core.model import (
    CGROUP_NOTE,
    Absent,
    Content,
    Device,
    Pool,
    PoolKind,
    Quality,
    Share,
    ShareKind,
    Vitals,
    find_inside,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Node, Zram, merge_nodes


def with_both_scopes(found: Findings) -> Findings:
    """Return findings unchanged if meminfo shows the machine, or if the machine's memory size is unknown.

    Where its nodes are there and cannot be read, the container's size is an estimate of the machine's.
    """
    limit = find_system_ram(found.pools)
    if limit is None or not limit.source.startswith(LXCFS):
        return found
    machine = machine_ram(found, limit)
    if machine is None and any(isinstance(node.size_bytes, Absent) for node in found.nodes):
        estimated = replace(limit, quality=Quality.ESTIMATED)
        return replace(found, pools=tuple(estimated if pool is limit else pool for pool in found.pools))
    if machine is None:
        return found
    others = tuple(share for share in found.shares if share.kind is not ShareKind.CGROUP)
    tighter = next((share for share in found.shares if is_below(share, limit.size_bytes)), None)
    return replace(
        found,
        pools=tuple(machine if pool is limit else pool for pool in found.pools),
        shares=(tighter or build_share(limit), *others),
    )


def is_below(share: Share, size: int) -> bool:
    """Check for the limit of a cgroup inside the container."""
    return share.kind is ShareKind.CGROUP and isinstance(share.limit_bytes, int) and share.limit_bytes < size


def machine_ram(found: Findings, limit: Pool) -> Pool | None:
    """Sum all nodes. An estimate: the kernel has no MemAvailable for nodes."""
    size = sum_figures([node.size_bytes for node in found.nodes])
    if isinstance(size, Absent) or size < limit.size_bytes:
        return None
    available = sum_figures([node.available_bytes for node in found.nodes])
    return Pool(
        id=limit.id,
        kind=limit.kind,
        label=limit.label,
        size_bytes=size,
        used_bytes=available if isinstance(available, Absent) else size - available,
        available_bytes=available,
        source="sysfs:node/meminfo",
        quality=Quality.ESTIMATED,
        free_bytes=sum_figures([node.free_bytes for node in found.nodes]),
    )


def build_share(limit: Pool) -> Share:
    """Build the container's share from lxcfs: its cgroup may be outside the visible hierarchy."""
    return Share(
        id="cgroup",
        kind=ShareKind.CGROUP,
        label="Container limit",
        within=limit.id,
        used_bytes=limit.used_bytes,
        limit_bytes=limit.size_bytes,
        source=limit.source,
        quality=limit.quality,
        note=CGROUP_NOTE,
    )


def with_zram(pool: Pool, zram: Zram | Absent | None) -> Pool:
    """Move zram's compressed pages from unattributed memory to the kernel; no line of /proc/meminfo contains them.

    At most all unattributed memory moves: the two figures are not read at the same instant. If zram's memory is not
    known, it is not known either how much of the rest is unattributed.
    """
    unattributed = pool.unattributed_bytes
    if zram is None or pool.kind is not PoolKind.SYSTEM_RAM or isinstance(unattributed, Absent):
        return pool
    memory = zram if isinstance(zram, Absent) else zram.memory_bytes
    if isinstance(memory, Absent) or memory > pool.size_bytes:
        return replace(
            pool, unattributed_bytes=memory if isinstance(memory, Absent) else Absent.INCONSISTENT, contents=()
        )
    held = min(memory, unattributed)
    if not held:
        return pool
    moved = {"kernel": held, "unattributed": -held}
    contents = tuple(Content(part.kind, part.size_bytes + moved.get(part.kind, 0)) for part in pool.contents)
    return replace(pool, unattributed_bytes=unattributed - held, contents=contents)


# The fields of Findings and their empty values: the same objects every time.
NAMES = Findings.__struct_fields__
EMPTY = tuple(getattr(Findings(), name) for name in NAMES)
LISTS = tuple(name for name, empty in zip(NAMES, EMPTY, strict=True) if empty == ())
figures_of: attrgetter[tuple[Any, ...]] = attrgetter(*NAMES)


class Vendor(NamedTuple):
    """A maker of GPUs: its PCI id, the module that accounts for them, and the readings of which it needs one."""

    pci_id: str
    module: str
    readings: tuple[str, ...]


# A machine has GPUs of one or two of them: the modules of the others (0.4 MiB) are not loaded.
VENDORS = (
    Vendor("10de", "nvidia", ("nvml", "tegra")),
    Vendor("1002", "amd", ("amdgpu",)),
    Vendor("8086", "drm", ("drm",)),
    Vendor("106b", "apple", ("apple",)),
)
readings_of: attrgetter[tuple[Any, ...]] = attrgetter(*chain.from_iterable(one.readings for one in VENDORS))
NOT_READ = readings_of(Findings())


@cache
def load_builder(module: str) -> Callable[[Findings, int], Sequence[DeviceMemory]]:
    """Return the function that accounts for a vendor's GPUs, given all findings and the first free number."""
    found: Callable[[Findings, int], Sequence[DeviceMemory]]
    found = import_module(f"memwatch.core.accounting.{module}").build_device_memories
    return found


class Composer:
    """Merges findings on each tick. A field is merged again only if a collector has a new value for it."""

    def __init__(self) -> None:
        self._findings: tuple[Findings, ...] = ()
        self._fields: list[Mapping[str, Any]] = []
        self._sums: dict[str, Any] = {}
        self._nodes: tuple[tuple[Node, ...], tuple[Node, ...]] = (), ()

    def compose(self, findings: Sequence[Findings]) -> Findings:
        """Return the findings of all collectors, merged and related to each other."""
        names = self._new_names(tuple(findings))
        try:
            for name in names:
                self._add_up(name, [fields[name] for fields in self._fields if name in fields])
        except BaseException:
            self._findings = ()  # merge the same fields again next time
            raise
        sums = dict(self._sums)
        if "zram" in sums:
            sums["pools"] = tuple([with_zram(pool, sums["zram"]) for pool in sums.get("pools", ())])
        sums["nodes"] = self._merge_nodes(sums.get("nodes", ()))
        if "tegra" in sums:
            from memwatch.core.accounting.tegra import with_board_names

            sums["machine"] = with_board_names(sums.get("machine"), sums["tegra"])
        return relate(Findings(**sums))

    def _new_names(self, findings: tuple[Findings, ...]) -> set[str]:
        """Return the fields that changed in at least one collector since the last call."""
        if len(findings) != len(self._findings):
            self._findings, self._fields, self._sums = (Findings(),) * len(findings), [{}] * len(findings), {}
        names: set[str] = set()
        for number in compress(range(len(findings)), map(is_not, findings, self._findings)):
            before, now = self._fields[number], filled_fields(findings[number])
            names.update(before, now)
            self._fields[number] = now
        self._findings = findings
        return names

    def _add_up(self, name: str, values: Sequence[Any]) -> None:
        """Merge one field: lists are concatenated; of single values, the first one is used."""
        self._sums.pop(name, None)
        if not values or name == "rejected":  # counted per collector
            return
        if name == "stale":
            self._sums[name] = frozenset(chain.from_iterable(values))
        elif name in ("container_names", "left_out"):  # names of the container runtime and of Kubernetes
            self._sums[name] = {key: value for part in values for key, value in part.items()}
        else:
            self._sums[name] = tuple(chain.from_iterable(values)) if name in LISTS else values[0]

    def _merge_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Merge nodes only if they changed: they are read every 5 s at most and take a third of the merge."""
        before, merged = self._nodes
        if nodes is not before:
            merged = merge_nodes(nodes)
            self._nodes = nodes, merged
        return merged


def filled_fields(found: Findings) -> Mapping[str, Any]:
    """Return the fields that the collector filled."""
    values = figures_of(found)
    return dict(compress(zip(NAMES, values, strict=True), map(is_not, values, EMPTY)))


def relate(whole: Findings) -> Findings:
    """Combine the merged findings with each other."""
    whole = with_both_scopes(whole)
    is_read = readings_of(whole) != NOT_READ
    device_memories = build_device_memories(whole) if is_read else []
    npus = () if whole.drm is None else build_npus(whole)
    whole = with_device_memories(whole, device_memories, npus)
    if device_memories or npus or whole.processes:
        whole = with_holders(whole, device_memories, npus)
    whole = with_limits_and_engines(whole)
    devices = with_sensors(whole.devices, whole) if whole.devices else ()
    devices = with_logged(devices, whole.kernel_log) if whole.kernel_log else devices
    pools, shares = whole.pools, whole.shares
    if shares or len(pools) > 1:
        places = {pool.id for pool in pools} | {device.id for device in whole.devices}
        pools, shares = with_unique_labels(pools, without_lost(shares, places))
    if (devices, pools, shares) == (whole.devices, whole.pools, whole.shares):
        return whole
    return replace(whole, devices=devices, pools=pools, shares=shares)


def with_holders(whole: Findings, device_memories: Sequence[DeviceMemory], npus: Sequence[NpuMemory]) -> Findings:
    """Add the device memory of processes to the related findings."""
    if not (device_memories or npus or (whole.processes and has_orphans(whole.processes))):
        return whole
    sizes = find_sizes(whole.pools, whole.shares)
    judged = [only_judged(memory, whole.judged_pids) for memory in device_memories]
    memories = bound_held((*judged, *npus), sizes, find_used(whole.pools, whole.shares))
    if memories:
        whole = replace(whole, processes=with_device_bytes(whole.processes, *memories))
    return with_large_holders(whole, memories, sizes, whole.process_scan)


def only_judged(memory: DeviceMemory, judged: frozenset[int] | None) -> DeviceMemory:
    """Leave out the processes of NVIDIA's list that may be of another PID namespace, until that is known."""
    if judged is None or memory.device.vendor != "NVIDIA" or memory.held.keys() <= judged:
        return memory
    return replace(memory, held={pid: places for pid, places in memory.held.items() if pid in judged})


def build_device_memories(found: Findings) -> list[DeviceMemory]:
    """Return the memory of every GPU. Numbers continue across vendors, with gaps for GPUs without data yet."""
    device_memories: list[DeviceMemory] = []
    first = 0
    for vendor in VENDORS:
        is_read = any(getattr(found, name) is not None for name in vendor.readings)
        own = load_builder(vendor.module)(found, first) if is_read else ()
        device_memories += own
        first += max(len(own), (found.pci_gpus or {}).get(vendor.pci_id, 0))
    return device_memories


def build_npus(found: Findings) -> Sequence[NpuMemory]:
    from memwatch.core.accounting.drm import build_npus as build

    return build(found)


def with_limits_and_engines(found: Findings) -> Findings:
    """Add the limits of GPUs, and the memory of model servers. Both modules are loaded where there is one."""
    if found.devices or found.dmem is not None or found.nvml is not None:
        from memwatch.core.accounting.gpu_limits import with_gpu_limits

        found = with_gpu_limits(found)
    if found.engines:
        from memwatch.core.accounting.engines import with_engine_memory

        found = with_engine_memory(found)
    return found


def without_lost(shares: tuple[Share, ...], roots: set[str]) -> tuple[Share, ...]:
    """Return the shares that are directly or indirectly within one of these pools or devices."""
    places = find_inside(roots, shares)
    return tuple(share for share in shares if share.id in places)


def with_sensors(devices: Sequence[Device], found: Findings) -> tuple[Device, ...]:
    """Return the devices with the values of the sensors at their PCI address."""
    sensors = found.hwmon
    if not sensors:
        return tuple(devices)
    if "hwmon" in found.stale:
        sensors = dict.fromkeys(sensors, Vitals.absent(Absent.STALE))
    return tuple(
        device.with_vitals(sensors[str(device.pci)])
        if str(device.pci) in sensors and device.state == "ok"
        else device
        for device in devices
    )


class Labeled(NamedTuple):
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]


def with_unique_labels(pools: tuple[Pool, ...], shares: tuple[Share, ...]) -> Labeled:
    """Number the pools that have one name, then add the device, or at last the id, to each label that repeats.

    Without a repeated label both are returned unchanged.
    """
    found = Labeled(pools, shares)
    if _is_unique(found):
        return found
    numbered = Labeled(_numbered(pools), shares)
    with_device = _with_suffix(numbered, lambda share: share.device)
    return with_device if _is_unique(with_device) else _with_suffix(numbered, lambda share: share.id)


def _is_unique(found: Labeled) -> bool:
    labels = {place.label for place in found.pools}
    labels.update(share.label for share in found.shares)
    return len(labels) == len(found.pools) + len(found.shares)


def _numbered(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Give pools with one name the number of their GPU, as their maker does if it has several: `VRAM 2`."""
    count = Counter(map(_name, pools))
    return tuple(
        replace(pool, label=f"{_name(pool)}{_number(pool)}") if count[_name(pool)] > 1 else pool for pool in pools
    )


def _name(pool: Pool) -> str:
    return pool.label.removesuffix(_number(pool))


def _number(pool: Pool) -> str:
    return f" {pool.id.removeprefix('gpu')}"


def _with_suffix(found: Labeled, suffix: Callable[[Share], str | None]) -> Labeled:
    count = Counter(pool.label for pool in found.pools)
    count.update(share.label for share in found.shares)
    shares = [
        replace(share, label=f"{share.label} ({suffix(share)})")
        if count[share.label] > 1 and suffix(share)
        else share
        for share in found.shares
    ]
    return Labeled(found.pools, tuple(shares))
