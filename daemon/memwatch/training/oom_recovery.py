"""Work that goes on after an out-of-memory error: with half the batch size, or with an allocation on the CPU."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct

from memwatch.library.device_selection import is_cpu
from memwatch.library.frameworks import clear_all
from memwatch.library.machine import is_unified_memory_gpu
from memwatch.library.memory_pool import note_fallback
from memwatch.library.memory_release import clear
from memwatch.library.program_safety import log_once
from memwatch.library.reporter import reporter
from memwatch.library.visible_gpus import CPU, check_device, parse_name
from memwatch.planning.arguments import InvalidInputError, check_count, check_folder, check_function, describe
from memwatch.training.oom_autopsy import autopsy
from memwatch.training.oom_errors import drop_frames, find_gpu, is_out_of_memory

R = TypeVar("R")
DEFAULT_ATTEMPTS = 5


def retry_on_oom(
    batch_size: int, attempts: int = DEFAULT_ATTEMPTS, least: int = 1, *, folder: str | Path | None = None
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a function with the keyword `batch_size`, which is halved after each out-of-memory error.

    Use as `@retry_on_oom(batch_size=64)`. Later calls start with the size that worked. After `attempts`, or below
    `least`, the first error is raised with a note of the sizes tried. `autopsy` is called with the first error of a
    call, and saves its files in `folder` if there is one. Raises InvalidInputError for invalid numbers, and for a
    function that has no such keyword, or whose errors come after it returns, as those of a coroutine do.
    """
    check_count(batch_size, "batch_size", 64)
    check_count(attempts, "attempts", DEFAULT_ATTEMPTS, 1, 64)
    check_count(least, "least", 1, 1, batch_size)
    check_folder(folder)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        check_step(function)
        works = batch_size

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:  # noqa: ANN401  whatever the function takes
            nonlocal works
            tried: list[int] = []
            first: BaseException | None = None
            size = works
            while True:
                try:
                    result = function(*args, **{**kwargs, "batch_size": size})
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    if not tried:
                        autopsy(error, folder)
                    tried.append(size)
                    first = drop_frames(first or error)
                    drop_frames(error)
                else:
                    works = size
                    return result
                clear_all()
                if len(tried) >= attempts or size // 2 < least:
                    raise _with_history(first, tried)
                size //= 2
                reporter.mark(f"out of memory with batch size {tried[-1]}: retrying with {size}")

        return call

    return decorate


def check_step(function: object) -> None:
    """Check that `retry_on_oom` can call a function with another batch size, and that it sees its errors."""
    check_function(function, "the decorated step", "def train(batch_size): …")
    assert callable(function)  # noqa: S101  for type checkers
    name = getattr(function, "__name__", describe(function))
    checks = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(check(function) for check in checks):
        raise InvalidInputError(
            f"{name} is a coroutine or a generator, whose errors come after the call; decorate the function inside"
        )
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin without one
        return
    if not any(one.kind is one.VAR_KEYWORD or one.name == "batch_size" for one in found):
        raise InvalidInputError(f"{name} has no parameter batch_size; for example def {name}(batch_size): …")


def _with_history(error: BaseException, tried: list[int]) -> BaseException:
    note = f"memwatch: out of memory with all batch sizes tried: {', '.join(map(str, tried))}"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__dict__["__notes__"] = [*error.__dict__.get("__notes__", ()), note]
    return error


T = TypeVar("T")
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
    those of the CPU. Raises InvalidInputError if `make` is no function or `device` no name.
    """
    check_function(make, "make", "lambda device: torch.empty(1 << 28, device=device)")
    name = check_device(device)
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
