"""Limits of this process on open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Allow this process `left` more descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1 + left
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in held:
            os.close(one)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Allow this process no new descriptor, even after closing one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
