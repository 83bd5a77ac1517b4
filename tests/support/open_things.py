"""Descriptors, threads and child processes of this process, and those that it keeps for the whole run."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

DESCRIPTOR, THREAD, CHILD = "descriptor", "thread", "child process"
# A cached server, thread or browser that later tests use as well: see `kept_open`.
KEPT: set[OpenThing] = set()
# Closed at the end of the test, the newest first.
TO_CLOSE: list[Closeable] = []


class Closeable(Protocol):
    def close(self) -> None: ...


CloseableT = TypeVar("CloseableT", bound=Closeable)


class OpenThing(Struct, frozen=True):
    """`number`: descriptor, thread id or PID. `text`: target of the descriptor, or name of the thread."""

    kind: str
    number: int
    text: str = ""

    @property
    def is_connection(self) -> bool:
        if not self.text.startswith("socket:"):
            return False
        with suppress(OSError), socket.socket(fileno=os.dup(self.number)) as one:
            one.getpeername()
            return True
        return False

    def __str__(self) -> str:
        detail = _address(self.number) if self.text.startswith("socket:") else _command(self.number, self.kind)
        return " ".join(filter(None, (self.kind, str(self.number), self.text, detail)))


def open_things() -> frozenset[OpenThing]:
    """Return what is open now. A number that is used again has another text, or is younger than this process."""
    return frozenset((*_descriptors(), *_threads(), *_children()))


def close_at_end(one: CloseableT) -> CloseableT:
    """Close an object that the test has made at its end, as pytest's plugin `left_open` does; return it."""
    TO_CLOSE.append(one)
    return one


@contextmanager
def kept_open() -> Iterator[None]:
    """Take what is opened meanwhile for a part of the worker, not of the test that was the first to need it."""
    before = open_things()
    try:
        yield
    finally:
        KEPT.update(open_things() - before)


def _descriptors() -> Iterator[OpenThing]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing
            yield OpenThing(DESCRIPTOR, int(name), os.readlink(f"/proc/self/fd/{name}"))


def _threads() -> Iterator[OpenThing]:
    yield from (OpenThing(THREAD, one.ident or 0, one.name) for one in threading.enumerate())


def _children() -> Iterator[OpenThing]:
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # a thread that has ended since
            children = Path(f"/proc/self/task/{task}/children").read_text().split()
            yield from (OpenThing(CHILD, int(pid)) for pid in children)


def _address(descriptor: int) -> str:
    """Return the addresses of a socket."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        with suppress(OSError):
            return f"({one.family.name}, {one.getsockname()} to {one.getpeername()})"
        return f"({one.family.name}, {one.getsockname()})"
    return ""


def _command(pid: int, kind: str) -> str:
    if kind != CHILD:
        return ""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "(not waited for)"
    return ""
