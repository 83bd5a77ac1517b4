"""Results of collectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.kernel_log import KernelLog, ServiceKill
from memwatch.core.model import STALLED, Absent, Device, Pool, Process, Share, Vitals
from memwatch.core.owners import KernelHeld, Owner, ProcessSearch
from memwatch.core.snapshot import (
    CgroupPressure,
    Kernel,
    Machine,
    MemoryPsi,
    Node,
    ProcessScan,
    Swap,
    ZfsCache,
    Zram,
)

if TYPE_CHECKING:  # the collectors of a machine load the records of its drivers
    from memwatch.core.drivers.amd.records import AmdReading, AmdSensors
    from memwatch.core.drivers.amd.smi import SmiReading
    from memwatch.core.drivers.apple import AppleReading
    from memwatch.core.drivers.drm.records import DrmReading
    from memwatch.core.drivers.nvml.records import NvmlReading
    from memwatch.core.drivers.tegra.records import NvMapReading, TegraReading, TegrastatsReading
    from memwatch.core.linux.cgroup_kills import CgroupKills
    from memwatch.core.linux.dmem import DmemReading


class Findings(Struct, frozen=True):
    """Result of one collector for one run. An empty field means that this collector does not fill it.

    `pci_gpus` counts the GPUs on the PCI bus by vendor. `rejected` counts inconsistent figures of this run, which
    were left out. `hwmon` has the GPUs with kernel sensors, by PCI address. `stale` names the readings (`READINGS`)
    that are too old to show: only their identities are used. `missing_pids` hold device memory according to a
    driver, and are not processes in /proc. `judged_pids` are all that were looked for in a container's PID
    namespace, in which a driver's list may have PIDs of the host; None elsewhere. `left_out`: entries beyond the
    maximum, by list (`memwatch.core.listing.LISTS`).
    """

    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    devices: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    process_scan: ProcessScan | None = None
    unlisted: ProcessSearch | None = None
    missing_pids: frozenset[int] = frozenset()
    judged_pids: frozenset[int] | None = None
    engines: tuple[Engine, ...] = ()
    engines_not_followed: int = 0
    owners: tuple[Owner, ...] = ()
    kernel_held: tuple[KernelHeld, ...] = ()
    container_names: Mapping[str, str] | None = None
    pod_names: Mapping[str, str] | None = None
    machine: Machine | None = None
    swap: Swap | Absent | None = None
    zram: Zram | Absent | None = None
    zfs_cache: ZfsCache | Absent | None = None
    psi: MemoryPsi | None = None
    cgroup_pressure: CgroupPressure | None = None
    nodes: tuple[Node, ...] = ()
    kernel: Kernel | None = None
    kernel_log: KernelLog | None = None
    service_kills: tuple[ServiceKill, ...] | None = None
    cgroup_oom_kills_total: int | None = None
    cgroup_kills: CgroupKills | None = None
    pci_gpus: Mapping[str, int] | None = None
    nvml: NvmlReading | None = None
    tegra: TegraReading | None = None
    nvmap: NvMapReading | None = None
    tegrastats: TegrastatsReading | None = None
    amdgpu: AmdReading | None = None
    amdgpu_sensors: Mapping[str, AmdSensors] | None = None
    amd_smi: SmiReading | None = None
    drm: DrmReading | None = None
    hwmon: Mapping[str, Vitals] | None = None
    apple: AppleReading | None = None
    dmem: DmemReading | None = None
    left_out: Mapping[str, int] | None = None
    stale: frozenset[str] = frozenset()
    rejected: int = 0

    def as_stale(self) -> Findings:
        """Mark every measured figure as stale. Sizes and identities stay."""
        readings: dict[str, Any] = {name: getattr(self, name) for name in READINGS}
        return Findings(
            machine=self.machine,
            container_names=self.container_names,
            pod_names=self.pod_names,
            pci_gpus=self.pci_gpus,
            pools=tuple(stale_pool(pool) for pool in self.pools),
            shares=tuple(stale_share(share) for share in self.shares),
            devices=tuple(stale_device(device) for device in self.devices),
            nodes=tuple(stale_node(node) for node in self.nodes),
            engines=tuple(engine.as_stale() for engine in self.engines),
            zram=None if self.zram is None else Absent.STALE,
            stale=frozenset(name for name, reading in readings.items() if reading is not None),
            **readings,
        )


# The fields of Findings with raw driver readings; `accounting.compose` interprets them.
READINGS = (
    "nvml",
    "tegra",
    "nvmap",
    "tegrastats",
    "amdgpu",
    "amdgpu_sensors",
    "amd_smi",
    "drm",
    "hwmon",
    "apple",
    "dmem",
)


def stale_pool(pool: Pool, why: Absent = Absent.STALE) -> Pool:
    """Return the pool without its figures, which are absent for this reason. Its size stays."""
    return replace(
        pool,
        used_bytes=why,
        available_bytes=why,
        free_bytes=why,
        unattributed_bytes=why,
        set_aside_free_bytes=why if pool.set_aside_bytes else 0,
        contents=(),
    )


def stale_share(share: Share, why: Absent = Absent.STALE) -> Share:
    return replace(share, used_bytes=why)


def stale_device(device: Device) -> Device:
    return replace(absent_device(device, Absent.STALE), state=STALLED)


def absent_device(device: Device, why: Absent) -> Device:
    return replace(
        device,
        headroom_after_reclaim_bytes=why,
        headroom_bytes=why,
        process_list=why,
        api_free_bytes={},
        busy_ratio=why,
        memory_busy_ratio=why,
    ).with_vitals(Vitals.absent(why))


def stale_node(node: Node) -> Node:
    """Size and `has_cpus` stay: GPU memory inside MemTotal is recognized by them."""
    stale = Absent.STALE
    return replace(
        node,
        available_bytes=stale,
        free_bytes=stale,
        largest_free_block_bytes=stale,
        free_large_blocks_bytes=stale,
        contents=(),
    )
