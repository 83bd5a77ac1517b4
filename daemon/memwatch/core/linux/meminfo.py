"""Lines of /proc/meminfo, those that the same reading refutes, and the memory that is available by them.

A refuted line is left out by itself: the others stay in use.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple

from memwatch.core.linux.files import ParseError
from memwatch.core.model import Quality

# No machine has an exbibyte of memory.
MAX_KIB = 1 << 50
# A line that is there, without a number that can be read.
UNREAD = 1 << 70
# Kernel counters are kept per CPU and lag a little behind each other.
MIN_EXCESS_KIB, MIN_EXCESS_RATIO = 65_536, 0.02
# The kernel keeps a part of free memory for itself, which no administrator sets to a quarter of the machine.
MAX_RESERVE_RATIO = 0.25

FILE_PAGES = ("Active(file)", "Inactive(file)")
ANONYMOUS = ("Active(anon)", "Inactive(anon)")
# A page on these lists is counted in one of these lines. Shared memory is cached, and on the anonymous lists.
COUNTED = ("Cached", "Buffers", "SwapCached", "AnonPages", "Shmem")
# Parts that never overlap. Old lxcfs prints the slab and the lists of the host beside a container's other lines.
DISJOINT = ("MemFree", "Cached", "Buffers")
SLAB = ("SReclaimable", "KReclaimable")
# The values of lines that are not there, for sums of some lines.
ZEROS = repeat(0)
# Lines that are no part of the machine's memory, or are no size.
BESIDE = frozenset(
    {
        "SwapTotal",
        "SwapFree",
        "Zswapped",
        "Balloon",
        "HugePages_Total",
        "HugePages_Free",
        "HugePages_Rsvd",
        "Hugepagesize",
    }
)


class Checked(NamedTuple):
    """Lines in KiB without those that cannot be true, and a sentence for each of these by its name.

    `file_pages_excess`: KiB of file pages on the kernel's lists that are in no cache.
    """

    kib: Mapping[str, int]
    refuted: Mapping[str, str]
    file_pages_excess: int = 0


def check(kib: Mapping[str, int]) -> Checked:
    """Return the lines that agree with each other. A correct reading is returned as it is."""
    refuted = {} if _is_plain(kib) else dict(_refuted(kib))
    rest = kib if not refuted else _without(kib, refuted)
    if foreign := _find_foreign_lines(rest):
        refuted |= foreign
        rest = _without(rest, foreign)
    excess = _file_pages_excess(rest)
    beyond = f"file pages on the kernel's lists exceed its caches by {excess} kB"
    if excess and (_is_free_only(rest) or not _exceeds_parts(rest, excess)):
        refuted |= dict.fromkeys(FILE_PAGES, beyond)
        excess = 0
    elif excess:
        refuted["MemAvailable"] = beyond
    elif _is_without_slab(rest):
        refuted["MemAvailable"] = f"MemAvailable leaves out reclaimable slab of {rest['SReclaimable']} kB"
    elif refuted.keys().isdisjoint(FILE_PAGES) and _is_less_than_parts(rest):
        refuted["MemAvailable"] = (
            f"MemAvailable {rest['MemAvailable']} kB is less than MemFree {rest.get('MemFree', 0)} kB "
            "and half of the caches leave"
        )
    elif not refuted:
        return Checked(rest, refuted)
    if not refuted.keys().isdisjoint(FILE_PAGES) and (left_out := _find_cache_left_out(rest)):
        sentence = f"MemAvailable is MemFree, and leaves out a page cache of {left_out} kB"
        refuted |= {key: sentence for key in ("MemAvailable", *SLAB) if key in rest}
    return Checked(_without(kib, refuted), refuted, excess)


def _without(kib: Mapping[str, int], refuted: Mapping[str, str]) -> dict[str, int]:
    return {key: value for key, value in kib.items() if key not in refuted}


def _is_plain(kib: Mapping[str, int]) -> bool:
    """Check in one pass what holds on most machines: nothing exceeds the memory or the swap."""
    size, swap = kib.get("MemTotal", 0), kib.get("SwapTotal", 0)
    return max(kib.values(), default=0) <= size <= MAX_KIB and kib.get("SwapFree", 0) <= swap


def _refuted(kib: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    size, swap = kib.get("MemTotal", 0), kib.get("SwapTotal", 0)
    for key, value in kib.items():
        if value == UNREAD:
            yield key, f"{key} has no number that can be read"
        elif value > MAX_KIB:
            yield key, f"{key} {value} kB is more than any machine has"
        elif key not in BESIDE and 0 < size < value and size <= MAX_KIB:
            yield key, f"{key} {value} kB is more than MemTotal {size} kB"
    if swap < kib.get("SwapFree", 0) < UNREAD:
        yield "SwapFree", f"SwapFree {kib['SwapFree']} kB is more than SwapTotal {swap} kB"


def _find_foreign_lines(kib: Mapping[str, int]) -> dict[str, str]:
    """Return lines of the host in a container: slab and lists that free memory leaves no room for (lxcfs#120)."""
    size, slab = kib.get("MemTotal", 0), max(map(kib.get, SLAB, ZEROS))
    most = size + max(MIN_EXCESS_KIB, int(MIN_EXCESS_RATIO * size))
    found: dict[str, str] = {}
    if size and slab and sum(map(kib.get, DISJOINT, ZEROS)) + slab > most:
        sentence = f"reclaimable slab {slab} kB, free memory and the page cache exceed MemTotal {size} kB"
        found |= {key: sentence for key in SLAB if key in kib}
    if size and _is_free_only(kib) and kib["MemFree"] + sum(map(kib.get, FILE_PAGES, ZEROS)) > most:
        sentence = f"file pages on the kernel's lists and free memory exceed MemTotal {size} kB"
        found |= {key: sentence for key in FILE_PAGES if key in kib}
    return found


def _exceeds_parts(kib: Mapping[str, int], excess: int) -> bool:
    """Check if more is said to be available than free memory and caches without the excess. True without a figure.

    In containers of old lxcfs the lists are those of the host, and MemAvailable is right (lxc/lxcfs#84).
    """
    parts = ("MemFree", "SReclaimable", *FILE_PAGES)
    most = sum([kib.get(key, 0) for key in parts]) - excess
    return kib.get("MemAvailable", most + 1) > most


def _is_less_than_parts(kib: Mapping[str, int]) -> bool:
    """Check if free memory and caches exceed what is available by more than the kernel may keep.

    It counts at least half of the caches (Linux commit 34e431b0). Some kernels print 0 (giampaolo/psutil#2052).
    """
    available = kib.get("MemAvailable")
    if available is None:
        return False
    caches = kib.get("SReclaimable", 0) + sum(map(kib.get, FILE_PAGES, ZEROS))
    return kib.get("MemFree", 0) + caches // 2 - available > MAX_RESERVE_RATIO * kib.get("MemTotal", 0)


def _is_free_only(kib: Mapping[str, int]) -> bool:
    """Check for a MemAvailable that is exactly MemFree, as old lxcfs prints. A kernel subtracts its reserves."""
    return "MemAvailable" in kib and kib["MemAvailable"] == kib.get("MemFree")


def _find_cache_left_out(kib: Mapping[str, int]) -> int:
    """Return the KiB of page cache beside such a MemAvailable; 0 if it is little (lxcfs#115)."""
    cache = kib.get("Cached", 0) + kib.get("Buffers", 0) - kib.get("Shmem", 0)
    is_much = cache > max(MIN_EXCESS_KIB, MIN_EXCESS_RATIO * kib.get("MemTotal", 0))
    return cache if is_much and _is_free_only(kib) else 0


def _is_without_slab(kib: Mapping[str, int]) -> bool:
    """Check for exactly free memory and file pages, as lxcfs prints for a container (lxcfs#670)."""
    try:
        parts = kib["MemFree"] + sum(map(kib.__getitem__, FILE_PAGES))
        return kib["MemAvailable"] == parts and kib["SReclaimable"] > 0
    except KeyError:
        return False


def _file_pages_excess(kib: Mapping[str, int]) -> int:
    """Return the KiB by which lists of file pages exceed the caches; 0 if that is little, or a line is missing.

    Their counters leak in some kernels (oracle/oracle-linux#218), and MemAvailable contains them. Anonymous pages
    that a program gave back with MADV_FREE are on the lists of file pages as well: they are no excess.
    """
    try:
        cached, buffers, swap_cached, anonymous, shared = map(kib.__getitem__, COUNTED)
        files = sum(map(kib.__getitem__, FILE_PAGES))
        given_back = anonymous + shared + swap_cached - sum(map(kib.__getitem__, ANONYMOUS))
    except KeyError:  # kernels before 2.6.28, and imitations of /proc
        return 0
    excess = files - max(0, cached + buffers - shared) - max(0, given_back)
    is_known = cached > 0 and "MemTotal" in kib
    return excess if is_known and excess > max(MIN_EXCESS_KIB, MIN_EXCESS_RATIO * kib["MemTotal"]) else 0


# Pages that a hypervisor took back (Linux 6.16). Most drivers subtract them from MemTotal, some do not.
BALLOON = "Balloon"
# Pages that drivers of GPUs keep for reuse (Linux 7.0). The kernel frees them for others; MemAvailable lacks them.
GPU_POOL = "GPUReclaim"
KERNEL = ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "Percpu", "Zswap")
CACHES = ("Cached", "Buffers")
_CACHE = ("KReclaimable", "SReclaimable", *FILE_PAGES, *ANONYMOUS, *COUNTED)
_HUGE = ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "Hugepagesize", "Hugetlb")
_TOTALS = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Zswapped", BALLOON, GPU_POOL)
WANTED = frozenset(_TOTALS + _CACHE + KERNEL + _HUGE)

