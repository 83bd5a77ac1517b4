"""Allocation on a device that falls back to the CPU after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from memwatch.library.device_names import is_cpu, parse_name
from memwatch.library.machine import is_unified_memory_gpu
from memwatch.library.memory_pool import note_fallback
from memwatch.library.memory_release import clear
from memwatch.library.never_raise import log_once
from memwatch.library.oom_errors import drop_frames, find_gpu, is_out_of_memory
from memwatch.library.reporter import reporter

T = TypeVar("T")
CPU = "cpu"
MAX_ERROR_LENGTH = 300


class FallbackBuffer(Struct, Generic[T], frozen=True):
    """Result of `allocate_with_fallback`. `device`: where `value` is. `error`: why it is not on the wanted one."""

    value: T
    device: str
    error: str = ""

    @property
    def fell_back(self) -> bool:
        return bool(self.error)


def allocate_with_fallback(make: Callable[[str], T], device: object = "cuda:0") -> FallbackBuffer[T]:
    """Call `make(device)`, and after an out-of-memory error `make("cpu")`. The result says which it was.

    Use as `allocate_with_fallback(lambda device: torch.empty(1 << 28, device=device), "cuda:0")`. Before the
    fallback, all allocators are cleared and the device is tried once more. A fallback is logged once for each
    device, sent to the daemon as a mark, and counted in `PoolStats.cpu_fallbacks`. Other errors are raised, and
    those of the CPU.
    """
    name = CPU if device is None else str(device)
    if is_cpu(name):
        return FallbackBuffer(make(name), name)
    error = _try(make, name)
    if isinstance(error, FallbackBuffer):
        return error
    clear()
    error = _try(make, name)
    if isinstance(error, FallbackBuffer):
        return error
    _report(name, error)
    return FallbackBuffer(make(CPU), CPU, f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH])


def _try(make: Callable[[str], T], name: str) -> FallbackBuffer[T] | BaseException:
    try:
        return FallbackBuffer(make(name), name)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return drop_frames(error)


def _report(name: str, error: BaseException) -> None:
    # A framework's device without a number is its current one, which PyTorch's message names.
    place = name if parse_name(name).number is not None else f"{name}:{find_gpu(str(error)) or 0}"
    note_fallback(type(error).__module__, place)
    shared = " This GPU allocates from System RAM, so that the CPU has no other memory." * is_unified_memory_gpu(
        name
    )
    sentence = f"out of memory on {name}: allocations fall back to the CPU.{shared}"
    if log_once(sentence):
        reporter.mark(sentence)
