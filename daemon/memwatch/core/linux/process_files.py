"""Parsers of the files in /proc/<pid>, and functions to read them. Not a collector."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from memwatch.core.linux.cgroups import OwnerNames, owner_folders, parse_cgroup, parse_owners
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.model import Absent, Words
from memwatch.core.printable import decode, printable
from memwatch.core.runtime.regular_file import read_regular

# PF_KTHREAD in the flags of stat.
KERNEL_THREAD = 0x00200000
_BOOT_TIME = re.compile(rb"^btime (\d{1,12})\n", re.MULTILINE)
_UIDS = re.compile(rb"^Uid:\t\d+\t(\d{1,10})\t", re.MULTILINE)
_REAL_UID = re.compile(rb"^Uid:\t(\d{1,10})\t", re.MULTILINE)
_IDS = re.compile(rb"^(Uid|Gid):\t(\d{1,10})\t(\d{1,10})\t(\d{1,10})\t(\d{1,10})\n", re.MULTILINE)
_GROUPS = re.compile(rb"^Groups:\t?([\d ]*)\n", re.MULTILINE)
_NAME = re.compile(rb"\AName:\t([^\n]*)\n")
_SWAP = re.compile(rb"^VmSwap:[ \t]+(\d{1,19}) kB\n", re.MULTILINE)
_CGROUP_BYTES = 16384
# Enough for a stat line with the longest name and 20 digits in each of 50 columns.
STAT_BYTES = 1200
STATM_BYTES = 160
STATUS_BYTES = 4096
# Digits of a 64-bit number.
_MAX_DIGITS = 20


class Stat(NamedTuple):
    """Values from one read of /proc/<pid>/stat, so that a reused process id cannot mix two processes.

    Since Linux 6.2 the RSS can be off by some pages per CPU, which is negligible for the largest processes. The
    exact sums in smaps take the process's mmap lock.
    """

    rss_pages: int
    pid: int
    start_ticks: int
    name: bytes
    parent: int = 0
    group: int = 0


def parse_stat(data: bytes) -> Stat | None:
    """Parse stat. None for a kernel thread, which has no user memory. The name may contain blanks and brackets."""
    front, closing, back = data.rpartition(b")")
    pid, _, name = front.partition(b" (")
    columns = back.split()
    try:
        if not closing or len(columns) < 22 or not data.endswith(b"\n"):
            raise ValueError
        # Columns in proc(5), here from the third on: 4 ppid, 5 pgrp, 9 flags, 22 starttime, 24 rss. int() would
        # parse 1_0 as 10.
        figures = (columns[6], columns[19], columns[21], pid, columns[1], columns[2])
        if not b"".join(figures).isdigit() or max(map(len, figures)) > _MAX_DIGITS:
            raise ValueError
        flags, start, rss, number, parent, group = map(int, figures)
        if flags & KERNEL_THREAD:
            return None
        if number < 1:
            raise ValueError
        return Stat(rss, number, start, name, parent, group)
    except ValueError:
        raise ParseError(f"stat: {data[:80]!r} is not a valid line of /proc/<pid>/stat") from None


def read_start_ticks(folder: Path) -> int | None:
    """Return the start time of a process in clock ticks, None if there is none of user space."""
    try:
        stat = parse_stat(read_once(folder / "stat") or b"")
    except ParseError:
        return None
    return stat.start_ticks if stat else None


def parse_statm(data: bytes) -> int:
    """Return the number of resident pages, the second column of statm."""
    columns = data.split(None, 2)
    if len(columns) == 3 and columns[1].isdigit() and len(columns[1]) <= _MAX_DIGITS and data.endswith(b"\n"):
        return int(columns[1])
    raise ParseError(f"statm: {data[:80]!r} is not a valid line of /proc/<pid>/statm")


def find_living_thread(folder: int, tasks: str) -> tuple[str, int] | None:
    """Return (`tasks`/<thread id>, resident pages) of a living thread of a process whose main thread has ended.

    `tasks` is the process's folder `task`, relative to the open `folder`. The kernel, ps and top show such a
    process as a zombie without memory, files and command line, while its other threads keep all of these (seen on
    Linux 6.18). None if no thread has memory, as in a real zombie.
    """
    with contextlib.suppress(OSError), open_folder(folder, tasks) as opened:
        for thread in os.listdir(opened):
            with contextlib.suppress(ParseError):
                pages = parse_statm(read_at(opened, thread + "/statm", STATM_BYTES) or b"")
                if pages:
                    return f"{tasks}/{thread}", pages
    return None


def parse_boot_time(data: bytes) -> int:
    found = _BOOT_TIME.search(data)
    if found is None:
        raise ParseError("stat: there is no line btime")
    return int(found[1])


def parse_name(status: bytes) -> bytes:
    """Return the name of a process, with the kernel's escapes of a newline and a backslash. Empty if unknown."""
    found = _NAME.match(status)
    return found[1] if found else b""


def parse_uid(status: bytes) -> int | None:
    """Return the effective user id."""
    found = _UIDS.search(status)
    return int(found[1]) if found else None


def parse_real_uid(status: bytes) -> int | None:
    """Return the id of the user that started the process: a set-uid program has another effective one."""
    found = _REAL_UID.search(status)
    return int(found[1]) if found else None


