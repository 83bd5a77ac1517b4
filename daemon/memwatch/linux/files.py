"""Reading files of the kernel: where they are, files kept open, and how reading fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from msgspec import Struct

# In what `Unavailable` says: the machine has it, and this user may not read it.
NOT_PERMITTED = "not permitted"


class Unavailable(Exception):
    """This machine does not have what the collector reads. Normal, and not an error."""


class Unreadable(Exception):
    """The file or driver is there and its answer makes no sense; says where, what was found, what was expected."""


class Roots(Struct, frozen=True):
    """Where to find the host: other folders than the usual ones in containers and in tests."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    rootfs: Path = Path("/")


class KeptFile:
    """A file of procfs or sysfs that stays open: each `read` is one system call and returns all of it.

    Opening raises OSError. A file that vanished and came back (hot-plug, module reload) is opened again.
    """

    def __init__(self, path: Path, size_hint: int = 8192) -> None:
        self.path = path
        self._size = size_hint
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        try:
            data = os.pread(self._fd, self._size, 0)
        except OSError:
            self.close()
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._fd, self._size, 0)
        if len(data) < self._size:
            return data
        self._size *= 4
        return self.read()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def kept_file(path: Path, size_hint: int = 8192) -> KeptFile:
    """A kept file that has been read once. `Unavailable` where it is not there or refuses to be read."""
    try:
        file = KeptFile(path, size_hint)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    try:
        file.read()
    except OSError as error:
        file.close()
        raise Unavailable(f"{path}: {error.strerror}") from error
    return file


def read_once(path: Path) -> bytes | None:
    """The whole of a small file, or None where it does not exist or may not be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Whether the system, or this process, has no room for one more file just now. That passes."""
    return error.errno in _SHORTAGES
