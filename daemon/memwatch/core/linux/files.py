"""Read kernel files: their root folders, files that are kept open, a line in one, and the errors of collectors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.core.printable import decode
from memwatch.core.runtime.regular_file import read_regular

# Text of an `SourceUnavailable` if the file exists and this user may not read it.
NOT_PERMITTED = "not permitted"
# All user ids, as in the first user namespace (user_namespaces(7)).
WHOLE_MAP = [b"0", b"0", b"4294967295"]


class SourceUnavailable(Exception):
    """The machine does not have what the collector reads. This is normal and not an error."""


class ParseError(Exception):
    """The file or driver exists and its content is invalid. The message has file, content and reason."""


class Roots(Struct, frozen=True):
    """Root folders of the host. They differ from the defaults in containers and in tests."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    rootfs: Path = Path("/")


class KeptFile:
    """A file of procfs or sysfs that stays open. `read` returns the whole content, usually with one system call.

    Opening raises OSError. A file that disappeared and reappeared (hot-plug, module reload) is reopened.
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
            return without_padding(data)
        self._size *= 4
        return self.read()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """Close a file whose owner was dropped, such as a collector whose later files could not be opened.

        `close` is bound at the start: modules may be empty when the interpreter ends.
        """
        if getattr(self, "_fd", -1) >= 0:
            try:
                close(self._fd)
            except OSError:  # a program that uses the library has closed all files
                return


def without_padding(data: bytes) -> bytes:
    """Return a text without NULs at its end. lxcfs announces the size of the host's file, and its own is shorter:
    some kernels fill up the rest (lxc/lxcfs#485, giampaolo/psutil#2319)."""
    return data.rstrip(b"\0") if data.endswith(b"\0") else data


def kept_file(path: Path, size_hint: int = 8192) -> KeptFile:
    """Open a file and read it once. Raises `SourceUnavailable` if it does not exist or cannot be read."""
    try:
        file = KeptFile(path, size_hint)
    except OSError as error:
        raise SourceUnavailable(f"{path}: {error.strerror}") from error
    try:
        file.read()
    except OSError as error:
        file.close()
        raise SourceUnavailable(f"{path}: {error.strerror}") from error
    return file


def kept_folder(path: Path) -> int:
    """Open a folder such as /proc. Raises `SourceUnavailable`."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceUnavailable(f"{path}: {error.strerror}") from error


def read_once(path: Path) -> bytes | None:
    """Return the content of a small file, or None if it does not exist, cannot be read or is not a regular one."""
    try:
        return read_regular(path)
    except OSError:
        return None


def read_boot_id(procfs: Path) -> str:
    """Return the id of the machine's current boot, empty if it is not readable."""
    return decode((read_once(procfs / "sys/kernel/random/boot_id") or b"").strip())


def maps_every_user(uid_map: Path) -> bool:
    """Return True outside user namespaces, by the file /proc/self/uid_map; a system without it has none.

    Inside, the ids differ from the machine's, and the overflow id stands for all users that are not mapped.
    """
    found = read_once(uid_map)
    return found is None or found.split() == WHOLE_MAP


def inode_of(path: Path) -> int:
    """Return the inode number, 0 if the file does not exist. A file that was replaced has another one."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def names_in(folder: Path) -> tuple[str, ...]:
    """Return the sorted names in a folder, none if it cannot be listed."""
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()


def look_for(path: str) -> object:
    """Return if the path exists, or the names in a folder whose path ends in `/`. Costs 1 µs, or 8 µs."""
    if path.endswith("/") and os.access(path, os.F_OK):
        try:
            return os.listdir(path)
        except OSError:
            return ()
    return os.access(path, os.F_OK)


_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Return True if the error is a temporary lack of file descriptors or memory."""
    return error.errno in _SHORTAGES


# One line of /proc/vmstat.

OOM_KILL = b"oom_kill"
# Direct reclaim of the machine, by zone: a machine has some of these lines.
ALLOCSTALL: tuple[bytes, ...] = tuple(
    b"allocstall_" + zone for zone in (b"dma", b"dma32", b"normal", b"highmem", b"movable", b"device")
)
MAX_DIGITS = 20


class Counter:
    """One line of vmstat, which has about 180 lines: searched first at its last position."""

    def __init__(self, key: bytes) -> None:
        self._key = self._line = b"\n" + key + b" "
        self._at = -1
        self.was_found: bool = False
        self.value: int | Absent = Absent.NOT_SUPPORTED

    def place(self) -> tuple[bytes, int]:
        """Return the line's text and position. At position 0 an empty text, which every file has, if missing."""
        return (self._line, self._at) if self._at >= 0 else (b"", 0)

    def search(self, data: bytes) -> None:
        """Find the line and parse the number after the key up to the end of the line."""
        key, at = self._key, max(0, self._at)
        if not data.startswith(key, at):
            at = data.find(key)
        start = at + len(key)
        end = data.find(b"\n", start)
        digits = data[start:end]
        if at < 0 or end < 0 or not digits.isdigit() or len(digits) > MAX_DIGITS:
            self._at, self.value = -1, Absent.NOT_SUPPORTED
        else:
            self._line, self._at, self.value = data[at : end + 1], at, int(digits)
            self.was_found = True
