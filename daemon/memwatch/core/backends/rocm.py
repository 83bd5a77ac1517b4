"""The ROCm backend: needs an AMD GPU, access to /dev/kfd, and a HIP runtime."""

from __future__ import annotations

from memwatch.core.backends.devices import build_devices
from memwatch.core.backends.gpu_backends import Availability, unusable, working
from memwatch.core.backends.model import Backend
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Device
from memwatch.core.snapshot import Snapshot

AMD = "AMD"
COLLECTORS = ("amdgpu", "drm")
FOREIGN = "radeon"
# On an APU ROCm uses either VRAM or GTT, depending on the kernel version.
OWN_RULE = "rocm"
NO_DRIVER = "an AMD GPU is on the PCI bus, but its driver amdgpu is not loaded"
NO_KFD = (
    "/dev/kfd does not exist: the driver has no compute support for this GPU, or the container lacks the device "
    "(docker run --device /dev/kfd --device /dev/dri)"
)
NO_RUNTIME = (
    "ROCm is not installed (no /opt/rocm*/.info/version, no libamdhip64.so); "
    "programs that bundle it, such as PyTorch's builds for ROCm, do not need it"
)


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    everyone = [device for device in snapshot.devices if device.vendor == AMD]
    devices = [device for device in everyone if device.driver != FOREIGN]
    if everyone and not devices:
        reason = f"{everyone[0].id} uses the driver {FOREIGN}, which does not support ROCm: it needs amdgpu"
        return Backend("rocm", "ROCm", False, reason)
    available, reason = availability(devices, evidence, snapshot)
    return Backend("rocm", "ROCm", available, reason, build_devices(devices, snapshot, OWN_RULE))


def availability(devices: list[Device], evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    if not devices and not evidence.amd_on_pci:
        return False, "no AMD GPU was found"
    if not devices and not evidence.amdgpu_loaded:
        return False, NO_DRIVER
    if devices and not working(devices):
        return unusable(devices, COLLECTORS, snapshot)
    missing = missing_parts(evidence)
    if missing or evidence.rocm is None:
        return False, "; ".join(missing)
    version = evidence.rocm.version or "of unknown version"
    return True, f"ROCm {version}, {evidence.rocm.path}{for_whom(evidence)}"


def for_whom(evidence: ProbeResults) -> str:
    """Return a note if this process may not open /dev/kfd, but programs of its group may."""
    if evidence.kfd_permitted:
        return ""
    return f"; only for programs that may open /dev/kfd: group {evidence.kfd_group}"


def missing_parts(evidence: ProbeResults) -> list[str]:
    """Return everything that is missing, so that all of it can be fixed at once."""
    missing = []
    if not evidence.kfd:
        missing.append(NO_KFD)
    elif not evidence.kfd_permitted and not (evidence.for_others and evidence.kfd_group):
        missing.append(
            f"user {evidence.user} may not open /dev/kfd: add the user to its group (ls -l /dev/kfd), "
            "usually render"
        )
    if evidence.rocm is None:
        missing.append(NO_RUNTIME)
    return missing
