"""What the files of /proc/<pid> say. Pure rules, and the one way in which such files are read. No collector."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from memwatch.linux.cgroups import Place, folders_of, parse_cgroup, parse_mountinfo, place_of, sees_all_processes
from memwatch.linux.files import Roots, Unreadable, read_once
from memwatch.model import Absent, Words

# Of the flags in stat.
KERNEL_THREAD = 0x00200000
_BOOT_TIME = re.compile(rb"^btime (\d{1,12})\n", re.MULTILINE)
_UIDS = re.compile(rb"^Uid:\t\d+\t(\d{1,10})\t", re.MULTILINE)
_SWAP = re.compile(rb"^VmSwap:[ \t]+(\d{1,19}) kB\n", re.MULTILINE)
_CGROUP_BYTES = 16384
# As Linux 5.8 writes it and as older ones do; 0 and `off` hide nothing.
_HIDEPID = re.compile(r"(?:^|,)hidepid=(?!0|off)")
# A stat line with the longest name and 20 digits in all 50 columns is not longer.
STAT_BYTES = 1200
STATM_BYTES = 160
STATUS_BYTES = 4096
# Of a number of 64 bits.
_MOST_DIGITS = 20


class Stat(NamedTuple):
    """What one read of /proc/<pid>/stat says, so that a reused process id cannot mix two owners.

    Its RSS can be off by some pages per processor since Linux 6.2, which is nothing beside the largest
    processes; the exact sums in smaps have to wait for the process's own lock.
    """

    rss_pages: int
    pid: int
    start_ticks: int
    name: bytes


def parse_stat(data: bytes) -> Stat | None:
    """None for a kernel thread, which has no memory of its own. The name may contain blanks and brackets."""
    front, closing, back = data.rpartition(b")")
    pid, _, name = front.partition(b" (")
    columns = back.split()
    try:
        if not closing or len(columns) < 22 or not data.endswith(b"\n"):
            raise ValueError
        # Columns of proc(5) from the third on: 9 flags, 22 starttime, 24 rss. Python would read 1_0 as 10.
        figures = (columns[6], columns[19], columns[21], pid)
        if not b"".join(figures).isdigit() or max(map(len, figures)) > _MOST_DIGITS:
            raise ValueError
        flags, start, rss, number = map(int, figures)
        if flags & KERNEL_THREAD:
            return None
        if number < 1:
            raise ValueError
        return Stat(rss, number, start, name)
    except ValueError:
        raise Unreadable(f"stat: {data[:80]!r} is not a line of process statistics") from None


def parse_statm(data: bytes) -> int:
    """The resident pages: the second column."""
    columns = data.split(None, 2)
    if len(columns) == 3 and columns[1].isdigit() and len(columns[1]) <= _MOST_DIGITS and data.endswith(b"\n"):
        return int(columns[1])
    raise Unreadable(f"statm: {data[:80]!r} is not a line of a process's pages")


def living_thread(folder: int, tasks: str) -> tuple[str, int] | None:
    """Another thread of a process whose first one has ended, `tasks`/<its number>, and the resident pages.

    `tasks` is the process's folder `task`, seen from an open one. The kernel calls such a process a zombie that has
    no memory, no files and no command line, and so do ps and top; its other threads go on with all of it (seen on
    Linux 6.18). None where no thread has memory, as in a real zombie.
    """
    with contextlib.suppress(OSError), folder_in(folder, tasks) as opened:
        for thread in os.listdir(opened):
            with contextlib.suppress(Unreadable):
                pages = parse_statm(read_in(opened, thread + "/statm", STATM_BYTES) or b"")
                if pages:
                    return f"{tasks}/{thread}", pages
    return None


def parse_boot_time(data: bytes) -> int:
    found = _BOOT_TIME.search(data)
    if found is None:
        raise Unreadable("stat has no line btime")
    return int(found[1])


def parse_uid(status: bytes) -> int | None:
    """The effective user id."""
    found = _UIDS.search(status)
    return int(found[1]) if found else None


def parse_swap(status: bytes) -> int | None:
    """Bytes in swap; None where the kernel does not say."""
    found = _SWAP.search(status)
    return int(found[1]) << 10 if found else None


def parse_command(data: bytes, most: int) -> str:
    """A command line as one would type it, at most `most` characters; made visible what would not show."""
    words = data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")
    return words if len(words) <= most else words[: most - 1] + "…"


class Home(Struct, frozen=True, eq=False):
    """Whom a process belongs to, None where that may not be known, and the cgroups that its owners are, by kind."""

    place: Place | None
    folders: Mapping[str, str]

    def owner(self, kind: str) -> Words | None:
        if self.place is None:
            return Absent.NOT_PERMITTED
        name: str | None = getattr(self.place, kind)
        return name


NOWHERE = Home(None, {})


class Homes:
    """The home of each process. Most share theirs with others, so each text is made sense of once."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, Home] = {}

    def read(self, folder: int, name: str) -> Home:
        """By the cgroup file under an open folder."""
        text = read_in(folder, name, _CGROUP_BYTES)
        if text is None:
            return NOWHERE
        home = self._by_text.get(text)
        if home is None:
            paths = parse_cgroup(text)
            place = place_of(paths)
            home = self._by_text[text] = Home(place, folders_of(place, paths.get("memory", paths.get("", ""))))
        return home

    def forget_all_but(self, homes: Collection[Home]) -> None:
        self._by_text = {text: home for text, home in self._by_text.items() if home in homes}


def parse_passwd(data: bytes) -> dict[int, str]:
    names: dict[int, str] = {}
    for line in data.split(b"\n"):
        columns = line.split(b":")
        if len(columns) >= 3 and columns[0] and columns[2].isdigit() and len(columns[2]) <= 10:
            names.setdefault(int(columns[2]), columns[0].decode("utf-8", "backslashreplace"))
    return names


OUTSIDE_HIDDEN = (
    "Processes outside this container are not seen, nor what they hold: start it with the host's process ids "
    "(docker run --pid=host) to see them."
)
OTHERS_HIDDEN = (
    "Processes of other users are not seen, nor what they hold, because /proc is mounted with hidepid: start "
    "memwatchd as root or in the group that the mount option gid= names."
)


def hides_others(roots: Roots, contained: bool) -> str | None:
    """Why some processes are not seen, in a sentence; None where all are."""
    if not sees_all_processes(read_once(roots.procfs / "2/stat"), contained):
        return OUTSIDE_HIDDEN
    hides = any(
        mount.kind == "proc" and _HIDEPID.search(mount.options)
        for mount in parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    )
    return OTHERS_HIDDEN if hides and read_once(roots.procfs / "1/stat") is None else None


class Passwd:
    """User names by id from the file alone: the system's resolver may ask a network that is not there."""

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
                self._names, self._changed = parse_passwd(self._path.read_bytes()), changed


@contextlib.contextmanager
def folder_in(folder: int, name: str) -> Iterator[int]:
    """A folder under an open one. Raises OSError where it cannot be opened."""
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


def read_in(folder: int, name: str, size: int) -> bytes | None:
    """The beginning of a file under an open folder; None where it cannot be read."""
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
