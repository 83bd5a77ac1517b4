"""Test the kernel's smaller files: PSI, counters, free blocks, NUMA nodes, zram."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from memwatch.core.collectors import buddyinfo, meminfo, numa, psi, vmstat, zram
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import Absent, Quality
from memwatch.core.snapshot import Node, Zram, merge_nodes
from support.machine_folders import machine_folder
from support.paths import MACHINES

MIB = 1 << 20
SOME = b"some avg10=1.50 avg60=0.25 avg300=100.00 total=2500000\n"


def test_psi_without_full() -> None:
    """A kernel that prints no line `full` has no such value, rather than 0."""
    found = psi.parse_pressure(SOME)

    assert (found.some.ratio_10s, found.some.ratio_300s, found.some.total_seconds) == (0.015, 1.0, 2.5)
    assert found.full is Absent.NOT_SUPPORTED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SOME[:-1],
        SOME + SOME,
        SOME.replace(b"1.50", b"-1.50"),
        SOME.replace(b"1.50", b"100.01"),
        SOME + b"full avg10",
    ],
)
def test_invalid_psi_is_rejected(data: bytes) -> None:
    """A line that is cut off, negative, repeated or above 100 % is rejected."""
    with pytest.raises(ParseError, match="pressure/memory"):
        psi.parse_pressure(data)


def test_changed_psi_is_parsed_again(tmp_path: Path) -> None:
    """New values are read by the next collection, and the same bytes are not parsed twice."""
    file = tmp_path / "pressure/memory"
    file.parent.mkdir()
    file.write_bytes(SOME)
    collector = psi.Collector(Roots(procfs=tmp_path))
    first, second = collector.collect(), collector.collect()

    file.write_bytes(SOME.replace(b"1.50", b"2.50"))
    third = collector.collect()
    collector.close()

    assert first is second
    assert third.psi is not None
    assert third.psi.some.ratio_10s == 0.025


def test_unreadable_pressure_file_is_unavailable(tmp_path: Path) -> None:
    """A file that opens and cannot be read (psi=0 on the kernel command line) is unavailable, and no error."""
    (tmp_path / "pressure/memory").mkdir(parents=True)

    with pytest.raises(SourceUnavailable, match="pressure/memory: Is a directory"):
        psi.Collector(Roots(procfs=tmp_path))


def test_counters_are_matched_exactly() -> None:
    """Neither a longer name nor a truncated last line counts as the counter."""
    kernel = vmstat.Vmstat(4096).parse(b"oom_kill_disable 7\ncompact_fail 12\noom_kill 3")

    assert kernel.oom_kills_total is Absent.NOT_SUPPORTED
    assert kernel.compact_fail_total == 12


def test_counters_are_found_on_any_line() -> None:
    """A counter moves when a line before it grows or disappears; a missing one is not taken from the next line."""
    reader = vmstat.Vmstat(4096)
    whole = b"nr_free_pages 99\noom_kill 3\ncompact_fail 12\n"

    for data, kills in (
        (whole, 3),
        (whole.replace(b"99", b"100"), 3),
        (b"\noom_kill 4\ncompact_fail 12\n", 4),
        (whole.replace(b"oom_kill", b"oom_kills"), Absent.NOT_SUPPORTED),
        (whole, 3),
    ):
        assert reader.parse(data).oom_kills_total == kills
        assert reader.parse(data).compact_fail_total == 12


def test_unchanged_counters_are_the_same_object() -> None:
    """Later stages skip an identical object: other lines of the file change every second, these rarely."""
    reader = vmstat.Vmstat(4096)
    data = b"nr_free_pages 99\noom_kill 3\ncompact_fail 12\n"

    kernel = reader.parse(data)

    assert reader.parse(data.replace(b"99", b"98")) is kernel
    assert reader.parse(data.replace(b"12", b"13")).compact_fail_total == 13


def test_largest_free_block_of_64_kib_pages() -> None:
    """A block of order 6 is 4 MiB with pages of 64 KiB, and 256 KiB with pages of 4 KiB."""
    zones = buddyinfo.parse_buddyinfo(b"Node 0, zone   Normal 5 0 0 0 0 0 2\n")

    (small,) = buddyinfo.build_nodes(zones, {}, 4096)
    (large,) = buddyinfo.build_nodes(zones, {}, 65536)

    assert (small.largest_free_block_bytes, small.free_large_blocks_bytes) == (256 << 10, 0)
    assert (large.largest_free_block_bytes, large.free_large_blocks_bytes) == (4 * MIB, 8 * MIB)


def test_node_without_a_free_block() -> None:
    """A node with nothing free has a largest block of 0, which is a valid reading."""
    (node,) = buddyinfo.build_nodes(buddyinfo.parse_buddyinfo(b"Node 3, zone Normal 0 0 0\n"), {}, 4096)

    assert (node.id, node.largest_free_block_bytes) == (3, 0)


def test_protected_zone_does_not_hide_fragmentation() -> None:
    """Large blocks in a zone closed to ordinary allocations do not hide fragmentation elsewhere."""
    zones = buddyinfo.parse_buddyinfo(
        b"Node 0, zone      DMA 0 0 0 0 0 0 0 0 0 0 3\nNode 0, zone   Normal 900 80 7 0 0 0 0 0 0 0 0\n"
    )
    protection = buddyinfo.parse_protection(
        b"Node 0, zone      DMA\n        protection: (0, 2010, 63900)\nNode 0, zone   Normal\n"
        b"        protection: (0, 0, 0)\n"
    )

    (node,) = buddyinfo.build_nodes(zones, protection, 4096)
    (unprotected,) = buddyinfo.build_nodes(zones, {}, 4096)

    assert (node.largest_free_block_bytes, node.free_large_blocks_bytes) == (4 * 4096, 0)
    assert unprotected.largest_free_block_bytes == 4 * MIB


@pytest.mark.parametrize(
    "data",
    [b"Node 0, zone Normal 1 2 3", b"Node 0, zone Normal 1 2\nNode 0, zone DMA 1\n", b"Node x, zone DMA 1\n"],
)
def test_invalid_free_blocks_are_rejected(data: bytes) -> None:
    """A truncated row, rows of different length and other lines are rejected."""
    with pytest.raises(ParseError, match="buddyinfo"):
        buddyinfo.parse_buddyinfo(data)


def test_node_of_a_gpu() -> None:
    """GH200: the HBM node has memory and no CPUs; the empty nodes beside it have size 0."""
    hbm = numa.parse_node(1, b"Node 1 MemTotal:       99614720 kB\nNode 1 MemFree:        99000000 kB\n", b"\n")
    empty = numa.parse_node(2, b"Node 2 MemTotal:              0 kB\nNode 2 MemFree:               0 kB\n", b"\n")

    assert (hbm.size_bytes, hbm.has_cpus) == (97280 * MIB, False)
    assert empty.size_bytes == 0


def test_node_without_cpus_lists_its_contents() -> None:
    """It may be a GPU's: its use is listed by kind, so that it can be subtracted from System RAM."""
    lines = {"MemTotal": 1000, "MemFree": 400, "AnonPages": 100, "Shmem": 50, "SUnreclaim": 20, "PageTables": 5}
    data = "".join(f"Node 1 {key}: {value} kB\n" for key, value in lines.items())
    huge = data + "Node 1 HugePages_Total: 3\n"

    gpu = numa.parse_node(1, data.encode(), b"\n")

    assert {part.kind: part.size_bytes >> 10 for part in gpu.contents} == {
        "anonymous": 100,
        "shared_memory": 50,
        "kernel": 25,
    }
    assert numa.parse_node(1, data.encode(), b"0-3\n").contents == ()
    assert numa.parse_node(1, huge.encode(), b"\n").contents == ()


