"""Open a regular file and nothing else: the only way to open a path that another user may have chosen.

A FIFO would wait for its writer, and opening a device may act: a watchdog starts. A path that a process names is
opened by `core.linux.user_files`, which has the rights of that process and uses this module for the last step.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Protocol

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_PART_BYTES = 1 << 16
NOT_REGULAR = "is not a regular file"
# The number of openat2(2) on every architecture, and its rules for links (Linux 5.6).
_OPENAT2 = 437
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10
# Errors of openat2 that say nothing of the path: an older kernel, a seccomp profile that does not know the call, a
# flag that is unknown, and a folder that moved meanwhile.
_NO_ANSWER = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EAGAIN})


class OpensItself(Protocol):
    """A path that knows with which rights it is opened."""

    def open_descriptor(self) -> int: ...


class NotRegularError(OSError):
    """The path leads to a folder, FIFO, socket or device."""

    def __init__(self, path: object) -> None:
        super().__init__(errno.EINVAL, NOT_REGULAR, str(path))


@contextmanager
def open_regular(path: str | os.PathLike[str] | OpensItself) -> Iterator[tuple[BufferedReader, os.stat_result]]:
    """Open a file, and yield it with its status. Raises OSError, NotRegularError for any other kind."""
    descriptor = open_descriptor(path) if isinstance(path, str | os.PathLike) else path.open_descriptor()
    with open(descriptor, "rb") as file:
        yield file, os.fstat(descriptor)


def open_descriptor(path: str | os.PathLike[str], folder: int | None = None, flags: int = READ) -> int:
    """Return the descriptor of a regular file, of a path below an open folder if there is one. Raises OSError."""
    if not stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=not flags & os.O_NOFOLLOW).st_mode):
        raise NotRegularError(path)
    return _checked(os.open(path, flags, dir_fd=folder), path)


def read_regular(path: str | os.PathLike[str], max_bytes: int = sys.maxsize) -> bytes:
    """Return the content of a file, or its first bytes. Raises OSError."""
    descriptor = open_descriptor(path)
    try:
        found = os.read(descriptor, min(max_bytes, _PART_BYTES))
        while found and len(found) < max_bytes and (part := os.read(descriptor, min(max_bytes, _PART_BYTES))):
            found += part
        return found[:max_bytes]
    finally:
        os.close(descriptor)


@contextmanager
def fixed_name(path: str) -> Iterator[str]:
    """Yield a name by which a library opens this regular file, whatever takes its place. Raises OSError."""
    descriptor = open_descriptor(path)
    name = f"/proc/self/fd/{descriptor}"
    try:
        yield name if os.path.exists(name) else path
    finally:
        os.close(descriptor)


def open_in_root(root: int, path: str, flags: int) -> int | None:
    """Open a path as a process with this root folder would, by openat2(2), through no magic link of /proc.

    `flags` of open(2). Return None where this kernel cannot tell. Raises OSError.
    """
    if not hasattr(os, "O_PATH"):  # another system than Linux
        return None
    import ctypes  # takes 5 ms, which most commands do not need

    call = ctypes.CDLL(None, use_errno=True).syscall
    rules = (ctypes.c_uint64 * 3)(flags, 0, _NO_MAGIC_LINKS | _IN_ROOT)
    opened: int = call(ctypes.c_long(_OPENAT2), ctypes.c_int(root), os.fsencode(path), rules, ctypes.c_size_t(24))
    if opened >= 0:
        return opened
    error = ctypes.get_errno()
    if error in _NO_ANSWER:
        return None
    raise OSError(error, os.strerror(error), path)


def _checked(descriptor: int, path: object) -> int:
    """Return the descriptor if the file is still a regular one: it may have been exchanged."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegularError(path)
