"""A process that may open few files, or none, for a while."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """This process may open so many files more."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1 + left
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, usual[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        for one in held:
            os.close(one)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process may open nothing, not even what it has just closed."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
