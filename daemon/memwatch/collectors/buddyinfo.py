"""Free memory by the size of its pieces: memory can be there and still be in crumbs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from memwatch.collector import Findings, Roots, Unreadable, kept_file, read_once
from memwatch.snapshot import Node

MIB = 1 << 20
LARGE_BLOCK_BYTES = 4 * MIB

_LINE = re.compile(rb"Node +(\d{1,6}), +zone +(\S+)((?: +\d{1,19})+) *\n")
_ZONE_OR_PROTECTION = re.compile(
    rb"^(?:Node (\d{1,6}), +zone +(\S+)| +protection: \((\d{1,19}(?:, \d{1,19})*)\))\n", re.MULTILINE
)

Zone = tuple[int, str]


class FreeBlocks(NamedTuple):
    """The free blocks of a zone: `counts[n]` of them are of 2^n pages."""

    zone: Zone
    counts: tuple[int, ...]

    @property
    def pages(self) -> int:
        return sum(count << order for order, count in enumerate(self.counts))


def parse_buddyinfo(data: bytes) -> list[FreeBlocks]:
    zones = []
    for line in data.splitlines(keepends=True):
        found = _LINE.fullmatch(line)
        if found is None:
            raise Unreadable(f"buddyinfo: {line[:120]!r} is not `Node N, zone NAME` and a row of counts")
        zones.append(FreeBlocks((int(found[1]), _word(found[2])), tuple(map(int, found[3].split()))))
    if len({len(blocks.counts) for blocks in zones}) > 1:
        raise Unreadable("buddyinfo: its rows are not of the same length")
    return zones


def parse_protection(zoneinfo: bytes) -> dict[Zone, int]:
    """Pages that each zone keeps for those who can use no other zone (`lowmem_reserve`)."""
    protection: dict[Zone, int] = {}
    zone: Zone | None = None
    for node, name, pages in _ZONE_OR_PROTECTION.findall(zoneinfo):
        if name:
            zone = (int(node), _word(name))
        elif zone:
            protection[zone] = max(map(int, pages.split(b",")))
    return protection


def nodes_of(zones: Iterable[FreeBlocks], protection: Mapping[Zone, int], page_size: int) -> tuple[Node, ...]:
    """The largest free block per node, and what lies free in large ones.

    A zone whose free memory is below its protection is closed to ordinary allocations, so its blocks do not
    count: on x86 the 16 MiB of zone DMA stay free to the end, and would hide that everything else is in
    crumbs. GPU drivers then fail with memory "available".
    """
    largest: dict[int, int] = {}
    large: defaultdict[int, int] = defaultdict(int)
    for blocks in zones:
        node = blocks.zone[0]
        largest.setdefault(node, 0)
        if blocks.pages <= protection.get(blocks.zone, 0):
            continue
        for order, count in enumerate(blocks.counts):
            size = page_size << order
            if count:
                largest[node] = max(largest[node], size)
            if size >= LARGE_BLOCK_BYTES:
                large[node] += count * size
    return tuple(
        Node(node, largest_free_block_bytes=size, free_4mib_bytes=large[node]) for node, size in largest.items()
    )


def _word(text: bytes) -> str:
    return text.decode("ascii", "replace")


class Collector:
    name = "buddyinfo"
    period_seconds = 5.0
    may_block = False

    def __init__(self, roots: Roots, page_size: int) -> None:
        self._file = kept_file(roots.procfs / "buddyinfo", 2048)
        self._page_size = page_size
        # Read once: it is a large file on a large machine, and protection changes with hot-plugged memory only.
        self._protection = parse_protection(read_once(roots.procfs / "zoneinfo") or b"")

    def collect(self) -> Findings:
        zones = parse_buddyinfo(self._file.read())
        return Findings(nodes=nodes_of(zones, self._protection, self._page_size))

    def close(self) -> None:
        self._file.close()