_NUMBER = re.compile(rb"( *\d{1,19} ?)(?:kB)?")
_MAX_COLUMN_WIDTH = 20
_WITHOUT_DIGITS = bytes.maketrans(b"0123456789", b" " * 10)
_LOW_WATERMARK = re.compile(rb"^ +low +(\d{1,19})\n", re.MULTILINE)


class MeminfoLayout(NamedTuple):
    """Positions of the needed numbers in a meminfo, and its text without digits.

    A running kernel keeps the order of lines and pads numbers to eight places, so one layout fits almost every
    reading: 5.5 µs for 55 lines. A pattern that skips to the needed lines took 8 µs, matching every line 14 µs
    (CPython 3.11, November 2026).
    """

    keys: tuple[str, ...]
    places: struct.Struct
    unread: tuple[str, ...]  # needed lines without a number
    blank: bytes | None  # None if a needed line has no number, or a wider one than any number can be


class AvailableMemory(NamedTuple):
    """Memory available without swapping, and the source of the figure."""

    kib: int
    source: str
    quality: Quality


def parse_layout(data: bytes) -> MeminfoLayout:
    keys: list[str] = []
    unread: list[str] = []
    places, is_odd = "", False
    start = end = 0  # start of the line, end of the last needed number
    for line in data.split(b"\n")[:-1]:
        key = line.partition(b":")[0].decode("ascii", "replace")
        if key in WANTED and key not in keys:
            found = _NUMBER.fullmatch(line, len(key) + 1)
            if found:
                keys.append(key)
                places += f"{start + found.start(1) - end}x{len(found[1])}s"
                end = start + found.end(1)
            else:
                unread.append(key)
            is_odd = is_odd or found is None or len(found[1]) > _MAX_COLUMN_WIDTH
        start += len(line) + 1
    blank = None if is_odd else data.translate(_WITHOUT_DIGITS)
    return MeminfoLayout(tuple(keys), struct.Struct(places), tuple(one for one in unread if one not in keys), blank)


