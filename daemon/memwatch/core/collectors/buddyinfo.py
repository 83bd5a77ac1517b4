"""Free memory by block size from /proc/buddyinfo, which shows fragmentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots, kept_file
from memwatch.core.model import Absent
from memwatch.core.runtime.regular_file import read_regular
from memwatch.core.snapshot import Node
from memwatch.core.units import MIB

LARGE_BLOCK_BYTES = 4 * MIB

_ZONE_OR_PROTECTION = re.compile(
    rb"^(?:Node (\d{1,6}), +zone +(\S+)| +protection: \((\d{1,19}(?:, \d{1,19})*)\))\n", re.MULTILINE
)

# A longer word is not a count, and Python refuses to convert thousands of digits.
_MAX_DIGITS = 19

Zone = tuple[int, str]


class FreeBlocks(NamedTuple):
    """Free blocks of a zone: `counts[n]` blocks of 2^n pages."""

    zone: Zone
    counts: tuple[int, ...]

    @property
    def pages(self) -> int:
        return self.pages_from(0)

    def pages_from(self, order: int) -> int:
        """Return the pages in blocks of at least 2^order pages."""
        return sum([count << at for at, count in enumerate(self.counts[order:], order)])

    @property
    def largest_pages(self) -> int:
        """Pages of the largest free block; 0 when there is none."""
        return next((1 << at for at in range(len(self.counts) - 1, -1, -1) if self.counts[at]), 0)


def parse_buddyinfo(data: bytes) -> list[FreeBlocks]:
    if not data.endswith(b"\n"):
        raise ParseError(f"buddyinfo ends in the middle of a line: …{data[-40:]!r}")
    zones = [_free_blocks(line) for line in data[:-1].split(b"\n")]
    if len({len(blocks.counts) for blocks in zones}) > 1:
        raise ParseError("buddyinfo: its rows differ in length")
    return zones


def _free_blocks(line: bytes) -> FreeBlocks:
    """Parse one row. Words are split, not matched: 1 µs a row instead of 5."""
    words = line.split()
    number, counts = words[1][:-1] if len(words) > 4 else b"", words[4:]
    heads_a_row = words[0:3:2] == [b"Node", b"zone"] and words[1][-1:] == b"," and number.isdigit()
    if not heads_a_row or not b"".join(counts).isdigit() or max(map(len, words)) > _MAX_DIGITS:
        raise ParseError(f"buddyinfo: {line[:120]!r} is not `Node N, zone NAME` and a row of counts")
    return FreeBlocks((int(number), _word(words[3])), tuple([int(count) for count in counts]))


def parse_protection(zoneinfo: bytes) -> dict[Zone, int]:
    """Parse the pages that each zone reserves for allocations that can use no other zone (`lowmem_reserve`)."""
    protection: dict[Zone, int] = {}
    zone: Zone | None = None
    for node, name, pages in _ZONE_OR_PROTECTION.findall(zoneinfo):
        if name:
            zone = (int(node), _word(name))
        elif zone:
            protection[zone] = max(map(int, pages.split(b",")))
    return protection


def build_nodes(
    zones: Iterable[FreeBlocks], protection: Mapping[Zone, int] | Absent, page_size: int
) -> tuple[Node, ...]:
    """Return the largest free block per node, and the free memory in large blocks.

    A zone whose free memory is below its protection is closed to ordinary allocations, so its blocks do not count.
    On x86, the 16 MiB of zone DMA always stay free and would hide the fragmentation of all other memory. GPU
    drivers then fail although memory is "available". While the protection is not known, neither are the blocks.
    """
    if isinstance(protection, Absent):
        numbers = dict.fromkeys(blocks.zone[0] for blocks in zones)
        return tuple(
            Node(one, largest_free_block_bytes=protection, free_large_blocks_bytes=protection) for one in numbers
        )
    largest: dict[int, int] = {}
    large: dict[int, int] = {}
    large_order = max(0, (LARGE_BLOCK_BYTES // page_size).bit_length() - 1)
    for blocks in zones:
        node, kept = blocks.zone[0], protection.get(blocks.zone, 0)
        largest.setdefault(node, 0)
        large.setdefault(node, 0)
        if kept and blocks.pages <= kept:
            continue
        largest[node] = max(largest[node], blocks.largest_pages * page_size)
        large[node] += blocks.pages_from(large_order) * page_size
    return tuple(
        Node(node, largest_free_block_bytes=size, free_large_blocks_bytes=large[node])
        for node, size in largest.items()
    )


def read_protection(path: Path) -> dict[Zone, int] | Absent:
    """Return the protection of each zone, none without the file, or why it cannot be read."""
    try:
        return parse_protection(read_regular(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        return Absent.NOT_PERMITTED if isinstance(error, PermissionError) else Absent.NOT_AVAILABLE


def _word(text: bytes) -> str:
    return text.decode("ascii", "replace")


# The file is large on large machines, and protection changes with hot-plugged memory only: read every ten minutes.
PROTECTION_TURNS = 120


class Collector(BaseCollector):
    name = "buddyinfo"
    period_seconds: float = 5.0

    def __init__(self, roots: Roots, page_size: int) -> None:
        self._file = kept_file(roots.procfs / "buddyinfo", 2048)
        self._page_size = page_size
        self._zoneinfo = roots.procfs / "zoneinfo"
        self._protection: Mapping[Zone, int] | Absent = {}
        self._turn = 0

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.page_size)

    def collect(self) -> Findings:
        zones = parse_buddyinfo(self._file.read())
        if self._turn % PROTECTION_TURNS == 0:
            self._protection = read_protection(self._zoneinfo)
        self._turn += 1
        return Findings(nodes=build_nodes(zones, self._protection, self._page_size))

    def close(self) -> None:
        self._file.close()
