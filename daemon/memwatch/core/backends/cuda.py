"""The CUDA backend: needs a GPU that NVIDIA's driver lists, and the driver's library libcuda.so.1."""

from __future__ import annotations

from memwatch.core.backends.devices import build_devices
from memwatch.core.backends.gpu_backends import Availability, list_drivers, not_found, unusable, working
from memwatch.core.backends.model import Backend
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Device
from memwatch.core.snapshot import Snapshot

NVIDIA = "NVIDIA"
COLLECTORS = ("nvml", "tegra")
FOREIGN = "nouveau"
NO_LIBRARY = (
    "libcuda.so.1 is not installed: install the driver package that contains it (libcuda1 on Debian), "
    "or pass it to the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    everyone = [device for device in snapshot.devices if device.vendor == NVIDIA]
    devices = [device for device in everyone if device.driver != FOREIGN]
    if everyone and not devices:
        reason = f"{everyone[0].id} uses the driver {FOREIGN}, which does not support CUDA: install NVIDIA's driver"
        return Backend("cuda", "CUDA", False, reason)
    available, reason = availability(devices, evidence, snapshot)
    return Backend("cuda", "CUDA", available, reason, build_devices(devices, snapshot))


def availability(devices: list[Device], evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    if evidence.platform != "linux":
        return False, "detected on Linux only"
    if not devices:
        return not_found("nvml", NVIDIA, snapshot)
    if not working(devices):
        return unusable(devices, COLLECTORS, snapshot)
    if evidence.libcuda is None:
        return False, NO_LIBRARY
    return True, ", ".join([*list_drivers(working(devices)), evidence.libcuda])
