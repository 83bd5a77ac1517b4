"""Out of memory, once more with half: frees between attempts, and says what was tried where all fail."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from memwatch.library.frameworks import clear_all
from memwatch.library.reporter import courier
from memwatch.planning.sizes import count_of

R = TypeVar("R")
DEFAULT_ATTEMPTS = 5
# What frameworks say in errors that have no class of their own (RuntimeError, XlaRuntimeError).
OUT_OF_MEMORY = re.compile(r"out of memory|RESOURCE_EXHAUSTED|std::bad_alloc|can't allocate memory", re.IGNORECASE)
NAMES = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError"})


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error of Python, PyTorch, CuPy or JAX says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ in NAMES:
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)[:2000]) is not None


def retry_on_oom(
    batch_size: int, attempts: int = DEFAULT_ATTEMPTS, least: int = 1
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`@retry_on_oom(batch_size=64)`: calls with the keyword `batch_size`, halved after each out-of-memory error.

    Later calls begin with the size that worked. After `attempts`, or below `least`, the first error is raised with
    the sizes that were tried as a note. Raises BadInput for numbers that cannot be.
    """
    count_of(batch_size, "batch_size", 64)
    count_of(attempts, "attempts", DEFAULT_ATTEMPTS, 1, 64)
    count_of(least, "least", 1, 1, batch_size)

    def of(function: Callable[..., R]) -> Callable[..., R]:
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
                    first = _let_go(first or error)
                    _let_go(error)
                else:
                    works = size
                    return result
                clear_all()
                if len(tried) >= attempts or size // 2 < least:
                    raise _with_history(first, tried)
                size //= 2
                courier.mark(f"out of memory with a batch of {tried[-1]}: trying {size}")

        return call

    return of


def _let_go(error: BaseException) -> BaseException:
    """An error holds the frames it came through, and they hold the tensors that are to be freed."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    return error


def _with_history(error: BaseException, tried: list[int]) -> BaseException:
    note = f"memwatch: batch sizes {', '.join(map(str, tried))} were tried, and all ran out of memory"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__dict__["__notes__"] = [*error.__dict__.get("__notes__", ()), note]
    return error
