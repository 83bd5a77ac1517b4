"""Selection of a compute backend: the best usable one, or the best with room for a number of bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from memwatch.backends.discovery import PREFERENCE, select_recommended
from memwatch.backends.model import Backend, Backends
from memwatch.library.daemon_client import daemon, read_roots
from memwatch.library.decode import ResponseDecodeError, decode_backends
from memwatch.library.device_selection import hidden_devices
from memwatch.library.machine import machine_cache
from memwatch.linux.files import Roots
from memwatch.planning.sizes import parse_bytes
from memwatch.units import size

INQUIRY_SECONDS = 30.0
# Backends whose devices are chosen by environment variables that the library evaluates.
MASKED = frozenset({"cuda", "rocm"})


class NoBackendError(RuntimeError):
    """No backend has enough room. The message lists the backends that were tried and the reasons."""


def discover_backends() -> Backends:
    """Return CPU, CUDA, ROCm, Metal, OpenCL and Vulkan, whether each is usable, and why not.

    CUDA and ROCm have the GPUs that this program sees, as in `Machine.find`. Takes up to ten seconds without a
    daemon.
    """
    here = machine_cache.any()
    return limit_to_visible(_find_backends(), hidden_devices(here.devices, here.program))


def _find_backends() -> Backends:
    found = daemon.get("/api/v1/backends", INQUIRY_SECONDS)
    if found is not None:
        try:
            return decode_backends(found)
        except ResponseDecodeError:
            pass
    from memwatch.backends.finder import Finder
    from memwatch.library.local_reading import read_machine

    return Finder(Roots(*read_roots(os.environ))).find(read_machine())


def limit_to_visible(found: Backends, hidden: Mapping[str, str]) -> Backends:
    """Return the backends without hidden GPUs. `hidden`: the variables that hide a GPU, by its id."""
    backends = tuple(_without(one, hidden) if one.name in MASKED else one for one in found.backends)
    if backends == found.backends:
        return found
    name, reason = select_recommended(backends)
    return Backends(name, reason, found.age_seconds, backends)


def _without(backend: Backend, hidden: Mapping[str, str]) -> Backend:
    left = tuple(one for one in backend.devices if one.id not in hidden)
    if left or len(left) == len(backend.devices) or backend.available is not True:
        return replace(backend, devices=left)
    why = next(hidden[str(one.id)] for one in backend.devices if one.id in hidden)
    return replace(backend, devices=(), available=False, reason=f"{why} hides its GPUs from this program")


def best_available_backend() -> str:
    """Return the name of the best usable backend: cuda, rocm, metal, opencl or cpu."""
    return discover_backends().recommended


def select_backend_for(wanted: str | int) -> Backend:
    """Return the best backend with a device that can allocate `wanted` bytes now. Raises NoBackendError or
    InvalidInputError."""
    return select(discover_backends(), parse_bytes(wanted, "bytes"))


def select(found: Backends, need: int) -> Backend:
    by_name = {backend.name: backend for backend in found.backends}
    order = [*(name for name, _ in PREFERENCE), "cpu"]
    reasons = []
    for name in order:
        backend = by_name.get(name)
        if backend is None:
            continue
        why_not = explain_refusal(backend, need)
        if why_not is None:
            return backend
        reasons.append(f"{backend.label}: {why_not}")
    raise NoBackendError(f"no backend can allocate {size(need)} now. Tried: {'; '.join(reasons)}")


def explain_refusal(backend: Backend, need: int) -> str | None:
    """Return why a backend cannot allocate `need` bytes, or None if it can."""
    if backend.available is not True:
        return backend.reason
    computing = [one for one in backend.devices if one.kind != "cpu" or backend.name == "cpu"]
    if not computing:
        return backend.reason
    rooms = [(room, one.name) for one in computing if isinstance(room := one.room_bytes, int)]
    if not rooms:
        return "the headroom of its devices is not known"
    most, name = max(rooms)
    return None if most >= need else f"{name} can allocate {size(most)} now"
