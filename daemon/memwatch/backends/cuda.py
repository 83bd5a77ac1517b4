"""CUDA: a GPU that NVIDIA's driver lists, and the driver's library that CUDA programs load."""

from __future__ import annotations

from memwatch.backends.devices import devices_of
from memwatch.backends.evidence import Evidence
from memwatch.backends.gpus import Verdict, driver_of, not_found, out_of_order, working
from memwatch.backends.model import Backend
from memwatch.model import Device
from memwatch.snapshot import Snapshot

NVIDIA, SOURCE = "NVIDIA", "nvml"
NO_LIBRARY = (
    "libcuda.so.1 is not installed: install the part of the driver that has it (on Debian libcuda1), "
    "or give it to the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)


def backend_of(evidence: Evidence, snapshot: Snapshot) -> Backend:
    devices = [device for device in snapshot.devices if device.vendor == NVIDIA]
    available, reason = verdict(devices, evidence, snapshot)
    return Backend("cuda", "CUDA", available, reason, devices_of(NVIDIA, snapshot))


def verdict(devices: list[Device], evidence: Evidence, snapshot: Snapshot) -> Verdict:
    if evidence.platform != "linux":
        return False, "its driver is looked for on Linux only"
    if not devices:
        return not_found(SOURCE, NVIDIA, snapshot)
    if not working(devices):
        return out_of_order(devices, SOURCE, snapshot)
    if evidence.libcuda is None:
        return False, NO_LIBRARY
    return True, f"{driver_of(working(devices))}, {evidence.libcuda}"
