"""Retry with half the batch size after an out-of-memory error. Memory is freed between attempts."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from memwatch.library.frameworks import clear_all
from memwatch.library.reporter import reporter
from memwatch.planning.sizes import check_count

R = TypeVar("R")
DEFAULT_ATTEMPTS = 5
# Messages of out-of-memory errors without their own class (RuntimeError, XlaRuntimeError).
OUT_OF_MEMORY = re.compile(r"out of memory|RESOURCE_EXHAUSTED|std::bad_alloc|can't allocate memory", re.IGNORECASE)
NAMES = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError"})


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of Python, PyTorch, CuPy or JAX."""
    if isinstance(error, MemoryError) or type(error).__name__ in NAMES:
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)[:2000]) is not None


def retry_on_oom(
    batch_size: int, attempts: int = DEFAULT_ATTEMPTS, least: int = 1
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a function with the keyword `batch_size`, which is halved after each out-of-memory error.

    Use as `@retry_on_oom(batch_size=64)`. Later calls start with the size that worked. After `attempts`, or below
    `least`, the first error is raised with a note of the sizes tried. Raises InvalidInputError for invalid numbers.
    """
    check_count(batch_size, "batch_size", 64)
    check_count(attempts, "attempts", DEFAULT_ATTEMPTS, 1, 64)
    check_count(least, "least", 1, 1, batch_size)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
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
                    tried.append(size)
                    first = _drop_frames(first or error)
                    _drop_frames(error)
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


def _drop_frames(error: BaseException) -> BaseException:
    # The traceback's frames reference the tensors that should be freed.
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    return error


def _with_history(error: BaseException, tried: list[int]) -> BaseException:
    note = f"memwatch: out of memory with all batch sizes tried: {', '.join(map(str, tried))}"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__dict__["__notes__"] = [*error.__dict__.get("__notes__", ()), note]
    return error
