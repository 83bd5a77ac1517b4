"""The CUDA backend: needs a GPU that NVIDIA's driver lists, and the driver's library libcuda.so.1."""

from __future__ import annotations

from memwatch.backends.devices import devices_of
from memwatch.backends.gpu_backends import Verdict, drivers_of, not_found, out_of_order, working
from memwatch.backends.model import Backend
from memwatch.backends.probes import Evidence
from memwatch.model import Device
from memwatch.snapshot import Snapshot

NVIDIA = "NVIDIA"
COLLECTORS = ("nvml", "tegra")
FOREIGN = "nouveau"
NO_LIBRARY = (
    "libcuda.so.1 is not installed: install the driver package that contains it (libcuda1 on Debian), "
    "or pass it to the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)


def backend_of(evidence: Evidence, snapshot: Snapshot) -> Backend:
    everyone = [device for device in snapshot.devices if device.vendor == NVIDIA]
    devices = [device for device in everyone if device.driver != FOREIGN]
    if everyone and not devices:
        reason = f"{everyone[0].id} uses the driver {FOREIGN}, which does not support CUDA: install NVIDIA's driver"
        return Backend("cuda", "CUDA", False, reason)
    available, reason = verdict(devices, evidence, snapshot)
    return Backend("cuda", "CUDA", available, reason, devices_of(devices, snapshot))


def verdict(devices: list[Device], evidence: Evidence, snapshot: Snapshot) -> Verdict:
    if evidence.platform != "linux":
        return False, "detected on Linux only"
    if not devices:
        return not_found("nvml", NVIDIA, snapshot)
    if not working(devices):
        return out_of_order(devices, COLLECTORS, snapshot)
    if evidence.libcuda is None:
        return False, NO_LIBRARY
    return True, ", ".join([*drivers_of(working(devices)), evidence.libcuda])