class Meminfo:
    """Parses meminfo, with the layout of the previous reading if that still fits. Threads may share it."""

    def __init__(self) -> None:
        self._layout = parse_layout(b"")

    def parse(self, data: bytes) -> dict[str, int]:
        """Return the needed lines by name, in KiB as the kernel prints them (lines without a unit are counts).

        A line without a number is `UNREAD`, which `check` refutes: it is not the same as no line.
        """
        if not data:
            raise ParseError("meminfo is empty")
        if not data.endswith(b"\n"):
            raise ParseError(f"meminfo ends in the middle of a line: …{data[-40:]!r}")
        layout = self._layout
        if data.translate(_WITHOUT_DIGITS) == layout.blank:
            with suppress(ValueError):  # a column without a number, or with two
                return _numbers(layout, data)
        self._layout = layout = parse_layout(data)
        return _numbers(layout, data)


def _numbers(layout: MeminfoLayout, data: bytes) -> dict[str, int]:
    found = dict(zip(layout.keys, map(int, layout.places.unpack_from(data)), strict=True))
    return {**found, **dict.fromkeys(layout.unread, UNREAD)} if layout.unread else found


def parse_low_watermark(zoneinfo: bytes, page_size: int) -> int:
    """Sum the low watermark over all zones, in KiB. Free memory below it is reserved."""
    return sum(map(int, _LOW_WATERMARK.findall(zoneinfo))) * page_size >> 10


def gpu_pool_kib(kib: Mapping[str, int], available_kib: int) -> int:
    """Return the KiB that drivers of GPUs would give back, beside what is available. None that do not fit."""
    pooled = kib.get(GPU_POOL, 0)
    return pooled if available_kib + pooled <= kib.get("MemTotal", 0) else 0


def compute_available(
    kib: Mapping[str, int], low_watermark_kib: int | None, file_pages_excess: int = 0
) -> AvailableMemory:
    """Return MemAvailable; on kernels before 3.14, and where the reading refutes it, the same sum.

    The sum is that of Linux commit 34e431b0: half of the page cache and of reclaimable slab, but at most the low
    watermark, is considered in use. If the watermark is unknown too, nothing is subtracted. Without the lists of
    file pages, all that is cached counts as the page cache, except shared memory. Kernels before 2.6.32 and
    imitations of /proc do not print that (TritonDataCenter/smartos-live#623): then it counts as well.
    """
    if "MemAvailable" in kib:
        return AvailableMemory(kib["MemAvailable"], "meminfo:MemAvailable", Quality.MEASURED)
    if "MemFree" not in kib:
        raise ParseError("meminfo has neither MemAvailable nor MemFree")
    has_lists = all(key in kib for key in FILE_PAGES)
    parts = [key for key in (FILE_PAGES if has_lists else CACHES) if key in kib]
    cache = sum([kib[key] for key in parts]) - file_pages_excess
    source = "+".join(["meminfo:MemFree", *parts])
    if not has_lists and "Shmem" in kib:
        cache, source = max(0, cache - kib["Shmem"]), f"{source}-Shmem"
    slab, low = kib.get("SReclaimable", 0), low_watermark_kib or 0
    usable = kib["MemFree"] - low + cache - min(cache // 2, low) + slab - min(slab // 2, low)
    if "SReclaimable" in kib:
        source += "+SReclaimable"
    if file_pages_excess:
        source += " less file pages that are in no cache"
    if low_watermark_kib is not None:
        source += " less zoneinfo:low"
    return AvailableMemory(max(0, usable), source, Quality.ESTIMATED)
