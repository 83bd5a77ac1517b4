"""NUMA nodes: size, available and free memory, and if the node has CPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings, stale_node
from memwatch.core.linux.cgroups import is_container_limited
from memwatch.core.linux.files import KeptFile, ParseError, Roots, SourceUnavailable, read_once
from memwatch.core.linux.meminfo import ANONYMOUS, FILE_PAGES, Checked, check
from memwatch.core.model import Absent, Content, Quality
from memwatch.core.snapshot import Node

_NODE_LINE = re.compile(rb"^Node \d+ ([^:\n]+):[ \t]*(\d{1,19})( kB)?\n", re.MULTILINE)
_KERNEL = ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables")
# Lines that no figure is made of are not read: an odd one costs nothing.
_CACHES = ("FilePages", "SwapCached", "AnonPages", "Shmem", "SReclaimable", *FILE_PAGES, *ANONYMOUS)
WANTED = frozenset(("MemTotal", "MemFree", "HugePages_Total", *_CACHES, *_KERNEL))
# Periods of nodes that may be a GPU's, and of all others.
GPU_PERIOD_SECONDS = 1.0
PERIOD_SECONDS = 10.0


def parse_node_lines(data: bytes) -> dict[str, int]:
    """Parse the needed lines, such as `Node 0 MemTotal:  1024 kB`, in KiB; lines without a unit are counts."""
    found: dict[str, int] = {}
    for key, value, _ in _NODE_LINE.findall(data):
        name = key.decode("ascii", "replace")
        if name in WANTED:
            found.setdefault(name, int(value))
    return found


def parse_node(number: int, meminfo: bytes, cpulist: bytes | None) -> Node:
    """Return a node. Raises ParseError if the file has neither its size nor its free memory."""
    return _parse_node(number, meminfo, cpulist)[0]


def _parse_node(number: int, meminfo: bytes, cpulist: bytes | None) -> tuple[Node, int]:
    """Return a node, and the number of its lines that the others refute: each is left out by itself."""
    lines = parse_node_lines(meminfo)
    if "MemTotal" not in lines and "MemFree" not in lines:
        raise ParseError(f"node{number}/meminfo has neither MemTotal nor MemFree")
    has_cpus = Absent.NOT_AVAILABLE if cpulist is None else bool(cpulist.strip())
    checked = check(_with_caches(lines))
    kib, size = checked.kib, checked.kib.get("MemTotal")
    if size is None or (size == 0 and any(kib.values())):
        unknown = Absent.INCONSISTENT
        return Node(number, unknown, unknown, unknown, has_cpus), 1
    free, cache = kib.get("MemFree"), _cache(kib)
    is_sure = kib.keys() >= {"SReclaimable", *FILE_PAGES} and not checked.file_pages_excess
    available = (free or 0) + max(0, (cache or 0) - checked.file_pages_excess) + kib.get("SReclaimable", 0)
    no_free = Absent.INCONSISTENT if "MemFree" in checked.refuted else Absent.NOT_AVAILABLE
    node = Node(
        number,
        size_bytes=size << 10,
        available_bytes=min(size, available) << 10 if free is not None else no_free,
        free_bytes=free << 10 if free is not None else no_free,
        has_cpus=has_cpus,
        contents=build_contents(checked) if has_cpus is False and size else (),
        quality=Quality.DERIVED if is_sure else Quality.ESTIMATED,
    )
    return node, len(checked.refuted)


def _with_caches(lines: Mapping[str, int]) -> Mapping[str, int]:
    """Return the lines with those of /proc/meminfo that they are compared with: a node sums its caches."""
    if "FilePages" not in lines:
        return lines
    swap_cached = lines.get("SwapCached", 0)
    cached = max(0, lines["FilePages"] - swap_cached)
    return {**lines, "Cached": cached, "Buffers": 0, "SwapCached": swap_cached}


def _cache(kib: Mapping[str, int]) -> int | None:
    """Return the page cache: the lists of file pages, else what is cached and not shared; None without both."""
    lists = [kib.get(key) for key in FILE_PAGES]
    known = [one for one in lists if one is not None]
    if len(known) == len(lists):
        return sum(known)
    if kib.keys() >= {"Cached", "Shmem"}:
        return max(0, kib["Cached"] - kib["Shmem"])
    return None


def build_contents(checked: Checked) -> tuple[Content, ...]:
    """Return a node's used memory by use. Needed only for nodes that are a GPU's memory.

    Nodes report the number of huge pages but not their size: if there are any, the parts are unknown.
    """
    kib = checked.kib
    if not kib.keys() >= {"AnonPages", "Shmem", "SUnreclaim"} or kib.get("HugePages_Total"):
        return ()
    if not checked.refuted.keys().isdisjoint({*_KERNEL, "HugePages_Total"}):
        return ()
    return (
        Content("anonymous", kib["AnonPages"] << 10),
        Content("shared_memory", kib["Shmem"] << 10),
        Content("kernel", sum([kib.get(key, 0) for key in _KERNEL]) << 10),
    )


class NodeFiles:
    """The files of one node, opened at the first read."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._cpulist = folder / "cpulist"
        self._path = folder / "meminfo"
        self._meminfo: KeptFile | None = None

    def read(self) -> tuple[Node, int]:
        """Return the node, and the number of lines that were left out. Raises OSError, or ParseError."""
        if self._meminfo is None:
            self._meminfo = KeptFile(self._path, 4096)
        return _parse_node(self._number, self._meminfo.read(), read_once(self._cpulist))

    def close(self) -> None:
        if self._meminfo is not None:
            self._meminfo.close()


