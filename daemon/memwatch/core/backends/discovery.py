"""All backends of a machine, and the recommended one. Pure functions of the evidence and a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memwatch.core.backends import cpu, cuda, metal, opencl, rocm, vulkan
from memwatch.core.backends.gpu_backends import join_names
from memwatch.core.backends.model import Backend, Backends
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot

RULES: tuple[Callable[[ProbeResults, Snapshot], Backend], ...] = (
    cpu.build_backend,
    cuda.build_backend,
    rocm.build_backend,
    metal.build_backend,
    opencl.build_backend,
    vulkan.build_backend,
)
# A vendor's own backend takes precedence over OpenCL.
PREFERENCE = (
    ("cuda", "the vendor's backend for {devices}"),
    ("rocm", "the vendor's backend for {devices}"),
    ("metal", "the vendor's backend for {devices}"),
    ("opencl", "the only known backend for {devices}"),
)
NO_GPU = "no backend supports a GPU of this machine"


def build_backends(evidence: ProbeResults, snapshot: Snapshot, age_seconds: float) -> Backends:
    backends = tuple(rule(evidence, snapshot) for rule in RULES)
    name, reason = select_recommended(backends)
    return Backends(name, reason, age_seconds, backends)


def select_recommended(backends: Sequence[Backend]) -> tuple[str, str]:
    """Return (name of the recommended backend, reason)."""
    by_name = {backend.name: backend for backend in backends}
    for name, why in PREFERENCE:
        if gpus := by_name[name].gpus:
            return name, why.format(devices=join_names(gpus))
    unknown = ", ".join(backend.label for backend in backends if isinstance(backend.available, Absent))
    return "cpu", f"no known backend supports a GPU of this machine (unknown: {unknown})" if unknown else NO_GPU
