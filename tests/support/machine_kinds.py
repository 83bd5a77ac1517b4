"""Snapshots of kinds of machine, to count their series: GPUs, MIG instances, containers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.clock import SystemClock
from memwatch.core.model import Architecture, Device, Pool, PoolKind, Process, Quality, Share, ShareKind, Vitals
from memwatch.core.owners import sum_owners
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import CollectorStatus, Kernel, Level, Pressure, Reason, Snapshot, Swap
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_monitor.feature import MonitorRules
from memwatch_web.metrics.families import Exporter, limit_series
from support.fakes import GIB
from support.monitors import create_monitor
from support.sample_snapshots import critical_gb10

COLLECTORS = ("meminfo", "psi", "vmstat", "buddyinfo", "numa", "cgroup_pressure", "machine", "nvml", "processes")


class MachineKind(Struct, frozen=True):
    """Number of GPUs, of MIG instances on each, and of containers, each in a pod."""

    gpus: int = 0
    instances: int = 0
    containers: int = 0

    def snapshot(self) -> Snapshot:
        base = critical_gb10()
        devices = tuple(_device(f"gpu{number}") for number in range(self.gpus))
        vram = tuple(_vram(device.id) for device in devices)
        shares = tuple(_instance(device.id, part) for device in devices for part in range(self.instances))
        targets = [pool.id for pool in (base.pools[0], *vram)] + [share.id for share in shares]
        processes = tuple(_process(number, shares, devices) for number in range(max(60, self.containers)))
        return replace(
            base,
            pools=(base.pools[0], *vram),
            devices=devices,
            shares=shares,
            pressure=tuple(_pressure(target) for target in targets),
            processes=tuple(replace(one, **self._home(one.pid)) for one in processes),
            owners=sum_owners([replace(one, **self._home(one.pid)) for one in processes]),
            collectors=tuple(CollectorStatus(name, "ok", 0.1, 0.001, base.unix) for name in COLLECTORS),
            swap=Swap(GIB, 0, 0, 0),
            kernel=Kernel(0, mlocked_bytes=0, unevictable_bytes=0),
        )

    def count_series(self) -> int:
        """Return the number of series of a scrape, without `process_*` of the daemon itself."""
        snapshot, clock = self.snapshot(), SystemClock()
        monitor = create_monitor(Sampler([], clock), clock, MonitorRules(), Identity("host", "boot"))
        monitor.features.get(BetweenScrapes).add(snapshot)
        exporter = Exporter("1", monitor.features)
        return sum(len(family.samples) for group in limit_series(exporter.groups(snapshot)) for family in group)

    def _home(self, pid: int) -> dict[str, str | None]:
        if pid > self.containers:
            return {"unit": f"{pid}.service", "container": None, "pod": None}
        return {"unit": f"cri-{pid}.scope", "container": f"{pid:012x}", "pod": f"pod-{pid}"}


KINDS: Mapping[str, MachineKind] = {
    "no GPU": MachineKind(),
    "1 GPU": MachineKind(1),
    "8 GPUs": MachineKind(8),
    "16 GPUs with 64 MIG instances": MachineKind(16, 4),
    "1 GPU, 500 containers in pods": MachineKind(1, containers=500),
}


def _device(name: str) -> Device:
    return Device(
        name,
        "NVIDIA",
        "NVIDIA H100 80GB HBM3",
        Architecture.DISCRETE,
        allocates_from=(name,),
        headroom_after_reclaim_bytes=GIB,
        headroom_bytes=GIB,
        process_list="complete",
        busy_ratio=0.5,
        memory_busy_ratio=0.5,
    ).with_vitals(Vitals(60.0, 300.0, {"sm": 1, "memory": 1}, ("power_cap",)))


def _vram(name: str) -> Pool:
    return Pool(
        name, PoolKind.VRAM, "VRAM", 80 * GIB, 79 * GIB, GIB, "nvml", Quality.MEASURED, unattributed_bytes=0
    )


def _instance(device: str, number: int) -> Share:
    kind = ShareKind.MIG_INSTANCE
    place = f"{device}.mig{number}"
    return Share(place, kind, "MIG", device, GIB, "nvml", Quality.MEASURED, 10 * GIB, device=device)


def _pressure(target: str) -> Pressure:
    return Pressure(target, Level.HIGH, Level.HIGH, 0.9, (Reason("util", "90% used"),), 60.0)


def _process(number: int, shares: tuple[Share, ...], devices: tuple[Device, ...]) -> Process:
    places = [one.id for one in shares or devices]
    held = {places[number % len(places)]: GIB} if places else {}
    size = GIB + len(held) * GIB
    return Process(number + 1, 0.0, "python3", GIB, size, "rss", user=f"user{number % 5}", device_bytes=held)
