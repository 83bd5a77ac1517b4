"""The Vulkan backend: lists installed drivers without loading them.

A query needs an instance, which loads every driver, wakes suspended GPUs and may take 100 MB.
"""

from __future__ import annotations

from memwatch.core.backends.gpu_backends import Availability
from memwatch.core.backends.model import Backend
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot

# Mesa's lavapipe and Google's SwiftShader run on the CPU.
ON_THE_CPU = ("lvp_icd", "vk_swiftshader")


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    available, reason = availability(evidence, snapshot)
    return Backend("vulkan", "Vulkan", available, reason)


def availability(evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    installed = ", ".join(evidence.vulkan_drivers)
    if not installed:
        return False, "no driver is installed (no .json in /usr/share/vulkan/icd.d or /etc/vulkan/icd.d)"
    if all(name.startswith(ON_THE_CPU) for name in evidence.vulkan_drivers):
        return False, f"only drivers that run on the CPU are installed ({installed})"
    if snapshot.machine.architecture == "cpu_only":
        return False, f"drivers are installed ({installed}), but no GPU was found"
    return Absent.NOT_AVAILABLE, f"not probed: drivers are installed ({installed}), and loading them wakes GPUs"
