"""Test that lines of /proc/meminfo refute each other. `test_driver_fields` corrupts each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.meminfo import Collector, build_pool, build_swap
from memwatch.core.linux.files import Roots
from memwatch.core.linux.meminfo import Meminfo, check
from memwatch.core.model import Absent, Quality
from support.fakes import GIB

# Oracle Linux with UEK 6.12 some hours before MemAvailable exceeds MemTotal (oracle/oracle-linux#218), in KiB.
LEAKED_FILE_PAGES = """\
MemTotal:       131072000 kB
MemFree:          2097152 kB
MemAvailable:    81788928 kB
Buffers:                0 kB
Cached:           6291456 kB
SwapCached:             0 kB
Active(anon):    62914560 kB
Inactive(anon):  55574528 kB
Active(file):           0 kB
Inactive(file):  81788928 kB
SwapTotal:              0 kB
SwapFree:               0 kB
AnonPages:      117440512 kB
Shmem:            1048576 kB
KReclaimable:     1048576 kB
SReclaimable:     1048576 kB
SUnreclaim:       2097152 kB
KernelStack:         6000 kB
PageTables:         12000 kB
Percpu:             14600 kB
"""
# Reserves of 64 GiB of Linux: 1 GiB below the low watermarks.
ZONEINFO = "Node 0, zone   Normal\n  pages free     524288\n        min      65536\n        low      262144\n"


def lines_of(text: str, **changed: int) -> dict[str, int]:
    return Meminfo().parse(text.encode()) | changed


def test_file_pages_beyond_the_caches_do_not_count_as_available() -> None:
    """78 GiB of file pages beside 6 GiB of cache: the machine is 94 % full, not 38 %."""
    pool = build_pool(check(lines_of(LEAKED_FILE_PAGES)))

    assert pool.available_bytes == (2 + 5 + 1) * GIB
    assert pool.judged_ratio == pytest.approx(0.936)
    assert pool.quality is Quality.ESTIMATED
    assert pool.source.endswith("less file pages that are in no cache")
    assert sum(part.size_bytes for part in pool.contents) == pool.size_bytes


def test_available_above_the_total_is_estimated() -> None:
    """The same machine later: MemAvailable exceeds MemTotal, and System RAM is still shown."""
    later = lines_of(LEAKED_FILE_PAGES) | {"MemAvailable": 139_264_000, "Inactive(file)": 139_264_000}
    pool = build_pool(check(later))

    assert (pool.available_bytes, pool.quality) == (8 * GIB, Quality.ESTIMATED)


def test_pages_given_back_are_available() -> None:
    """A program gave back 40 GiB with MADV_FREE: on the lists of file pages, and still counted as anonymous."""
    kib, given_back = lines_of(LEAKED_FILE_PAGES), 40 << 20
    kib |= {"Inactive(file)": given_back + (5 << 20), "Inactive(anon)": 55_574_528 - given_back}
    kib["MemAvailable"] = 48 << 20

    assert build_pool(check(kib)).available_bytes == 48 * GIB
    assert check(kib).refuted == {}


@pytest.mark.parametrize(("excess", "is_refuted"), [(2_621_440, False), (2_621_441, True)])
def test_counters_may_lag_by_two_percent(excess: int, is_refuted: bool) -> None:
    kib = lines_of(LEAKED_FILE_PAGES) | {"Inactive(file)": (5 << 20) + excess, "MemAvailable": 9 << 20}

    assert ("MemAvailable" in check(kib).refuted) is is_refuted


@pytest.mark.parametrize(("free", "is_refuted"), [(32_768_000, False), (32_768_001, True)])
def test_kernel_keeps_less_than_a_quarter_of_free_memory(free: int, is_refuted: bool) -> None:
    kib = lines_of(LEAKED_FILE_PAGES) | {"MemFree": free, "MemAvailable": 0, "Inactive(file)": 0, "SReclaimable": 0}

    assert ("MemAvailable" in check(kib).refuted) is is_refuted


def test_estimate_subtracts_the_reserves_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(LEAKED_FILE_PAGES)
    (tmp_path / "zoneinfo").write_text(ZONEINFO)
    collector = Collector(Roots(procfs=tmp_path), 4096)
    found = collector.collect()
    collector.close()

    # 1 GiB below the watermarks, 1 of the cache and half of the slab are kept.
    assert found.pools[0].available_bytes == int((2 - 1 + 5 - 1 + 1 - 0.5) * GIB)
    assert found.pools[0].source.endswith("less zoneinfo:low")
    assert found.rejected == 1


@pytest.mark.parametrize(
    ("line", "value"),
    [("SwapFree", 8_388_999), ("SwapFree", 9_007_199_246_535_028), ("SwapTotal", 9_007_199_246_672_720)],
)
def test_odd_swap_leaves_system_ram_as_it_is(line: str, value: int) -> None:
    """lxcfs prints such lines in containers without a limit for swap (lxc/lxcfs#56, #170, #412)."""
    kib = lines_of(LEAKED_FILE_PAGES) | {"SwapTotal": 8_388_604, "SwapFree": 8_388_604}

    assert build_swap(check(kib | {line: value})) is Absent.INCONSISTENT
    assert build_pool(check(kib | {line: value})) == build_pool(check(kib))


def write_huge_pages(sysfs: Path, **counts: tuple[int, int]) -> None:
    for size, (free, reserved) in counts.items():
        folder = sysfs / "kernel/mm/hugepages" / f"hugepages-{size}"
        folder.mkdir(parents=True)
        (folder / "free_hugepages").write_text(f"{free}\n")
        (folder / "resv_hugepages").write_text(f"{reserved}\n")


def huge_pages_host(folder: Path) -> Collector:
    """Return the collector of a machine with 4,096 pages of 2 MiB in use, and 28 of 1 GiB."""
    (folder / "proc").mkdir()
    pages = (
        "HugePages_Total: 4096\nHugePages_Free: 0\nHugePages_Rsvd: 0\nHugepagesize: 2048 kB\nHugetlb: 37748736 kB\n"
    )
    (folder / "proc/meminfo").write_text(
        "MemTotal: 67108864 kB\nMemFree: 6291456 kB\nMemAvailable: 12582912 kB\n" + pages
    )
    return Collector(Roots(procfs=folder / "proc", sysfs=folder / "sys"), 4096)


def test_unused_huge_pages_of_every_size_are_counted(tmp_path: Path) -> None:
    """Meminfo counts the pages of the default size only (htop-dev/htop#447, collectd/collectd#2914)."""
    write_huge_pages(tmp_path / "sys", **{"2048kB": (0, 0), "1048576kB": (22, 2)})
    collector = huge_pages_host(tmp_path)
    pool = collector.collect().pools[0]
    collector.close()

    assert (pool.set_aside_bytes, pool.set_aside_free_bytes) == (36 * GIB, 20 * GIB)


@pytest.mark.parametrize("broken", ["", "no number\n"])
def test_unused_huge_pages_are_unknown_without_their_counts(tmp_path: Path, broken: str) -> None:
    """Not 0: that is the figure of the default size, and says nothing of the other pages."""
    if broken:
        write_huge_pages(tmp_path / "sys", **{"2048kB": (0, 0), "1048576kB": (22, 2)})
        (tmp_path / "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").write_text(broken)
    collector = huge_pages_host(tmp_path)
    pool = collector.collect().pools[0]
    collector.close()

    assert (pool.set_aside_bytes, pool.set_aside_free_bytes) == (36 * GIB, Absent.NOT_AVAILABLE)
