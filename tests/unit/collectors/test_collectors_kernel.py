"""The kernel's smaller files: pressure stall information, counters, free blocks, NUMA nodes, zram."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memwatch.collectors import buddyinfo, meminfo, numa, psi, vmstat, zram
from memwatch.linux.files import Roots, Unavailable, Unreadable
from memwatch.model import Absent
from memwatch.snapshot import Node, merge_nodes
from support.machine_folders import machine_folder
from support.paths import MACHINES

MIB = 1 << 20
SOME = b"some avg10=1.50 avg60=0.25 avg300=100.00 total=2500000\n"


def test_psi_without_full() -> None:
    """A kernel that prints no line `full` has no such figure, rather than one of 0."""
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
def test_nonsense_in_psi(data: bytes) -> None:
    """A line that is cut off, negative, doubled or above 100 % is refused."""
    with pytest.raises(Unreadable, match="pressure/memory"):
        psi.parse_pressure(data)


def test_psi_changes(tmp_path: Path) -> None:
    """New figures are seen at the next look, and the same bytes are not parsed twice."""
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


def test_pressure_file_that_refuses_to_be_read(tmp_path: Path) -> None:
    """A file that opens and cannot be read (psi=0 on the kernel's command line) is unavailable, and no error."""
    (tmp_path / "pressure/memory").mkdir(parents=True)

    with pytest.raises(Unavailable, match="pressure/memory: Is a directory"):
        psi.Collector(Roots(procfs=tmp_path))


def test_counters_are_matched_exactly() -> None:
    """Neither a longer name nor a cut-off last line is taken for a counter."""
    kernel = vmstat.Vmstat().parse(b"oom_kill_disable 7\ncompact_fail 12\noom_kill 3")

    assert kernel.oom_kills_total is Absent.NOT_SUPPORTED
    assert kernel.compact_fail_total == 12


def test_counters_are_found_wherever_they_stand() -> None:
    """A line before them that grows, or goes, moves them; one that is gone is not what stands in its place."""
    reader = vmstat.Vmstat()
    whole = b"nr_free_pages 99\noom_kill 3\ncompact_fail 12\n"

    for data, kills in (
        (whole, 3),
        (whole.replace(b"99", b"100"), 3),
        (b"\noom_kill 4\ncompact_fail 12\n", 4),
        (whole.replace(b"oom_kill", b"oom_kist"), Absent.NOT_SUPPORTED),
        (whole, 3),
    ):
        assert reader.parse(data).oom_kills_total == kills
        assert reader.parse(data).compact_fail_total == 12


def test_largest_free_block_of_64_kib_pages() -> None:
    """A block of order 6 is 4 MiB where pages are of 64 KiB, and 256 KiB where they are of 4 KiB."""
    zones = buddyinfo.parse_buddyinfo(b"Node 0, zone   Normal 5 0 0 0 0 0 2\n")

    (small,) = buddyinfo.nodes_of(zones, {}, 4096)
    (large,) = buddyinfo.nodes_of(zones, {}, 65536)

    assert (small.largest_free_block_bytes, small.free_large_blocks_bytes) == (256 << 10, 0)
    assert (large.largest_free_block_bytes, large.free_large_blocks_bytes) == (4 * MIB, 8 * MIB)


def test_node_without_a_free_block() -> None:
    """A node with nothing free has a largest block of 0, which is a reading."""
    (node,) = buddyinfo.nodes_of(buddyinfo.parse_buddyinfo(b"Node 3, zone Normal 0 0 0\n"), {}, 4096)

    assert (node.id, node.largest_free_block_bytes) == (3, 0)


def test_closed_zone_hides_nothing() -> None:
    """Large blocks in a zone that is closed to ordinary allocations do not make up for crumbs elsewhere."""
    zones = buddyinfo.parse_buddyinfo(
        b"Node 0, zone      DMA 0 0 0 0 0 0 0 0 0 0 3\nNode 0, zone   Normal 900 80 7 0 0 0 0 0 0 0 0\n"
    )
    protection = buddyinfo.parse_protection(
        b"Node 0, zone      DMA\n        protection: (0, 2010, 63900)\nNode 0, zone   Normal\n"
        b"        protection: (0, 0, 0)\n"
    )

    (node,) = buddyinfo.nodes_of(zones, protection, 4096)
    (unprotected,) = buddyinfo.nodes_of(zones, {}, 4096)

    assert (node.largest_free_block_bytes, node.free_large_blocks_bytes) == (4 * 4096, 0)
    assert unprotected.largest_free_block_bytes == 4 * MIB


@pytest.mark.parametrize(
    "data",
    [b"Node 0, zone Normal 1 2 3", b"Node 0, zone Normal 1 2\nNode 0, zone DMA 1\n", b"Node x, zone DMA 1\n"],
)
def test_nonsense_about_free_blocks(data: bytes) -> None:
    """A cut-off row, rows of different length and other lines are refused."""
    with pytest.raises(Unreadable, match="buddyinfo"):
        buddyinfo.parse_buddyinfo(data)


def test_node_of_a_gpu() -> None:
    """GH200: the node that is HBM has memory and no processors; the empty nodes beside it are of size 0."""
    hbm = numa.node_of(1, b"Node 1 MemTotal:       99614720 kB\nNode 1 MemFree:        99000000 kB\n", b"\n")
    empty = numa.node_of(2, b"Node 2 MemTotal:              0 kB\nNode 2 MemFree:               0 kB\n", b"\n")

    assert (hbm.size_bytes, hbm.has_cpus) == (97280 * MIB, False)
    assert empty.size_bytes == 0


def test_a_node_without_processors_says_what_it_is_used_for() -> None:
    """Such a node may be a GPU's: by kind, so that its part can be taken out of System RAM's."""
    lines = {"MemTotal": 1000, "MemFree": 400, "AnonPages": 100, "Shmem": 50, "SUnreclaim": 20, "PageTables": 5}
    data = "".join(f"Node 1 {key}: {value} kB\n" for key, value in lines.items())
    huge = data + "Node 1 HugePages_Total: 3\n"

    gpu = numa.node_of(1, data.encode(), b"\n")

    assert {part.kind: part.size_bytes >> 10 for part in gpu.contents} == {
        "anonymous": 100,
        "shared_memory": 50,
        "kernel": 25,
    }
    assert numa.node_of(1, data.encode(), b"0-3\n").contents == ()
    assert numa.node_of(1, huge.encode(), b"\n").contents == ()


def test_node_figures_for_those_who_need_more() -> None:
    """All figures of a node can be read by name; counts of huge pages are counts and no bytes."""
    data = (machine_folder("numa-server-2tib").roots.sysfs / "devices/system/node/node3/meminfo").read_bytes()
    figures = numa.parse_node_meminfo(data)

    assert figures["MemTotal"] == 264_155_136 << 10
    assert {"Active(file)", "Inactive(file)", "SReclaimable"} <= figures.keys()
    assert figures["HugePages_Total"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Node 0 MemTotal: 5 kB\n",
        b"Node 0 MemTotal: 5 kB\nNode 0 MemFree: 6 kB\n",
        b"Node 0 MemTotal: 5 kB\nNode 0 MemFree: 4",
    ],
)
def test_nonsense_about_nodes(data: bytes) -> None:
    """A node without its size or its free memory, or freer than large, is refused by its name."""
    with pytest.raises(Unreadable, match="node0/meminfo"):
        numa.node_of(0, data, b"0-3\n")


