"""NUMA nodes: how large each is, how much of it is free, and whether it has processors."""

from __future__ import annotations

import re
from pathlib import Path

from memwatch.collector import Findings, Roots, Unavailable, Unreadable
from memwatch.model import Absent
from memwatch.snapshot import Node

_NODE_LINE = re.compile(rb"^Node \d+ ([^:\n]+):[ \t]*(\d{1,19}) kB\n", re.MULTILINE)


def parse_node_meminfo(data: bytes) -> dict[str, int]:
    """Bytes by name, for lines such as `Node 0 MemTotal:  1024 kB`; counts of huge pages are left out."""
    return {key.decode("ascii", "replace"): int(value) << 10 for key, value in _NODE_LINE.findall(data)}


def node_of(number: int, meminfo: bytes, cpulist: bytes | None) -> Node:
    figures = parse_node_meminfo(meminfo)
    try:
        size, free = figures["MemTotal"], figures["MemFree"]
    except KeyError as missing:
        raise Unreadable(f"node{number}/meminfo has no line {missing.args[0]}") from None
    if free > size:
        raise Unreadable(f"node{number}/meminfo: MemFree {free} is more than MemTotal {size}")
    has_cpus = Absent.NOT_AVAILABLE if cpulist is None else bool(cpulist.strip())
    reclaimable = sum(figures.get(key, 0) for key in ("Active(file)", "Inactive(file)", "SReclaimable"))
    available = min(size, free + reclaimable)
    return Node(number, size_bytes=size, available_bytes=available, free_bytes=free, has_cpus=has_cpus)


class Collector:
    name = "numa"
    period_seconds = 10.0
    may_block = False

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.sysfs / "devices/system/node"
        if not self._nodes():
            raise Unavailable(f"{self._folder}: no NUMA node")

    def collect(self) -> Findings:
        # Ids have gaps on GH200 and GB200 (GPUs at nodes 2, 10, 18, 26), and nodes can be plugged in.
        return Findings(nodes=tuple(self._node(folder) for folder in self._nodes()))

    def close(self) -> None:
        pass

    def _nodes(self) -> list[Path]:
        folders = [folder for folder in self._folder.glob("node[0-9]*") if folder.name[4:].isdecimal()]
        return sorted(folders, key=lambda folder: int(folder.name[4:]))

    @staticmethod
    def _node(folder: Path) -> Node:
        cpulist = folder / "cpulist"
        cpus = cpulist.read_bytes() if cpulist.exists() else None
        return node_of(int(folder.name[4:]), (folder / "meminfo").read_bytes(), cpus)
