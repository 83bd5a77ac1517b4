"""Retry with half the batch size after an out-of-memory error. Memory is freed between attempts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from memwatch.library.autopsy import autopsy
from memwatch.library.frameworks import clear_all
from memwatch.library.oom_errors import drop_frames, is_out_of_memory
from memwatch.library.reporter import reporter
from memwatch.planning.sizes import check_count

R = TypeVar("R")
DEFAULT_ATTEMPTS = 5


def retry_on_oom(
    batch_size: int, attempts: int = DEFAULT_ATTEMPTS, least: int = 1, *, folder: str | Path | None = None
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a function with the keyword `batch_size`, which is halved after each out-of-memory error.

    Use as `@retry_on_oom(batch_size=64)`. Later calls start with the size that worked. After `attempts`, or below
    `least`, the first error is raised with a note of the sizes tried. `autopsy` is called with the first error of a
    call, and saves its files in `folder` if there is one. Raises InvalidInputError for invalid numbers.
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


def _with_history(error: BaseException, tried: list[int]) -> BaseException:
    note = f"memwatch: out of memory with all batch sizes tried: {', '.join(map(str, tried))}"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__dict__["__notes__"] = [*error.__dict__.get("__notes__", ()), note]
    return error