def test_cpuless_node_stays_in_system_ram(tmp_path: Path) -> None:
    """A node without processors (CXL) takes nothing out of System RAM: only a GPU's own word could."""
    machine = machine_folder("numa-server-2tib")
    shutil.copytree(machine.roots.sysfs / "devices", tmp_path / "devices")
    (tmp_path / "devices/system/node/node7/cpulist").write_text("\n")
    roots = Roots(machine.roots.procfs, tmp_path, machine.roots.rootfs)
    ram = meminfo.Collector(roots, 4096)

    nodes, (pool,) = numa.Collector(roots).collect().nodes, ram.collect().pools
    ram.close()

    assert [node.has_cpus for node in nodes] == [True] * 7 + [False]
    assert pool.size_bytes == machine.expected["meminfo"]["pools"][0]["size_bytes"]


def test_a_node_that_is_unplugged_is_gone_from_the_next_look_on(tmp_path: Path) -> None:
    """Memory without processors is read each second, and not looked for again each time."""
    nodes = tmp_path / "devices/system/node"
    shutil.copytree(MACHINES / "gh200-numa/sys/devices/system/node", nodes)
    collector = numa.Collector(Roots(tmp_path, tmp_path, tmp_path))
    before = [node.id for _ in range(2) for node in collector.collect().nodes]
    (nodes / "node1/meminfo").write_text("")  # as an open file of sysfs, it has nothing more to say
    shutil.rmtree(nodes / "node1")
    after = [[node.id for node in collector.collect().nodes] for _ in range(12)]
    collector.close()

    assert before.count(1) == 2
    assert after == [[0, *range(2, 9)]] * 12


def test_two_collectors_tell_of_one_node() -> None:
    """Size from sysfs and free blocks from buddyinfo become one node, on every node of a machine."""
    roots = machine_folder("numa-server-2tib").roots
    sizes, blocks = numa.Collector(roots), buddyinfo.Collector(roots, 4096)
    nodes = merge_nodes([*blocks.collect().nodes, *sizes.collect().nodes])
    blocks.close()

    assert [node.id for node in nodes] == list(range(8))
    assert not any(
        isinstance(value, Absent) for node in nodes for value in (node.size_bytes, node.largest_free_block_bytes)
    )
    assert merge_nodes([Node(1), Node(0, size_bytes=5)])[0].size_bytes == 5


@pytest.mark.parametrize("data", [b"", b"1 2\n", b"1 2 3", b"1 -2 3\n", b"a b c\n", b"9" * 30 + b" 1 1\n"])
def test_nonsense_about_zram(data: bytes) -> None:
    """Too few columns, a cut-off line and what is no number of bytes are refused."""
    with pytest.raises(Unreadable, match="mm_stat"):
        zram.parse_mm_stat(data)


def test_zram_is_not_capacity() -> None:
    """Swap on zram leaves System RAM as it is, and the RAM that it occupies is told apart."""
    expected = machine_folder("zram-laptop").expected
    pool, swap, held = expected["meminfo"]["pools"][0], expected["meminfo"]["swap"], expected["zram"]["zram"]

    assert pool["size_bytes"] == 16_107_616 << 10
    assert held["memory_bytes"] < held["stored_bytes"] <= swap["used_bytes"]
    assert held["memory_bytes"] < pool["unattributed_bytes"]
