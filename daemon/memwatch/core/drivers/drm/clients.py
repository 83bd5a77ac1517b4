"""Clients of graphics devices: a scan of all processes, and the parser of /proc/<pid>/fdinfo/<fd>.

The format is described in Documentation/gpu/drm-usage-stats.rst.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.drivers.drm.records import Basis, DrmClient
from memwatch.core.linux.files import kept_folder
from memwatch.core.linux.pci import is_pci_address
from memwatch.core.linux.process_files import (
    KERNEL_THREAD,
    STAT_BYTES,
    find_living_thread,
    one_walk,
    open_folder,
    read_at,
)
from memwatch.core.printable import printable

# Two regular expressions find the relevant lines among the 40 of a client in 25 µs. A loop over the lines took
# 60 µs (Python 3.11, a client of xe).
_WORDS = re.compile(rb"^(drm-driver|drm-pdev|drm-client-id|pdev|pasid):[ \t]*([^\n]*)\n", re.MULTILINE)
# No unit means bytes. The kernel prints no larger unit than MiB; a line with one is rejected.
_SIZES = re.compile(
    rb"^((?:drm-(?:resident|memory|shared|total(?!-cycles))|amd-(?:evicted|requested|memory)"
    rb"|panthor-(?:resident|active)|amdxdna[a-z_]{0,20}-(?:internal|external))-[^:\n]{1,40}|(?:vram|gtt|cpu) mem)"
    rb":[ \t]*(?:(\d{1,20})(?: (KiB|MiB|kB))?[ \t]*\n)?",
    re.MULTILINE,
)
_UNITS = {b"": 1, b"KiB": 1 << 10, b"MiB": 1 << 20, b"kB": 1 << 10}
_MAX_BYTES = (1 << 63) - 1
_ID = re.compile(rb"\d{1,20}")


class Fdinfo(Struct, frozen=True):
    """One descriptor's client. `rejected` counts, by key, lines without a valid size; they are left out.

    `unread`: regions of `resident` whose size is among them.
    """

    driver: str
    pdev: str | None
    client_id: int
    basis: Basis | None
    resident: Mapping[str, int]
    shared: Mapping[str, int]
    other: Mapping[str, int]
    rejected: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


class ClientDescriptor(NamedTuple):
    """An open descriptor of a device: `pid` has opened `node` (`renderD128`)."""

    pid: int
    node: str
    info: Fdinfo


def parse_fdinfo(data: bytes) -> Fdinfo | None:
    """Parse fdinfo. None if it is not a client of a graphics driver, or has no client id."""
    words: dict[bytes, bytes] = dict(_WORDS.findall(data))
    # amdgpu before Linux 5.19 prints no driver name, and the address space id (pasid) identifies the client.
    driver = words.get(b"drm-driver") or (b"amdgpu" if b"pasid" in words else b"")
    client_id = words.get(b"drm-client-id") or words.get(b"pasid", b"")
    if not driver or not _ID.fullmatch(client_id):
        return None
    sizes, rejected = _parse_sizes(data)
    basis, resident = _select_resident(sizes)
    if basis == "total" and not any(resident.values()):
        # amdxdna counts no memory, and prints 0 (amd/xdna-driver#324). With other drivers, a client that has
        # requested nothing has no line drm-resident-*: nothing could be resident (glances #3611).
        basis, resident = (None, {}) if driver.startswith(b"amdxdna") else ("resident", resident)
    pdev = _text(words.get(b"drm-pdev") or words.get(b"pdev", b"")).lower()
    return Fdinfo(
        driver=_text(driver),
        pdev=pdev if is_pci_address(pdev) else None,
        client_id=int(client_id),
        basis=basis,
        resident=resident,
        shared=sizes["shared"],
        other=sizes["other"],
        rejected=rejected,
        unread=_find_unread(basis, resident, rejected) if rejected else (),
    )


def _find_unread(basis: Basis | None, resident: Mapping[str, int], rejected: Mapping[str, int]) -> tuple[str, ...]:
    """Return the regions whose size cannot be read. drm-memory-* stands in for drm-resident-*, and for no other."""
    keys = [_parse_key(key.encode()) for key in rejected]
    kinds = ("resident", "memory") if basis == "resident" else (basis,)
    regions = {region for kind, region in keys if kind in kinds} - resident.keys()
    inside = {"alloc"} if basis == "alloc" else set()
    is_in_ram = any(kind in inside or region == "panthor-resident-memory" for kind, region in keys)
    return tuple(sorted(regions | ({"memory"} if is_in_ram else set())))


def _parse_sizes(data: bytes) -> tuple[dict[str, dict[str, int]], Mapping[str, int]]:
    """Return sizes in bytes by kind and region, and counts by key of lines without a valid size."""
    sizes: dict[str, dict[str, int]] = {
        kind: {} for kind in ("resident", "memory", "total", "alloc", "shared", "other")
    }
    rejected: Counter[str] = Counter()
    for key, digits, unit in _SIZES.findall(data):
        size = int(digits) * _UNITS[unit] if digits else _MAX_BYTES + 1
        if size > _MAX_BYTES:
            rejected[_text(key)] += 1
        else:
            kind, region = _parse_key(key)
            sizes[kind].setdefault(region, size)
    return sizes, rejected


@lru_cache(maxsize=256)
def _parse_key(key: bytes) -> tuple[str, str]:
    """Return the kind and the region of a line."""
    if key.startswith(b"drm-"):
        _, kind, region = _text(key).split("-", 2)
        return kind, region
    if key.endswith(b" mem"):
        return "memory", _text(key[:-4])
    return ("alloc" if key.endswith(b"ternal-alloc") else "other"), _text(key)


def _select_resident(sizes: Mapping[str, Mapping[str, int]]) -> tuple[Basis | None, Mapping[str, int]]:
    """Return one size per region. drm-memory-* is amdgpu's older name of drm-resident-*: never add both.

    The sum of amdxdna's internal and external buffers counts each buffer once. They are in System RAM.
    """
    if sizes["alloc"]:
        return "alloc", {"memory": sum(sizes["alloc"].values())}
    if sizes["resident"]:
        return "resident", {**sizes["memory"], **sizes["resident"]}
    if sizes["memory"]:
        return "memory", sizes["memory"]
    return ("total", sizes["total"]) if sizes["total"] else (None, {})


def _text(raw: bytes) -> str:
    return printable(raw[:64].decode("ascii", "backslashreplace"))


def merge_clients(held: Iterable[ClientDescriptor]) -> tuple[DrmClient, ...]:
    """Return each client once, with all processes that hold it. Client ids are unique per driver and card only."""
    first: dict[tuple[str, str, int], ClientDescriptor] = {}
    owners: dict[tuple[str, str, int], set[int]] = {}
    for one in held:
        key = (one.info.driver, one.info.pdev or one.node, one.info.client_id)
        if key not in first or (first[key].info.unread and not one.info.unread):
            first[key] = one
        owners.setdefault(key, set()).add(one.pid)
    return tuple(_build_client(first[key], tuple(sorted(owners[key]))) for key in sorted(first))


def _build_client(one: ClientDescriptor, pids: tuple[int, ...]) -> DrmClient:
    info = one.info
    return DrmClient(
        driver=info.driver,
        pdev=info.pdev,
        node=one.node,
        client_id=info.client_id,
        pids=pids,
        basis=info.basis,
        resident=info.resident,
        shared=info.shared,
        other=info.other,
        unread=info.unread,
    )


# Targets of descriptors' links; for a process with another root, its path precedes /dev. No device is opened.
_DEVICES = re.compile(r"(.*)/dev/(?:dri|accel)/([^/ ]+)(?: \(deleted\))?")
# States in /proc/<pid>/stat of tasks that have ended: zombie and dead.
_ENDED = ([b"Z"], [b"X"])
_FDINFO_BYTES = 16384
# Maximum number of scans between two reads of a process's descriptors when it appears unchanged.
QUIET_ROUNDS = 60
QUIET_ROUNDS_UNCOUNTED = 2
HOLDER_ROUNDS = 6
# Reading a descriptor's link takes 3 µs. A process with many descriptors is read one scan later for each of these.
DESCRIPTORS_A_ROUND = 512


class Scan(Struct, frozen=True):
    """Result of one scan. `seen` counts processes, `unreadable` those whose descriptors could not be read.

    `mute`: device files whose driver has no client statistics, with the processes that have them open.
    """

    held: tuple[ClientDescriptor, ...]
    seen: int
    unreadable: int
    mute: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class _Descriptor(Struct):
    fd: str
    node: str
    info: Fdinfo | None = None


class _ProcessState(Struct):
    """Cached state of one process.

    `place` is the folder with its descriptors: its own, or another thread's if the main thread has ended.
    """

    mark: tuple[int, int, int]
    place: str
    due: int = 0
    earliest: int = 0
    opens_nothing: bool = False
    is_readable: bool = True
    descriptors: list[_Descriptor] = field(default_factory=list)


# Process ids by device file.
_Mute = dict[str, set[int]]


class ClientScanner:
    """All processes' descriptors of graphics devices, without reading all links of all processes in every scan.

    One `stat` of /proc/<pid>/fd returns two facts. The inode identifies the process (a reused process id has
    another one), and since Linux 6.2 the size is the number of open descriptors. A process's links are read when it
    is new, when that number changed, and otherwise every `QUIET_ROUNDS` scans, in case it closed as many
    descriptors as it opened. Before 6.2 the number is 0, and every process is read in every second scan.
    """

    def __init__(self, procfs: Path) -> None:
        self._folder = kept_folder(procfs)
        self._known: dict[str, _ProcessState] = {}
        self._round = 0

    @one_walk()
    def scan(self, asleep: Collection[str] = ()) -> Scan:
        """Scan all processes. `asleep`: nodes whose clients are not read, because that would wake the device."""
        self._round += 1
        before, self._known = self._known, {}
        held: list[ClientDescriptor] = []
        mute: _Mute = {}
        seen = unreadable = 0
        for pid in os.listdir(self._folder):
            if not pid.isdecimal():
                continue
            known = self._follow(pid, before.get(pid))
            if known is None:
                continue
            self._known[pid] = known
            if known.opens_nothing:
                continue
            seen += 1
            if not known.is_readable or (known.descriptors and not self._read(pid, known, asleep, held, mute)):
                unreadable += 1
        return Scan(tuple(held), seen, unreadable, {node: tuple(sorted(mute[node])) for node in sorted(mute)})

    def close(self) -> None:
        os.close(self._folder)

    def _follow(self, pid: str, known: _ProcessState | None) -> _ProcessState | None:
        """Return the process's current state, or None if it has ended, which does not count as unreadable."""
        place = known.place if known else pid
        try:
            mark = self._mark(place)
        except FileNotFoundError:
            return None if place == pid else self._follow(pid, None)
        except OSError:
            return known or _ProcessState((0, 0, 0), pid, is_readable=False)
        if known is None or known.mark[0] != mark[0]:
            return self._look_through(pid, place, mark, [])
        if known.opens_nothing or self._round < (known.due if known.mark == mark else known.earliest):
            return known
        return self._look_through(pid, place, mark, known.descriptors)

    def _mark(self, place: str) -> tuple[int, int, int]:
        status = os.stat(place + "/fd", dir_fd=self._folder)
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _look_through(
        self, pid: str, place: str, mark: tuple[int, int, int], before: list[_Descriptor]
    ) -> _ProcessState | None:
        """Read a process's links. `before`: its previous descriptors, kept for devices that are asleep now."""
        known = _ProcessState(mark, place)
        try:
            count, known.descriptors = self._descriptors(place)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            count, known.is_readable = 0, False
        if not count and place == pid and (thread := self._other_thread(pid)):
            with suppress(OSError):  # the thread may have ended since; the next scan tries again
                return self._look_through(pid, thread, self._mark(thread), before)
        infos = {(one.fd, one.node): one.info for one in before}
        for one in known.descriptors:
            one.info = infos.get((one.fd, one.node))
        known.opens_nothing = not known.descriptors and self._opens_nothing(pid)
        known.earliest = self._round + count // DESCRIPTORS_A_ROUND
        # Spread the reads over the scans.
        rounds = self._rounds(known)
        known.due = known.earliest + 1 + rounds // 3 + int(pid) % max(1, rounds - rounds // 3)
        return known

    def _rounds(self, known: _ProcessState) -> int:
        if known.descriptors:
            return HOLDER_ROUNDS
        return QUIET_ROUNDS if known.mark[2] or not known.is_readable else QUIET_ROUNDS_UNCOUNTED

    def _descriptors(self, place: str) -> tuple[int, list[_Descriptor]]:
        """Return (number of descriptors, those of devices). PermissionError if another user owns the process."""
        found = []
        with open_folder(self._folder, place + "/fd") as folder:
            every = os.listdir(folder)
            for fd in every:
                with suppress(FileNotFoundError):
                    node = _DEVICES.fullmatch(os.readlink(fd, dir_fd=folder))
                    if node and self._is_device(f"{place}/fd/{fd}", f"{place}/root", node[1]):
                        found.append(_Descriptor(fd, node[2]))
        return len(every), found

    def _is_device(self, descriptor: str, root: str, before: str) -> bool:
        """Return False for a file of a user at a path such as /home/eve/dev/dri/renderD128.

        `before`: the path before /dev. Only root can make files in /dev of the machine.
        """
        with suppress(OSError):
            if before and os.readlink(root, dir_fd=self._folder) != before:
                return False
            return stat.S_ISCHR(os.stat(descriptor, dir_fd=self._folder).st_mode)
        return True

    def _read(
        self, pid: str, known: _ProcessState, asleep: Collection[str], held: list[ClientDescriptor], mute: _Mute
    ) -> bool:
        """Add this process's clients to `held`, and its nodes without statistics to `mute`.

        False if a part could not be read.
        """
        complete = True
        for one in known.descriptors:
            if one.node not in asleep:
                data = read_at(self._folder, f"{known.place}/fdinfo/{one.fd}", _FDINFO_BYTES)
                one.info = parse_fdinfo(data) if data is not None else None
                if data is not None and one.info is None:
                    if self._leads_to(known.place, one):
                        mute.setdefault(one.node, set()).add(int(pid))
                    else:  # the descriptor is now a file or a socket: read the process again in the next scan
                        known.due = 0
                complete = complete and data is not None
            elif one.info is None:
                complete = False
            if one.info is not None:
                held.append(ClientDescriptor(int(pid), one.node, one.info))
        return complete

    def _leads_to(self, place: str, one: _Descriptor) -> bool:
        try:
            node = _DEVICES.fullmatch(os.readlink(f"{place}/fd/{one.fd}", dir_fd=self._folder))
        except OSError:
            return False
        return node is not None and node[2] == one.node

    def _other_thread(self, pid: str) -> str | None:
        """Return the folder of a living thread if the main thread has ended. It shares the open descriptors."""
        if self._columns(pid)[:1] not in _ENDED:
            return None
        thread = find_living_thread(self._folder, pid + "/task")
        return thread[0] if thread else None

    def _opens_nothing(self, pid: str) -> bool:
        """Return True for a kernel thread or a zombie."""
        columns = self._columns(pid)
        if columns[:1] in _ENDED:
            return columns[17:18] in ([b"0"], [b"1"])  # num_threads
        return len(columns) > 6 and columns[6].isdigit() and bool(int(columns[6]) & KERNEL_THREAD)

    def _columns(self, pid: str) -> list[bytes]:
        """Return the columns of /proc/<pid>/stat, beginning with the state."""
        return (read_at(self._folder, pid + "/stat", STAT_BYTES) or b"").rpartition(b")")[2].split()
