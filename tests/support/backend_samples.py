"""Samples for tests of backends: a machine with GPUs, probe results, and answers of OpenCL."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.backends.finder import build_backends
from memwatch.core.backends.model import Backends, OpenclDevice, OpenclPlatform, OpenclResult
from memwatch.core.backends.probes import ProbeResults, Rocm
from memwatch.core.model import Absent, Architecture, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.snapshot import CollectorStatus, Machine, Snapshot
from support.fakes import GIB, ram
from support.sample_parts import snapshot

EVIDENCE = ProbeResults(platform="linux", user="ada", cpu="AMD EPYC")
RTX = Device(
    "gpu0",
    "NVIDIA",
    "NVIDIA GeForce RTX 4090",
    Architecture.DISCRETE,
    pci="00000000:01:00.0",
    driver="580.95.05",
    allocates_from=("gpu0",),
    headroom_after_reclaim_bytes=20 * GIB,
)
APU = Device(
    "gpu1",
    "AMD",
    "AMD Radeon 8060S",
    Architecture.UNIFIED,
    pci="0000:c4:00.0",
    allocates_from=("gpu1", "gpu1.gtt"),
    headroom_after_reclaim_bytes=60 * GIB,
)
NVML_OK = CollectorStatus("nvml", "ok")


def pool(name: str, size: int, kind: PoolKind = PoolKind.VRAM) -> Pool:
    return Pool(name, kind, "VRAM", size, 0, size, "test", Quality.MEASURED)


def share(name: str, within: str, limit: int | Absent = Absent.NOT_SUPPORTED) -> Share:
    return Share(name, ShareKind.GTT, "GTT", within, 0, "test", Quality.MEASURED, limit_bytes=limit)


def machine(*devices: Device, collector: CollectorStatus = NVML_OK, architecture: str = "mixed") -> Snapshot:
    return snapshot(
        "box",
        Machine("Box", architecture),
        pools=(ram(8 * GIB), pool("gpu0", 24 * GIB), pool("gpu1", GIB, PoolKind.CARVEOUT)),
        shares=(share("gpu1.gtt", "ram", 60 * GIB),),
        devices=devices,
        collectors=(collector,),
    )


def found(evidence: ProbeResults, at: Snapshot) -> Backends:
    return build_backends(evidence, at, 0.0)


READY = replace(
    EVIDENCE, amd_on_pci=True, amdgpu_loaded=True, kfd=True, kfd_permitted=True, rocm=Rocm("/opt/rocm", "6.2.0")
)


def cpu_device(name: str = "pthread-AMD EPYC") -> OpenclDevice:
    return OpenclDevice(name, "cpu", Absent.NOT_SUPPORTED, True, Absent.NOT_SUPPORTED)


def gpu_device(pci: str = "0000:01:00.0") -> OpenclDevice:
    return OpenclDevice("NVIDIA GeForce RTX 4090", "gpu", 25_000_000_000, False, pci)


POCL = OpenclPlatform("Portable Computing Language", "PoCL 3.1", (cpu_device(),))


def with_opencl(*platforms: OpenclPlatform) -> ProbeResults:
    return replace(EVIDENCE, opencl=OpenclResult(platforms))