def test_all_node_values_are_parsed_by_name() -> None:
    """All values of a node can be read by name; counts of huge pages are counts, not bytes."""
    data = (machine_folder("numa-server-2tib").roots.sysfs / "devices/system/node/node3/meminfo").read_bytes()
    figures = numa.parse_node_lines(data)

    assert figures["MemTotal"] == 264_155_136
    assert {"Active(file)", "Inactive(file)", "SReclaimable"} <= figures.keys()
    assert figures["HugePages_Total"] == 0


def test_node_without_its_size_is_rejected() -> None:
    """An open sysfs file of a removed node reads as empty."""
    with pytest.raises(ParseError, match="node0/meminfo"):
        numa.parse_node(0, b"", b"0-3\n")


@pytest.mark.parametrize(
    ("free", "reason"),
    [
        ("", Absent.NOT_AVAILABLE),
        ("Node 0 MemFree: 6 kB\n", Absent.INCONSISTENT),
        ("Node 0 MemFree: 4", Absent.NOT_AVAILABLE),
    ],
)
def test_node_without_its_free_memory_keeps_its_size(free: str, reason: Absent) -> None:
    """The line is missing, exceeds the node, or is truncated."""
    node = numa.parse_node(0, f"Node 0 MemTotal: 5 kB\n{free}".encode(), b"0-3\n")

    assert (node.size_bytes, node.free_bytes, node.available_bytes) == (5 << 10, reason, reason)


