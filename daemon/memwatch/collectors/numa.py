"""NUMA nodes: size, available and free memory, and if the node has CPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from memwatch.collectors.base import BaseCollector
from memwatch.findings import Findings
from memwatch.linux.files import KeptFile, ParseError, Roots, SourceUnavailable, read_once
from memwatch.linux.lxcfs import is_container_limited
from memwatch.model import Absent, Content
from memwatch.snapshot import Node

_NODE_LINE = re.compile(rb"^Node \d+ ([^:\n]+):[ \t]*(\d{1,19})( kB)?\n", re.MULTILINE)
# No machine has an exbibyte of memory.
MAX_BYTES = 1 << 60
# Periods of nodes that may be a GPU's, and of all others.
GPU_PERIOD_SECONDS = 1.0
PERIOD_SECONDS = 10.0


def parse_node_meminfo(data: bytes) -> dict[str, int]:
    """Parse bytes by name from lines such as `Node 0 MemTotal:  1024 kB`; lines without a unit are counts."""
    return {
        key.decode("ascii", "replace"): int(value) << (10 if unit else 0)
        for key, value, unit in _NODE_LINE.findall(data)
    }


def parse_node(number: int, meminfo: bytes, cpulist: bytes | None) -> Node:
    figures = parse_node_meminfo(meminfo)
    try:
        size, free = figures["MemTotal"], figures["MemFree"]
    except KeyError as missing:
        raise ParseError(f"node{number}/meminfo has no line {missing.args[0]}") from None
    if max(figures.values()) > MAX_BYTES:
        raise ParseError(f"node{number}/meminfo: {max(figures.values())} bytes are more than any machine has")
    if free > size:
        raise ParseError(f"node{number}/meminfo: MemFree {free} is more than MemTotal {size}")
    has_cpus = Absent.NOT_AVAILABLE if cpulist is None else bool(cpulist.strip())
    reclaimable = sum(figures.get(key, 0) for key in ("Active(file)", "Inactive(file)", "SReclaimable"))
    available = min(size, free + reclaimable)
    return Node(
        number,
        size_bytes=size,
        available_bytes=available,
        free_bytes=free,
        has_cpus=has_cpus,
        contents=build_contents(figures) if has_cpus is False and size else (),
    )


def build_contents(figures: Mapping[str, int]) -> tuple[Content, ...]:
    """Return a node's used memory by use. Needed only for nodes that are a GPU's memory.

    Nodes report the number of huge pages but not their size: if there are any, the parts are unknown.
    """
    if not {"AnonPages", "Shmem", "SUnreclaim"} <= figures.keys() or figures.get("HugePages_Total"):
        return ()
    kernel = sum(figures.get(key, 0) for key in ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables"))
    return (
        Content("anonymous", figures["AnonPages"]),
        Content("shared_memory", figures["Shmem"]),
        Content("kernel", kernel),
    )


class NodeFiles:
    """The files of one node. Raises OSError if it has no meminfo."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._cpulist = folder / "cpulist"
        self._meminfo = KeptFile(folder / "meminfo", 4096)

    def read(self) -> Node:
        return parse_node(self._number, self._meminfo.read(), read_once(self._cpulist))

    def close(self) -> None:
        self._meminfo.close()


class Collector(BaseCollector):
    """Reads nodes without CPUs often: they may be a GPU's memory, which is subtracted from System RAM.

    Other nodes are read at a longer period. In an LXC container, all are read often: there they are System RAM. Ids
    have gaps on GH200 and GB200 (GPUs at nodes 2, 10, 18, 26), and nodes can be hot-plugged.
    """

    name = "numa"
    may_block = False

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.sysfs / "devices/system/node"
        self.period_seconds: float = PERIOD_SECONDS
        self._rounds = 0
        self._files: dict[int, NodeFiles] = {}
        self._nodes: dict[int, Node] = {}
        self._are_system_ram = is_container_limited(roots)
        if not self._numbers():
            raise SourceUnavailable(f"{self._folder}: no NUMA node")

    def collect(self) -> Findings:
        if not self._read_often():
            self._follow(self._numbers())
            self._nodes = {number: files.read() for number, files in self._files.items()}
        self._rounds += 1
        self.period_seconds = GPU_PERIOD_SECONDS if self._wanted_often() else PERIOD_SECONDS
        return Findings(nodes=tuple(self._nodes.values()))

    def close(self) -> None:
        self._follow([])

    def _read_often(self) -> bool:
        """Read only the nodes that need it often. Return False if all are due, or if one of them disappeared."""
        often = self._wanted_often()
        if not often or self._rounds % (PERIOD_SECONDS // GPU_PERIOD_SECONDS) == 0:
            return False
        try:
            self._nodes |= {number: self._files[number].read() for number in often}
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
        for number in numbers:
            if number not in self._files:
                self._files[number] = NodeFiles(self._folder / f"node{number}", number)
        self._files = {number: self._files[number] for number in numbers}
