"""Readers of a log that stop reading."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CTRL_S, CTRL_Q = b"\x13", b"\x11"


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pipe."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        close(*ends)


@contextmanager
def stopped_terminal() -> Iterator[int]:
    """Yield a terminal whose output is stopped with Ctrl-S."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, CTRL_S)
    try:
        yield terminal
    finally:
        close(keyboard, terminal)


def fill(pipe_end: int) -> int:
    """Fill a pipe and return the number of bytes, without making it non-blocking for others."""
    own, count = os.open(f"/proc/self/fd/{pipe_end}", os.O_WRONLY | os.O_NONBLOCK), 0
    with suppress(BlockingIOError):
        while True:
            count += os.write(own, b"x" * 4096)
    with suppress(BlockingIOError):
        while True:
            count += os.write(own, b"x")
    os.close(own)
    return count


def close(*descriptors: int) -> None:
    for one in descriptors:
        with suppress(OSError):
            os.close(one)
