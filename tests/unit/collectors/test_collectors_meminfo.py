"""Test System RAM and swap: the kernel's values, their fallbacks, and rejected input."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from memwatch.core.collectors.meminfo import (
    ARC_RETRY_TICKS,
    ArcStats,
    Collector,
    build_pool,
    build_swap,
    parse_arcstats,
)
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.meminfo import Meminfo, check, compute_available
from memwatch.core.model import Absent, Pool, Quality
from memwatch.core.snapshot import Swap
from support.machine_folders import machine_folder

KIB = 1024


def meminfo_of(name: str) -> bytes:
    return (machine_folder(name).roots.procfs / "meminfo").read_bytes()


def with_line(data: bytes, key: str, kib: int) -> bytes:
    """Return the same meminfo with another value in one line."""
    lines = [
        b"%s: %d kB" % (key.encode(), kib) if line.startswith(key.encode() + b":") else line
        for line in data.split(b"\n")
    ]
    return b"\n".join(lines)


def without(data: bytes, *keys: str) -> bytes:
    return b"".join(line for line in data.splitlines(keepends=True) if line.split(b":")[0].decode() not in keys)


def real_pool() -> Pool:
    collector = Collector(Roots(), 4096)
    (pool,) = collector.collect().pools
    collector.close()
    return pool


@pytest.mark.host
def test_psutil_agrees_on_this_machine() -> None:
    """psutil reads the same size, and the same available memory to 1 %."""
    pool, witness = real_pool(), psutil.virtual_memory()

    assert pool.size_bytes == witness.total
    assert pool.available_bytes == pytest.approx(witness.available, rel=0.01)
    assert pool.free_bytes == pytest.approx(witness.free, rel=0.01)


@pytest.mark.host
def test_psutil_agrees_on_swap() -> None:
    """psutil reads the same swap."""
    collector = Collector(Roots(), 4096)
    swap, witness = collector.collect().swap, psutil.swap_memory()
    collector.close()

    assert isinstance(swap, Swap)
    assert swap.size_bytes == witness.total
    assert swap.used_bytes == pytest.approx(witness.used, rel=0.01, abs=1 << 20)


def test_keys_are_matched_exactly() -> None:
    """A line whose name merely contains or begins with a wanted one is another line."""
    data = b"XMemTotal: 1 kB\nMemTotal: 2 kB\nMemTotalX: 3 kB\nNvMapMemFree: 4 kB\nMemFree: 5 kB\n"

    assert Meminfo().parse(data) == {"MemTotal": 2, "MemFree": 5}


def test_unknown_lines_are_ignored() -> None:
    """Lines of future kernels, and malformed lines, change nothing."""
    plain = meminfo_of("workstation")
    odd = plain.replace(b"Buffers:", b"Quantum: 7 qB\nno colon here\n\n: 5 kB\n\xff\xfe: 1 kB\nA:B: 3 kB\nBuffers:")

    assert Meminfo().parse(odd) == Meminfo().parse(plain)


def test_truncated_file_is_never_half_parsed() -> None:
    """A file that ends inside a line is rejected; one that ends between lines yields whole lines."""
    data = meminfo_of("workstation")
    whole = Meminfo().parse(data)

    for end in range(1, len(data)):
        if data[:end].endswith(b"\n"):
            assert Meminfo().parse(data[:end]).items() <= whole.items()
        else:
            with pytest.raises(ParseError, match="middle of a line"):
                Meminfo().parse(data[:end])


LINES = b"MemTotal:       24635552 kB\nDirty:               512 kB\nMemFree:         1234567 kB\n"


@pytest.mark.parametrize(
    "other",
    [
        meminfo_of("old-kernel"),
        LINES.replace(b" 1234567", b"   34567"),
        LINES.replace(b"    1234567 kB", b"123456789012 kB"),
        LINES.replace(b"  24635552", b"2463555212").replace(b"     512", b"   512"),
        LINES.replace(b"24635552 kB", b"246355529kB"),
        LINES.replace(b"24635552", b"2463 552"),
        LINES.replace(b"24635552", b"        "),
        LINES.replace(b"24635552", b"2463_552"),
        LINES.replace(b"24635552", b"-4635552"),
        LINES.replace(b"MemFree: ", b"MemFree2:"),
        LINES.replace(b"MemTotal:       24635552", b"MemTotal:12345678901234567890"),
        LINES.replace(b"MemTotal: ", b"MemTotal: " + b" " * 20),
        LINES + LINES,
    ],
    ids=[
        "other kernel", "fewer digits", "full column", "wider, narrower", "no space", "two numbers", "no number",
        "underscore", "sign", "another key", "too long", "wide column", "twice",
    ],
)  # fmt: skip
def test_previous_file_does_not_affect_parsing(other: bytes) -> None:
    """A file is parsed like a first one, whatever the previous file looked like."""
    reader = Meminfo()
    for data in (LINES, other, LINES, meminfo_of("workstation"), other, LINES):
        assert reader.parse(data) == Meminfo().parse(data)
    assert reader.parse(LINES) == {"MemTotal": 24635552, "MemFree": 1234567}


@pytest.mark.parametrize(
    ("key", "lost"),
    [
        ("MemAvailable", {"quality", "source", "available_bytes", "used_bytes", "contents"}),
        ("MemFree", {"free_bytes", "contents", "unattributed_bytes"}),
        ("Hugetlb", {"contents", "unattributed_bytes"}),
    ],
)
def test_part_beyond_the_total_is_left_out_alone(key: str, lost: set[str]) -> None:
    """A part that exceeds MemTotal is a contradiction. Huge pages are known from their counts as well."""
    sound, odd = (
        build_pool(check(Meminfo().parse(data)))
        for data in (meminfo_of("kvm-hugepages"), with_line(meminfo_of("kvm-hugepages"), key, 65_536_001))
    )

    assert {name for name in Pool.__struct_fields__ if getattr(sound, name) != getattr(odd, name)} == lost


@pytest.mark.parametrize("missing", ["MemTotal", "MemFree"])
def test_meminfo_without_total_or_free_is_rejected(missing: str) -> None:
    """Without MemTotal or MemFree there is no pool, rather than one of size 0."""
    kib = Meminfo().parse(without(meminfo_of("workstation"), missing))

    with pytest.raises(ParseError, match=f"no {missing}"):
        build_pool(check(kib))


def test_swap_freer_than_its_size_is_inconsistent() -> None:
    assert build_swap(check({"SwapTotal": 4, "SwapFree": 5})) is Absent.INCONSISTENT


def test_kernel_without_swap_has_none() -> None:
    """A kernel without swap support has no swap, rather than swap of size 0."""
    assert build_swap(check({"MemTotal": 4, "MemFree": 2})) is None


def test_zswap_is_read() -> None:
    """Compressed swap in front of a disk: the stored bytes, and the RAM that they occupy."""
    swap = build_swap(check({"SwapTotal": 100, "SwapFree": 40, "Zswap": 10, "Zswapped": 30}))

    assert isinstance(swap, Swap)
    assert (swap.used_bytes, swap.zswap_stored_bytes, swap.zswap_memory_bytes) == (60 * KIB, 30 * KIB, 10 * KIB)


def test_page_cache_is_available() -> None:
    """Filling the page cache lowers free memory and changes nothing else (the 60 GB file of the DGX Spark)."""
    gib = KIB * KIB
    kib = Meminfo().parse(meminfo_of("container-v2"))
    filled = {key: kib[key] + 30 * gib for key in ("Cached", "Inactive(file)")}
    moved = kib | {"MemFree": kib["MemFree"] - 30 * gib} | filled
    before, after = build_pool(check(kib)), build_pool(check(moved))

    assert after.available_bytes == before.available_bytes
    assert after.unattributed_bytes == before.unattributed_bytes
    assert after.free_bytes == (kib["MemFree"] - 30 * gib) * KIB


def test_driver_memory_is_unattributed() -> None:
    """Memory that leaves MemFree and appears in no other line is unattributed, to the byte."""
    kib = Meminfo().parse(meminfo_of("container-v2"))
    taken = kib | {"MemFree": kib["MemFree"] - 4096, "MemAvailable": kib["MemAvailable"] - 4096}
    before, after = build_pool(check(kib)), build_pool(check(taken))

    assert isinstance(before.unattributed_bytes, int)
    assert after.unattributed_bytes == before.unattributed_bytes + 4096 * KIB


def test_huge_pages_are_set_aside() -> None:
    """The huge page pool is used memory that is not pressure (84 % used is judged as 31.7 %)."""
    kib = Meminfo().parse(meminfo_of("kvm-hugepages"))
    pool = build_pool(check(kib))

    assert isinstance(pool.used_bytes, int)
    assert pool.used_bytes / pool.size_bytes == pytest.approx(0.842, abs=0.001)
    assert pool.judged_ratio == pytest.approx(0.317, abs=0.001)


def test_free_huge_pages_exclude_reserved_ones() -> None:
    """With huge pages configured, a GPU can allocate the free ones that are not reserved."""
    kib = Meminfo().parse(meminfo_of("kvm-hugepages"))
    kib |= {"HugePages_Total": 20480, "HugePages_Free": 8192, "HugePages_Rsvd": 0, "Hugetlb": 20480 * 2048}

    assert build_pool(check(kib)).set_aside_free_bytes == 16 << 30


@pytest.mark.parametrize("line", ["HugePages_Free", "Hugepagesize"])
def test_free_huge_pages_are_unknown_without_their_line(line: str) -> None:
    """They are not 0. Without huge pages there are none."""
    kib = Meminfo().parse(meminfo_of("kvm-hugepages"))
    kib |= {"HugePages_Total": 20480, "HugePages_Free": 8192, "HugePages_Rsvd": 0, "Hugetlb": 20480 * 2048}
    rest = {key: value for key, value in kib.items() if key != line}
    none = {key: value for key, value in rest.items() if key not in ("HugePages_Total", "Hugetlb")}

    assert not isinstance(build_pool(check(rest)).set_aside_free_bytes, int)
    assert build_pool(check(none)).set_aside_free_bytes == 0


def test_huge_pages_without_hugetlb_line_are_counted() -> None:
    """Kernels without the line Hugetlb count huge pages of the default size."""
    kib = Meminfo().parse(without(meminfo_of("kvm-hugepages"), "Hugetlb"))

    assert build_pool(check(kib)).set_aside_bytes == 48 << 30


def test_available_without_watermarks_is_an_estimate() -> None:
    """Without MemAvailable and zoneinfo, the whole sum is used and marked as an estimate."""
    kib = Meminfo().parse(meminfo_of("old-kernel"))
    expected = kib["MemFree"] + kib["Active(file)"] + kib["Inactive(file)"] + kib["SReclaimable"]

    assert compute_available(kib, None).kib == expected
    assert compute_available(kib, None).quality is Quality.ESTIMATED


def test_available_follows_the_kernel_halving_rule() -> None:
    """Of cache and slab at most half is held back, and at most the low watermark."""
    kib = {"MemFree": 1000, "Active(file)": 50, "Inactive(file)": 50, "SReclaimable": 10_000}

    assert compute_available(kib, 300).kib == 1000 - 300 + 100 - 50 + 10_000 - 300
    assert compute_available(kib | {"MemFree": 0, "SReclaimable": 0}, 300).kib == 0


def test_meminfo_without_available_or_free_memory_is_rejected() -> None:
    with pytest.raises(ParseError, match="MemAvailable nor MemFree"):
        compute_available({"MemTotal": 10, "Cached": 5}, None)
    assert compute_available({"MemTotal": 10, "MemFree": 5}, None) == (5, "meminfo:MemFree", Quality.ESTIMATED)


def test_parts_beyond_the_used_memory_overlap() -> None:
    """If the parts exceed the used memory, they are not trimmed; the overlap is reported."""
    kib = Meminfo().parse(meminfo_of("no-psi"))
    pool = build_pool(check(kib | {"AnonPages": kib["MemTotal"]}))

    assert pool.overlap
    assert pool.unattributed_bytes == 0
    assert pool.contents == ()


def test_unattributed_is_unknown_without_anonymous_pages() -> None:
    """Without the line AnonPages unattributed memory is unknown."""
    pool = build_pool(check(Meminfo().parse(without(meminfo_of("no-psi"), "AnonPages"))))

    assert pool.unattributed_bytes is Absent.NOT_SUPPORTED
    assert pool.contents == ()
    assert not pool.overlap


def test_arc_below_its_floor_changes_nothing() -> None:
    """An ARC smaller than its floor releases nothing, and available memory stays a measured value."""
    kib = Meminfo().parse(meminfo_of("zfs-box"))

    assert build_pool(check(kib), None, ArcStats(size_bytes=10, floor_bytes=20)) == build_pool(check(kib))


def test_available_with_arc_is_bounded_by_the_size() -> None:
    """Two files read at different moments cannot make more available than the pool's size."""
    kib = Meminfo().parse(meminfo_of("zfs-box"))
    pool = build_pool(check(kib), None, ArcStats(size_bytes=kib["MemTotal"] << 10, floor_bytes=0))

    assert pool.available_bytes == pool.size_bytes


def test_truncated_arcstats_is_rejected() -> None:
    """A truncated arcstats is rejected, and its last line is ignored."""
    with pytest.raises(ParseError, match="size and c_min"):
        parse_arcstats(b"name type data\nc_min 4 5\nsize 4 123")


def test_zfs_loaded_later_is_found(tmp_path: Path) -> None:
    """A ZFS module loaded after the daemon's start is found within one minute of ticks."""
    machine = machine_folder("zfs-box")
    shutil.copy(machine.roots.procfs / "meminfo", tmp_path)
    collector = Collector(Roots(procfs=tmp_path), 4096)
    before = collector.collect().pools[0].quality

    shutil.copytree(machine.roots.procfs / "spl", tmp_path / "spl")
    after = [collector.collect().pools[0].quality for _ in range(ARC_RETRY_TICKS)]
    collector.close()

    assert before is Quality.MEASURED
    assert after[-1] is Quality.ESTIMATED


def test_collector_is_unavailable_without_meminfo(tmp_path: Path) -> None:
    """Without /proc/meminfo the collector is unavailable, and the error names the file."""
    with pytest.raises(SourceUnavailable, match="meminfo"):
        Collector(Roots(procfs=tmp_path), 4096)
