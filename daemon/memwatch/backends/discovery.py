"""All backends of a machine, and the one to use. Pure: evidence and a snapshot in, verdicts out."""

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
# A maker's own backend before the one that all share.
PREFERENCE = (
    ("cuda", "the maker's own backend for {devices}"),
    ("rocm", "the maker's own backend for {devices}"),
    ("metal", "the maker's own backend for {devices}"),
    ("opencl", "the only backend that is known to reach {devices}"),
)
NO_GPU = "no backend reaches a GPU here"


def backends_of(evidence: Evidence, snapshot: Snapshot, age_seconds: float) -> Backends:
    backends = tuple(rule(evidence, snapshot) for rule in RULES)
    name, reason = recommended_of(backends)
    return Backends(name, reason, age_seconds, backends)


def recommended_of(backends: Sequence[Backend]) -> tuple[str, str]:
    """The backend to use, and why."""
    by_name = {backend.name: backend for backend in backends}
    for name, why in PREFERENCE:
        if gpus := by_name[name].gpus:
            return name, why.format(devices=names_of(gpus))
    unknown = ", ".join(backend.label for backend in backends if isinstance(backend.available, Absent))
    return "cpu", f"no backend is known to reach a GPU here ({unknown}: see there)" if unknown else NO_GPU
