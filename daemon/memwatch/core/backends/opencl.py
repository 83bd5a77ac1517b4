"""The OpenCL backend: devices of the installed platforms. The memory size that a CPU device reports is not used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memwatch.core.backends.devices import build_device
from memwatch.core.backends.gpu_backends import Availability, join_names
from memwatch.core.backends.model import Backend, BackendDevice
from memwatch.core.backends.opencl_result import OpenclDevice, OpenclPlatform, OpenclResult
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot

NO_DRIVER = "no driver is installed (no .icd in /etc/OpenCL/vendors)"
NO_BINDING = "not probed: pyopencl is missing; to probe it, pip install pyopencl"


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    answer = evidence.opencl
    platforms = unique_platforms(answer.platforms) if answer else []
    devices = tuple(
        build_opencl_device(platform, device, snapshot) for platform in platforms for device in platform.devices
    )
    available, reason = availability(answer, platforms, devices, evidence.opencl_drivers)
    if platforms and evidence.closed and not any(device.kind == "gpu" for device in devices):
        reason += f"; user {evidence.user} may not open {evidence.closed}, so a GPU would not be found"
        available = available or (Absent.NOT_PERMITTED if evidence.for_others else False)
    return Backend("opencl", "OpenCL", available, reason, devices)


def availability(
    answer: OpenclResult | None,
    platforms: Sequence[OpenclPlatform],
    devices: Sequence[BackendDevice],
    drivers: Sequence[str],
) -> Availability:
    if answer is None:
        return not_queried("not probed: only possible on the machine itself", drivers)
    if answer.failure == "no_binding":
        return not_queried(NO_BINDING, drivers)
    if answer.failure == "no_platform":
        return False, f"no driver works ({answer.text})"
    if answer.failure:
        return Absent.NOT_AVAILABLE, f"probe failed: {answer.text}"
    if not devices:
        return False, "; ".join(empty(platforms)) or NO_DRIVER
    gpus = [device for device in devices if device.kind == "gpu"]
    if gpus:
        return True, join_names(gpus)
    if all(device.kind == "cpu" for device in devices):
        return True, f"CPU only ({platform_names(platforms)}), no GPU"
    return True, f"{join_names(devices)}, no GPU"


def not_queried(reason: str, drivers: Sequence[str]) -> Availability:
    if not drivers:
        return False, NO_DRIVER
    return Absent.NOT_AVAILABLE, f"{reason} (installed: {', '.join(drivers)})"


def empty(platforms: Sequence[OpenclPlatform]) -> Iterator[str]:
    for platform in platforms:
        yield f"{platform.name} lists no device" + (f" ({platform.failure})" if platform.failure else "")


def platform_names(platforms: Sequence[OpenclPlatform]) -> str:
    return ", ".join(dict.fromkeys(platform.name for platform in platforms if platform.devices))


def unique_platforms(platforms: Sequence[OpenclPlatform]) -> list[OpenclPlatform]:
    """Remove duplicates: two .icd files for one driver result in two platforms with the same devices."""
    unlike: dict[object, OpenclPlatform] = {}
    for platform in platforms:
        devices = tuple((device.name, device.kind, device.pci) for device in platform.devices)
        unlike.setdefault((platform.name, devices), platform)
    return list(unlike.values())


def build_opencl_device(platform: OpenclPlatform, device: OpenclDevice, snapshot: Snapshot) -> BackendDevice:
    """Convert a device. A GPU that the snapshot lists gets the snapshot's values: OpenCL reports no used memory."""
    if device.kind == "cpu":
        note = f"a CPU, by {platform.name}; its memory is System RAM"
        nothing = Absent.NOT_SUPPORTED
        return BackendDevice(None, device.name, "cpu", nothing, nothing, device.unified, note)
    address = pci_numbers(device.pci)
    known = [one for one in snapshot.devices if address is not None and pci_numbers(one.pci) == address]
    if known and device.kind == "gpu":
        return build_device(known[0], snapshot)
    return BackendDevice(
        id=None,
        name=device.name,
        kind="gpu" if device.kind == "gpu" else "accelerator",
        size_bytes=device.global_memory_bytes,
        headroom_bytes=Absent.NOT_SUPPORTED,
        unified=device.unified,
        note=f"by {platform.name}; OpenCL does not report free memory",
    )
