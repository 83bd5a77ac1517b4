"""All backends of a machine, and the recommended one. Pure functions of the evidence and a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memwatch.backends import cpu, cuda, metal, opencl, rocm, vulkan
from memwatch.backends.gpu_backends import names_of
from memwatch.backends.model import Backend, Backends
from memwatch.backends.probes import Evidence
from memwatch.model import Absent
from memwatch.snapshot import Snapshot

RULES: tuple[Callable[[Evidence, Snapshot], Backend], ...] = (
    cpu.backend_of,
    cuda.backend_of,
    rocm.backend_of,
    metal.backend_of,
    opencl.backend_of,
    vulkan.backend_of,
)
# A vendor's own backend takes precedence over OpenCL.
PREFERENCE = (
    ("cuda", "the vendor's backend for {devices}"),
    ("rocm", "the vendor's backend for {devices}"),
    ("metal", "the vendor's backend for {devices}"),
    ("opencl", "the only known backend for {devices}"),
)
NO_GPU = "no backend supports a GPU of this machine"


def backends_of(evidence: Evidence, snapshot: Snapshot, age_seconds: float) -> Backends:
    backends = tuple(rule(evidence, snapshot) for rule in RULES)
    name, reason = recommended_of(backends)
    return Backends(name, reason, age_seconds, backends)


def recommended_of(backends: Sequence[Backend]) -> tuple[str, str]:
    """Return (name of the recommended backend, reason)."""
    by_name = {backend.name: backend for backend in backends}
    for name, why in PREFERENCE:
        if gpus := by_name[name].gpus:
            return name, why.format(devices=names_of(gpus))
    unknown = ", ".join(backend.label for backend in backends if isinstance(backend.available, Absent))
    return "cpu", f"no known backend supports a GPU of this machine (unknown: {unknown})" if unknown else NO_GPU
