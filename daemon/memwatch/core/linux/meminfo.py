"""Lines of /proc/meminfo, and the memory that is available by them."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo_checks import ANONYMOUS, COUNTED, FILE_PAGES, UNREAD
from memwatch.core.model import Quality

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