class Collector(BaseCollector):
    """Reads nodes without CPUs often: they may be a GPU's memory, which is subtracted from System RAM.

    Other nodes are read at a longer period. In an LXC container, all are read often: there they are System RAM. Ids
    have gaps on GH200 and GB200 (GPUs at nodes 2, 10, 18, 26), and nodes can be hot-plugged.
    """

    name = "numa"

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.sysfs / "devices/system/node"
        self.period_seconds: float = PERIOD_SECONDS
        self._rounds = 0
        self._files: dict[int, NodeFiles] = {}
        self._nodes: dict[int, Node] = {}
        self._rejected: dict[int, int] = {}
        self._are_system_ram = is_container_limited(roots)
        if not self._numbers():
            raise SourceUnavailable(f"{self._folder}: no NUMA node")

    def collect(self) -> Findings:
        if not self._read_often():
            self._follow(self._numbers())
            self._read_all()
        self._rounds += 1
        self.period_seconds = GPU_PERIOD_SECONDS if self._wanted_often() else PERIOD_SECONDS
        return Findings(nodes=tuple(self._nodes.values()), rejected=sum(self._rejected.values()))

    def close(self) -> None:
        self._follow([])

    def _read_all(self) -> None:
        """Read all nodes. One that cannot be read keeps its size. Raises the error if none can be read.

        A node that is left out would be taken for one that is not online, and its memory for another pool.
        """
        errors = [error for number in self._files if (error := self._read(number)) is not None]
        if errors and len(errors) == len(self._files):
            raise errors[0]

    def _read(self, number: int) -> Exception | None:
        try:
            self._nodes[number], self._rejected[number] = self._files[number].read()
        except (OSError, ParseError) as error:
            is_denied = isinstance(error, PermissionError)
            before, unknown = self._nodes.get(number), Absent.NOT_PERMITTED if is_denied else Absent.INCONSISTENT
            self._nodes[number] = stale_node(before) if before else Node(number, unknown, unknown, unknown)
            self._rejected[number] = 1
            return error
        return None

    def _read_often(self) -> bool:
        """Read only the nodes that need it often. Return False if all are due, or if one of them disappeared."""
        often = self._wanted_often()
        if not often or self._rounds % (PERIOD_SECONDS // GPU_PERIOD_SECONDS) == 0:
            return False
        try:
            for number in often:
                self._nodes[number], self._rejected[number] = self._files[number].read()
        except (OSError, ParseError):
            return False
        return True

    def _wanted_often(self) -> list[int]:
        if self._are_system_ram:
            return list(self._nodes)
        return [number for number, node in self._nodes.items() if node.has_cpus is False and node.size_bytes]

    def _numbers(self) -> list[int]:
        with suppress(OSError):
            names = [name[4:] for name in os.listdir(self._folder) if name.startswith("node")]
            return sorted(int(name) for name in names if name.isdecimal())
        return []

    def _follow(self, numbers: list[int]) -> None:
        """Close the files of nodes that disappeared, and open those of new ones."""
        for number in self._files.keys() - set(numbers):
            self._files.pop(number).close()
            self._nodes.pop(number, None)
            self._rejected.pop(number, None)
        for number in numbers:
            if number not in self._files:
                self._files[number] = NodeFiles(self._folder / f"node{number}", number)
        self._files = {number: self._files[number] for number in numbers}