class Credentials(Struct, frozen=True):
    """The rights of a process: its user, its groups, and the mask of its effective capabilities."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int


def parse_credentials(status: bytes) -> Credentials:
    """Parse the rights of a process in status. Raises ParseError for one whose user or group is not the same in all
    respects: the user who starts a set-uid program writes its command line."""
    ids = {name: set(map(int, four)) for name, *four in _IDS.findall(status)}
    groups = _GROUPS.search(status)
    if set(map(len, ids.values())) != {1} or len(ids) != 2 or groups is None:
        raise ParseError("status: its user or group is not the same in all respects")
    further = tuple(map(int, groups[1].split()))
    return Credentials(ids[b"Uid"].pop(), ids[b"Gid"].pop(), further, parse_effective(status))


def parse_swap(status: bytes) -> int | None:
    """Return the bytes in swap, or None if the kernel does not report them."""
    found = _SWAP.search(status)
    return int(found[1]) << 10 if found else None


def parse_command(data: bytes, max_characters: int) -> str:
    """Return a command line with blanks between arguments, at most `max_characters` characters. Secrets are hidden,
    invalid UTF-8 and control characters are escaped."""
    from memwatch.core.redaction import redact_arguments  # 100 expressions, where command lines are wanted

    arguments = data.rstrip(b"\0").decode("utf-8", "backslashreplace").split("\0")
    words = printable(" ".join(redact_arguments(arguments)))
    return words if len(words) <= max_characters else words[: max_characters - 1] + "…"


class ProcessOwners(Struct, frozen=True, eq=False):
    """The owners of a process (None without permission), and the owners' cgroup paths by kind."""

    names: OwnerNames | None
    folders: Mapping[str, str]

    def owner(self, kind: str) -> Words | None:
        if self.names is None:
            return Absent.NOT_PERMITTED
        name: str | None = getattr(self.names, kind)
        return name


NO_OWNERS = ProcessOwners(None, {})


class ProcessOwnersCache:
    """Cache of `ProcessOwners` by the content of the cgroup file: most processes share it with others."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, ProcessOwners] = {}

    def read(self, folder: int, name: str) -> ProcessOwners:
        """Read a process's home from the cgroup file `name` under an open folder."""
        text = read_at(folder, name, _CGROUP_BYTES)
        if text is None:
            return NO_OWNERS
        home = self._by_text.get(text)
        if home is None:
            paths = parse_cgroup(text)
            place = parse_owners(paths)
            home = self._by_text[text] = ProcessOwners(
                place.printable(), owner_folders(place, paths.get("memory", paths.get("", "")))
            )
        return home

    def keep_only(self, homes: Collection[ProcessOwners]) -> None:
        self._by_text = {text: home for text, home in self._by_text.items() if home in homes}


def parse_passwd(data: bytes) -> dict[int, str]:
    names: dict[int, str] = {}
    for line in data.split(b"\n"):
        columns = line.split(b":")
        if len(columns) >= 3 and columns[0] and columns[2].isdigit() and len(columns[2]) <= 10:
            names.setdefault(int(columns[2]), decode(columns[0]))
    return names


class Passwd:
    """User names by id, from /etc/passwd only: the system's resolver (NSS) may block on an unreachable network."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: Mapping[int, str] = {}
        self._changed = -1

    def name(self, uid: int | None) -> Words:
        return Absent.NOT_PERMITTED if uid is None else self._names.get(uid, str(uid))

    def refresh(self) -> None:
        with contextlib.suppress(OSError):
            changed = self._path.stat().st_mtime_ns
            if changed != self._changed:
                self._names, self._changed = parse_passwd(read_regular(self._path)), changed


# A thread that reads a file releases the interpreter's lock. Two that read one of each process hand it over at each
# read: on a machine with 5,000 processes 330 times a second, for a minute after the start (December 2026).
_WALK = threading.Lock()
MAX_WALK_WAIT_SECONDS = 1.0


@contextlib.contextmanager
def one_walk() -> Iterator[None]:
    """Have one thread at a time read all processes. One that hangs delays another by a second."""
    held = _WALK.acquire(timeout=MAX_WALK_WAIT_SECONDS)
    try:
        yield
    finally:
        if held:
            _WALK.release()


@contextlib.contextmanager
def open_folder(folder: int, name: str) -> Iterator[int]:
    """Open a folder under an open one. Raises OSError."""
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


def read_at(folder: int, name: str, size: int) -> bytes | None:
    """Return the first `size` bytes of a file under an open folder, or None if it cannot be read."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.read(file, size)
    except OSError:
        return None
    finally:
        os.close(file)


CAP_SYSLOG = 34


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Return True if this process has the capability now. False if the kernel does not tell."""
    try:
        return bool(parse_effective(status.read_bytes()) >> number & 1)
    except OSError:
        return False


def parse_effective(status: bytes) -> int:
    """Parse the mask of effective capabilities in /proc/<pid>/status. 0 if there is none."""
    _, _, rest = status.partition(b"\nCapEff:")
    try:
        return int(rest.split(maxsplit=1)[0], 16)
    except (IndexError, ValueError):
        return 0
