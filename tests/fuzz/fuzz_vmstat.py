"""/proc/vmstat, buddyinfo, zoneinfo, ZFS's and zram's counters."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_in_input, are_valid, numbers_of
from memwatch.core.collectors import buddyinfo, meminfo, vmstat, zram
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo import parse_low_watermark


def check(data: bytes) -> None:
    """Check both parts around `---`, read one after the other."""
    front, _, back = data.partition(b"---\n")
    reader = vmstat.Vmstat(4096)
    are_in_input(reader.parse(front), front)
    are_in_input(reader.parse(back), back)
    with suppress(ParseError):
        are_in_input(meminfo.parse_arcstats(data), data)
    with suppress(ParseError):
        are_in_input(zram.parse_mm_stat(data), data)
    watermark = parse_low_watermark(data, 4096)
    assert 0 <= watermark <= sum(numbers_of(data)) * 4096 * data.count(b"low")
    protection = buddyinfo.parse_protection(data)
    are_in_input(protection, data)
    with suppress(ParseError):
        zones = buddyinfo.parse_buddyinfo(data)
        are_in_input([zone.counts for zone in zones], data)
        nodes = buddyinfo.build_nodes(zones, protection, 4096)
        are_valid(nodes)
        assert {node.id for node in nodes} == {zone.zone[0] for zone in zones}
        free = sum(zone.pages for zone in zones) * 4096
        for node in nodes:
            assert isinstance(node.free_large_blocks_bytes, int)
            assert isinstance(node.largest_free_block_bytes, int)
            assert max(node.free_large_blocks_bytes, node.largest_free_block_bytes) <= free