def test_odd_line_of_one_node_leaves_the_others(tmp_path: Path) -> None:
    """A page cache of 16 EiB cost the figures of all nodes."""
    nodes = tmp_path / "devices/system/node"
    shutil.copytree(MACHINES / "gh200-numa/sys/devices/system/node", nodes)
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    sound = collector.collect().nodes
    text = (nodes / "node1/meminfo").read_text()
    (nodes / "node1/meminfo").write_text(re.sub(r"Active\(file\): +\d+", "Active(file): 18014398509481000", text))
    (nodes / "node2/meminfo").write_text("\n")
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    found = collector.collect()

    assert [found.nodes[place] for place in (0, 3)] == [sound[place] for place in (0, 3)]
    assert (found.nodes[1].size_bytes, found.nodes[1].quality) == (sound[1].size_bytes, Quality.ESTIMATED)
    assert found.nodes[2].size_bytes is Absent.INCONSISTENT
    assert found.rejected == 2


def test_cpuless_node_stays_in_system_ram(tmp_path: Path) -> None:
    """A node without CPUs (CXL) stays in System RAM unless a GPU's driver names it."""
    machine = machine_folder("numa-server-2tib")
    shutil.copytree(machine.roots.sysfs / "devices", tmp_path / "devices")
    (tmp_path / "devices/system/node/node7/cpulist").write_text("\n")
    roots = Roots(machine.roots.procfs, tmp_path, machine.roots.rootfs)
    ram = meminfo.Collector(roots, 4096)

    nodes, (pool,) = numa.Collector(roots).collect().nodes, ram.collect().pools
    ram.close()

    assert [node.has_cpus for node in nodes] == [True] * 7 + [False]
    assert pool.size_bytes == machine.expected["meminfo"]["pools"][0]["size_bytes"]


def test_unplugged_node_is_gone_from_the_next_reading(tmp_path: Path) -> None:
    """A node without CPUs is read every second, and its directory is not searched each time."""
    nodes = tmp_path / "devices/system/node"
    shutil.copytree(MACHINES / "gh200-numa/sys/devices/system/node", nodes)
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    before = [node.id for _ in range(2) for node in collector.collect().nodes]
    (nodes / "node1/meminfo").write_text("")  # an open sysfs file of a removed node reads as empty
    shutil.rmtree(nodes / "node1")
    after = [[node.id for node in collector.collect().nodes] for _ in range(12)]
    collector.close()

    assert before.count(1) == 2
    assert after == [[0, *range(2, 9)]] * 12


def test_unreadable_node_takes_no_other_along_and_keeps_its_size(tmp_path: Path) -> None:
    """The HBM of a GH200 would be counted twice if its node were left out."""
    nodes = tmp_path / "devices/system/node"
    shutil.copytree(MACHINES / "gh200-numa/sys/devices/system/node", nodes)
    text = (nodes / "node1/meminfo").read_text()
    (nodes / "node1/meminfo").write_text("garbled\n")
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    unread = {node.id: node for node in collector.collect().nodes}
    (nodes / "node1/meminfo").write_text(text)
    for _ in range(10):
        read = {node.id: node for node in collector.collect().nodes}
    (nodes / "node1/meminfo").write_text("garbled\n")
    found = collector.collect()
    again = {node.id: node for node in found.nodes}
    collector.close()

    assert isinstance(unread[0].size_bytes, int)
    assert unread[1].size_bytes is Absent.INCONSISTENT
    assert (again[1].size_bytes, again[1].has_cpus) == (read[1].size_bytes, False)
    assert again[1].available_bytes is Absent.STALE
    assert found.rejected == 1


def test_nodes_that_all_fail_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    (tmp_path / "devices/system/node/node0/meminfo").write_text("garbled\n")
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    with pytest.raises(ParseError, match="node0"):
        collector.collect()
    collector.close()


def test_protection_of_zones_follows_memory_that_is_added(tmp_path: Path) -> None:
    """A virtual machine that grows protects more of its low memory. The file is read again after ten minutes."""
    (tmp_path / "buddyinfo").write_text("Node 0, zone    DMA32 0 0 0 0 0 0 0 0 0 0 100\n")
    zones = "Node 0, zone    DMA32\n        protection: (0, 0, {}, 0)\n"
    (tmp_path / "zoneinfo").write_text(zones.format(100))
    collector = buddyinfo.Collector(Roots(tmp_path, tmp_path, tmp_path), 4096)
    (before,) = collector.collect().nodes
    (tmp_path / "zoneinfo").write_text(zones.format(500_000))
    found = [collector.collect().nodes[0] for _ in range(buddyinfo.PROTECTION_TURNS)]
    collector.close()
    large = 100 * 4 << 20
    assert {before.free_large_blocks_bytes, *(one.free_large_blocks_bytes for one in found[:-1])} == {large}
    assert found[-1].free_large_blocks_bytes == 0


