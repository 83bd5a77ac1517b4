"""Selection of a compute backend: the best usable one, or the best with room for a number of bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from memwatch.core.backends.devices import Room
from memwatch.core.backends.finder import PREFERENCE, select_recommended
from memwatch.core.backends.model import Backend, Backends
from memwatch.core.linux.daemon_connection import INQUIRY_SECONDS
from memwatch.core.linux.files import Roots
from memwatch.core.model import Share
from memwatch.core.units import size
from memwatch.library.daemon_client import daemon, read_roots
from memwatch.library.device_selection import hidden_devices
from memwatch.library.host import as_used_here, read_own_share
from memwatch.library.machine import machine_cache
from memwatch.library.machine_record import Machine, ResponseDecodeError, decode_backends
from memwatch.library.program_safety import log
from memwatch.planning.answer import FitAnswer
from memwatch.planning.arguments import check_choice, check_count, parse_bytes, refuse
from memwatch.planning.fit import CPU
from memwatch.planning.request import MAX_GPUS

SELECTABLE = (*(name for name, _ in PREFERENCE), CPU)
# Backends whose devices are chosen by environment variables that the library evaluates.
MASKED = frozenset({"cuda", "rocm"})


class NoBackendError(RuntimeError):
    """No backend has enough room. The message lists the backends that were tried and the reasons."""


def discover_backends() -> Backends:
    """Return CPU, CUDA, ROCm, Metal, OpenCL and Vulkan, whether each is usable, and why not.

    CUDA and ROCm have the GPUs that this program sees, as in `Machine.find`, and the CPU has System RAM within the
    limit of this process's container, unit or job. Takes up to ten seconds without a daemon. Raises NoDaemonError
    as `machine`.
    """
    here = machine_cache.any()
    return limit_to_visible(_find_backends(here), hidden_devices(here.devices, here.program))


def _find_backends(here: Machine) -> Backends:
    found = daemon.get("/api/v1/backends", INQUIRY_SECONDS)
    if found is not None:
        try:
            backends = decode_backends(found)
            is_here = isinstance(here.cpus, int)  # known of this machine only
            return limit_cpu(backends, read_own_share()) if is_here else backends
        except ResponseDecodeError:
            pass
    daemon.require_here()
    from memwatch.core.backends.finder import Finder
    from memwatch.library.local_reading import read_machine

    return Finder(Roots(*read_roots(os.environ))).find(as_used_here(read_machine()))


def limit_cpu(found: Backends, own: Share | None) -> Backends:
    """Return the backends with System RAM within the limit of this process, None if it has none."""
    if own is None:
        return found
    return replace(found, backends=tuple(_limit(one, own) if one.name == CPU else one for one in found.backends))


def _limit(cpu: Backend, own: Share) -> Backend:
    figures = [(one.size_bytes, one.headroom_bytes, one.headroom_after_reclaim_bytes) for one in cpu.devices]
    pairs = zip(cpu.devices, (Room(*three).within(own) for three in figures), strict=True)
    return replace(cpu, devices=tuple(replace(device, **room._asdict()) for device, room in pairs))


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


def best_available_backend(prefer: str | Sequence[str] = ()) -> str:
    """Return the name of the best usable backend: cuda, rocm, metal, opencl or cpu.

    `prefer`: a name, or several in order; the first of them that is usable is returned. Raises InvalidInputError
    for other names, and NoDaemonError as `machine`.
    """
    wishes, found = _check_preferred(prefer), discover_backends()
    usable = {one.name for one in found.backends if one.gpus or (one.name == CPU and one.available is True)}
    return next((name for name in wishes if name in usable), found.recommended)


def _check_preferred(prefer: object) -> tuple[str, ...]:
    names = [prefer] if isinstance(prefer, str) else prefer
    if not isinstance(names, list | tuple):
        raise refuse(
            prefer, "prefer", f"the name of a backend or a list of names from {', '.join(SELECTABLE)}", '"cuda"'
        )
    return tuple(check_choice(name, "prefer", SELECTABLE, '"cuda"') for name in names)


def select_backend_for(
    wanted: str | int | FitAnswer, gpus: int = 1, *, prefer: str | Sequence[str] = ()
) -> Backend:
    """Return the best backend with a device that can allocate `wanted` bytes, or `gpus` GPUs that can together.

    `prefer`: a name, or several in order, which come first if they have room. If not, a log line says why.

    With an answer of `fit`: the best one for the devices of that answer, also if these are several. If no backend
    has them, and it fits on the CPU, the CPU. Raises NoBackendError or InvalidInputError.
    """
    if isinstance(wanted, FitAnswer):
        return select_for_answer(discover_backends(), wanted, _check_preferred(prefer))
    count, wishes = check_count(gpus, "gpus", 2, 1, MAX_GPUS), _check_preferred(prefer)
    return select(discover_backends(), parse_bytes(wanted, "bytes"), count, wishes)


def select(found: Backends, need: int, gpus: int = 1, prefer: Sequence[str] = ()) -> Backend:
    each = -(-need // gpus)
    where = f" on each of {gpus} GPUs" if gpus > 1 else ""
    return _first(found, lambda backend: explain_refusal(backend, each, gpus), f"{size(each)}{where}", prefer)


def select_for_answer(found: Backends, answer: FitAnswer, prefer: Sequence[str] = ()) -> Backend:
    fit = answer.fit
    if fit.unknown:
        raise NoBackendError(f"it is not known if {answer.need.subject} fits. {fit.unknown}")
    if not answer.fits:
        reasons = "; ".join(f"{verdict.device}: {verdict.reason}" for verdict in fit.verdicts)
        raise NoBackendError(f"{answer.need.subject} does not fit now. {reasons}")
    devices = fit.split.devices if fit.split else (str(fit.best),)
    cpu_fits = any(verdict.device == CPU and verdict.fits is True for verdict in fit.verdicts)

    def explain(backend: Backend) -> str | None:
        if backend.name == CPU:
            return None if cpu_fits else "the plan is for GPUs"
        return _explain_absence(backend, devices)

    return _first(found, explain, f"memory on {', '.join(devices)}", prefer)


def _first(found: Backends, why_not: Callable[[Backend], str | None], what: str, prefer: Sequence[str]) -> Backend:
    """Return the first backend in order of preference without a reason against it. Raises NoBackendError."""
    by_name = {backend.name: backend for backend in found.backends}
    known = [by_name[name] for name in dict.fromkeys((*prefer, *SELECTABLE)) if name in by_name]
    reasons = [(backend, why_not(backend)) for backend in known]
    chosen = next((backend for backend, why in reasons if why is None), None)
    if chosen is None:
        tried = "; ".join(f"{backend.label}: {why}" for backend, why in reasons)
        raise NoBackendError(f"no backend can allocate {what} now. Tried: {tried}")
    if prefer and chosen.name not in prefer:
        passed = "; ".join(f"{backend.label}: {why}" for backend, why in reasons if backend.name in prefer)
        log.info("%s is used, as the preferred backends cannot be: %s", chosen.label, passed)
    return chosen


def _explain_absence(backend: Backend, devices: Sequence[str]) -> str | None:
    """Return why a backend cannot use all of these devices, or None if it can."""
    if backend.available is not True:
        return backend.reason
    if devices == (CPU,):
        return "the plan is for the CPU"
    missing = [name for name in devices if name not in {one.id for one in backend.gpus}]
    return f"it has no {', '.join(missing)}" if missing else None


def explain_refusal(backend: Backend, need: int, gpus: int = 1) -> str | None:
    """Return why a backend cannot allocate `need` bytes on each of `gpus` devices, or None if it can.

    Several GPUs have memory of their own: on unified memory they have the same.
    """
    if backend.available is not True:
        return backend.reason
    computing = [one for one in backend.devices if one.kind != "cpu" or backend.name == CPU]
    if not computing:
        return backend.reason
    if gpus > 1:
        computing = [one for one in backend.gpus if one.unified is False]
        if len(computing) < gpus:
            return f"it has {len(computing)} GPUs with memory of their own"
    rooms = [(room, one.name) for one in computing if isinstance(room := one.room_bytes, int)]
    if len(rooms) < gpus:
        return "the headroom of its devices is not known"
    least, name = sorted(rooms, reverse=True)[gpus - 1]
    return None if least >= need else f"{name} can allocate {size(least)}"