def test_nodes_of_two_collectors_are_merged() -> None:
    """The size from sysfs and the free blocks from buddyinfo are merged, for every node of a machine."""
    roots = machine_folder("numa-server-2tib").roots
    sizes, blocks = numa.Collector(roots), buddyinfo.Collector(roots, 4096)
    nodes = merge_nodes([*blocks.collect().nodes, *sizes.collect().nodes])
    blocks.close()

    assert [node.id for node in nodes] == list(range(8))
    assert not any(
        isinstance(value, Absent) for node in nodes for value in (node.size_bytes, node.largest_free_block_bytes)
    )
    assert merge_nodes([Node(1), Node(0, size_bytes=5)])[0].size_bytes == 5


@pytest.mark.parametrize("data", [b"", b"1 2\n", b"1 2 3"])
def test_invalid_zram_statistics_are_rejected(data: bytes) -> None:
    """Too few columns and a truncated line are rejected."""
    with pytest.raises(ParseError, match="mm_stat"):
        zram.parse_mm_stat(data)


BAD = Absent.INCONSISTENT


@pytest.mark.parametrize(
    ("data", "stored", "memory"),
    [
        (b"9 -2 5\n", 9, 5),
        (b"a 3 5\n", BAD, 5),
        (b"9 3 18446744073709551614\n", 9, BAD),
        (b"%d 3 5\n" % 10**30, BAD, 5),
        (b"0 3000000 5000000\n", BAD, 5_000_000),
        (b"9000000 3000000 0\n", 9_000_000, BAD),
        (b"9 3000000 5\n", 9, 5),
        (b"0 3 0\n", 0, 0),
    ],
)
def test_odd_zram_figure_leaves_the_other(data: bytes, stored: int | Absent, memory: int | Absent) -> None:
    """Not a number, wrapped, or less than the compressed bytes that it contains."""
    assert zram.parse_mm_stat(data) == Zram(stored, memory)


def test_sum_over_zram_devices_is_unknown_with_one_of_them(tmp_path: Path) -> None:
    for name, line in (("zram0", "9 3 5\n"), ("zram1", "9 3 none\n")):
        (tmp_path / "block" / name).mkdir(parents=True)
        (tmp_path / "block" / name / "mm_stat").write_text(line)
    found = zram.Collector(Roots(sysfs=tmp_path)).collect()
    (tmp_path / "block/zram1/mm_stat").unlink()

    assert (found.zram, found.rejected) == (Zram(18, BAD), 1)
    assert zram.Collector(Roots(sysfs=tmp_path)).collect().zram == Zram(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)


def test_zram_is_not_capacity() -> None:
    """Swap on zram leaves System RAM unchanged, and the RAM that zram occupies is listed separately."""
    expected = machine_folder("zram-laptop").expected
    pool, swap, held = expected["meminfo"]["pools"][0], expected["meminfo"]["swap"], expected["zram"]["zram"]

    assert pool["size_bytes"] == 16_107_616 << 10
    assert held["memory_bytes"] < held["stored_bytes"] <= swap["used_bytes"]
    assert held["memory_bytes"] < pool["unattributed_bytes"]


def test_vmstat_counts_direct_reclaim_of_all_zones() -> None:
    """`allocstall` has one line per zone. A counter that the kernel lacks is not supported, never 0."""
    reader = vmstat.Vmstat(65536)
    data = (
        b"nr_free_pages 9\nnr_mlock 2\nnr_unevictable 3\npswpin 5\npswpout 6\nallocstall_dma32 1\n"
        b"allocstall_normal 20\nallocstall_movable 300\npgsteal_direct 7\npgscan_direct_throttle 99\n"
        b"pgscan_direct 8\n"
    )

    kernel = [reader.parse(data), reader.parse(data.replace(b"normal 20", b"normal 21"))]

    assert [one.allocstall_total for one in kernel] == [321, 322]
    assert (kernel[0].pgscan_direct_total, kernel[0].pgsteal_direct_total) == (8, 7)
    assert (kernel[0].pswpin_total, kernel[0].pswpout_total) == (5, 6)
    assert (kernel[0].mlocked_bytes, kernel[0].unevictable_bytes) == (2 * 65536, 3 * 65536)
    assert kernel[0].workingset_refault_file_total is Absent.NOT_SUPPORTED
    assert reader.parse(data.replace(b"allocstall_movable 300\n", b"")).allocstall_total is Absent.NOT_SUPPORTED
    assert vmstat.Vmstat(4096).parse(b"nr_free_pages 9\n").allocstall_total is Absent.NOT_SUPPORTED
