"""System RAM and swap from /proc/meminfo, and ZFS's cache, which the kernel does not count as available."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import LXCFS, is_container_limited
from memwatch.core.linux.files import KeptFile, ParseError, Roots, kept_file, names_in, read_once
from memwatch.core.linux.meminfo import (
    BALLOON,
    FILE_PAGES,
    GPU_POOL,
    KERNEL,
    ZEROS,
    Checked,
    Meminfo,
    check,
    compute_available,
    gpu_pool_kib,
    parse_low_watermark,
)
from memwatch.core.model import RAM, RAM_LABEL, Absent, Bytes, Content, Pool, PoolKind, Quality
from memwatch.core.snapshot import Swap, ZfsCache

# Huge pages of every size, from /sys/kernel/mm/hugepages: /proc/meminfo counts pages of the default size only.

_FOLDER = re.compile(r"hugepages-(\d{1,12})kB")


def read_unused_huge_pages(sysfs: Path) -> Bytes:
    """Return the bytes of huge pages that are neither used nor promised to a process, over all sizes."""
    folder = sysfs / "kernel/mm/hugepages"
    try:
        found = [match for match in map(_FOLDER.fullmatch, names_in(folder)) if match]
        counts = [(int(match[1]), *_read_counts(folder / match[0])) for match in found]
    except (OSError, ValueError):
        return Absent.NOT_AVAILABLE
    if not counts:
        return Absent.NOT_AVAILABLE
    return sum([kib * max(0, free - reserved) for kib, free, reserved in counts]) << 10


def _read_counts(folder: Path) -> tuple[int, int]:
    """Return the free pages of one size, and those of them that mappings have reserved. Raises ValueError."""
    free, reserved = (int(read_once(folder / f"{name}_hugepages") or b"") for name in ("free", "resv"))
    return free, reserved


# Number of ticks between two checks for a ZFS module that was loaded after the daemon started.
ARC_RETRY_TICKS = 60

# Without these lines the pool is not shown by use.
NEEDED_BY_USE = frozenset({"AnonPages", "Shmem", "SUnreclaim"})
# Lines of which the pool by use is made: one that is wrong makes the others say too much or too little.
_BY_USE = NEEDED_BY_USE.union(KERNEL, FILE_PAGES, ("Hugetlb", "KReclaimable", BALLOON))

_FREE_PAGES = ("HugePages_Free", "HugePages_Rsvd", "Hugepagesize")
_AVAILABLE = re.compile(rb"^MemAvailable: +(\d{1,19}) kB\n", re.MULTILINE)
_ARC_LINE = re.compile(rb"^(size|c_min) +\d+ +(\d{1,19})\n", re.MULTILINE)


class ArcStats(NamedTuple):
    """ZFS's cache (ARC). It shrinks under pressure down to its floor, but not always at once: an estimate."""

    size_bytes: int
    floor_bytes: int

    @property
    def reclaimable_bytes(self) -> int:
        return max(0, self.size_bytes - self.floor_bytes)


def parse_arcstats(data: bytes) -> ArcStats:
    found = {name: int(value) for name, value in _ARC_LINE.findall(data)}
    if len(found) != 2:
        raise ParseError("arcstats has no lines size and c_min")
    return ArcStats(found[b"size"], found[b"c_min"])


def build_pool(
    checked: Checked,
    low_watermark_kib: int | None = None,
    arc: ArcStats | Absent | None = None,
    unused_huge_pages: Bytes = Absent.NOT_AVAILABLE,
) -> Pool:
    """Return System RAM. Raises ParseError if nothing is left of MemTotal, or of what is available.

    The cache of ZFS counts as used if it is there and cannot be read: a lower bound.
    """
    kib = checked.kib
    size, huge = _size(checked), _huge_pages(kib)
    available_memory = compute_available(kib, low_watermark_kib, checked.file_pages_excess)
    source, quality = available_memory.source, available_memory.quality
    available = min(size, available_memory.kib << 10)
    if pooled := gpu_pool_kib(kib, available_memory.kib):
        available += pooled << 10
        source, quality = f"{source} + {GPU_POOL}", Quality.ESTIMATED
    elif kib.get(GPU_POOL) or GPU_POOL in checked.refuted:
        quality = Quality.ESTIMATED  # a part that is not known
    if isinstance(arc, Absent):
        source, quality = f"{source}, arcstats is not readable", Quality.ESTIMATED
    elif arc and arc.reclaimable_bytes and arc.size_bytes <= size:  # else it is not this machine's
        # The two files are not read at the same instant, so their sum may briefly exceed the size.
        available = min(size, available + arc.reclaimable_bytes)
        source, quality = f"{source} + arcstats:size-c_min", Quality.ESTIMATED
    contents, unattributed, overlap = _contents(checked, (size, available, huge), available_memory.kib << 10)
    if huge and not checked.refuted.keys().isdisjoint(_FREE_PAGES):
        unused_huge_pages = Absent.INCONSISTENT
    elif not huge:
        unused_huge_pages = 0
    elif not has_other_huge_pages(kib):
        unused_huge_pages = _unused_huge_pages(kib)
    return Pool(
        id=RAM,
        kind=PoolKind.SYSTEM_RAM,
        label=RAM_LABEL,
        size_bytes=size,
        used_bytes=size - available,
        available_bytes=available,
        source=source,
        quality=quality,
        free_bytes=kib["MemFree"] << 10 if "MemFree" in kib else Absent.INCONSISTENT,
        unattributed_bytes=unattributed,
        overlap=overlap,
        set_aside_bytes=huge,
        set_aside_free_bytes=unused_huge_pages
        if isinstance(unused_huge_pages, Absent)
        else min(huge, unused_huge_pages),
        contents=contents,
    )


def build_swap(checked: Checked) -> Swap | Absent | None:
    """Return the swap; None on kernels without it, `INCONSISTENT` if its lines contradict each other."""
    kib = checked.kib
    if "SwapTotal" not in kib or "SwapFree" not in kib:
        return Absent.INCONSISTENT if checked.refuted.keys() & {"SwapTotal", "SwapFree"} else None
    size, free = kib["SwapTotal"] << 10, kib["SwapFree"] << 10
    stored, memory = kib.get("Zswapped"), kib.get("Zswap")
    return Swap(
        size_bytes=size,
        used_bytes=size - free,
        zswap_stored_bytes=Absent.NOT_SUPPORTED if stored is None else stored << 10,
        zswap_memory_bytes=Absent.NOT_SUPPORTED if memory is None else memory << 10,
    )


def _size(checked: Checked) -> int:
    """Return MemTotal in bytes."""
    size = checked.kib.get("MemTotal", 0)
    if size == 0:
        raise ParseError(f"meminfo: {checked.refuted.get('MemTotal', 'no MemTotal above 0')}")
    if "MemFree" not in checked.kib:
        if "MemFree" not in checked.refuted:
            raise ParseError("meminfo has no MemFree")
        if "MemAvailable" not in checked.kib:
            raise ParseError(f"meminfo: {checked.refuted['MemFree']}")
    return size << 10


def _unused_huge_pages(kib: Mapping[str, int]) -> Bytes:
    """Return the bytes of free huge pages of the default size that are not reserved, if the kernel prints both."""
    if not kib.keys() >= {"HugePages_Free", "HugePages_Rsvd", "Hugepagesize"}:
        return Absent.NOT_AVAILABLE
    return max(0, kib["HugePages_Free"] - kib["HugePages_Rsvd"]) * kib["Hugepagesize"] << 10


def has_other_huge_pages(kib: Mapping[str, int]) -> bool:
    """Check if there are huge pages of more than the default size: Hugetlb counts all, the other lines do not."""
    return kib.get("Hugetlb", 0) > _of_default_size(kib)


def _of_default_size(kib: Mapping[str, int]) -> int:
    return kib.get("HugePages_Total", 0) * kib.get("Hugepagesize", 0)


def _huge_pages(kib: Mapping[str, int]) -> int:
    """Return the huge page pools in bytes; before Linux 4.16 only the pool of the default size is known."""
    if "Hugetlb" in kib:
        return kib["Hugetlb"] << 10
    of_default_size = _of_default_size(kib)
    return of_default_size << 10 if of_default_size <= kib["MemTotal"] else 0


def _contents(
    checked: Checked, sizes: tuple[int, int, int], without_arc: int
) -> tuple[tuple[Content, ...], Bytes, bool]:
    """Return the pool by use, its unattributed part, and True if the known parts exceed the used memory.

    `sizes`: the pool, its available memory, and huge pages. `without_arc`: available memory without ZFS's cache.
    Parts that contradict the sum are not shown at all: a trimmed figure would have no source.
    """
    kib = checked.kib
    slab = "KReclaimable" if "KReclaimable" in kib else "SReclaimable"
    if checked.refuted and not checked.refuted.keys().isdisjoint(_BY_USE | {"MemFree", slab}):
        return (), Absent.INCONSISTENT, False
    if not kib.keys() >= NEEDED_BY_USE:
        return (), Absent.NOT_SUPPORTED, False
    size, available, huge = sizes
    anonymous, shared = kib["AnonPages"] << 10, kib["Shmem"] << 10
    kernel = _kernel(kib) + _kept_back(kib, without_arc + (checked.file_pages_excess << 10))
    unattributed = size - available - anonymous - shared - huge - kernel
    if unattributed < 0:
        return (), 0, True
    # No program has what a hypervisor took back; if MemTotal lacks it already, nothing of it is left here.
    balloon = min(kib.get(BALLOON, 0) << 10, unattributed)
    kernel, unattributed = kernel + balloon, unattributed - balloon
    free = min(kib["MemFree"] << 10, available)
    parts = (
        Content("anonymous", anonymous),
        Content("shared_memory", shared),
        Content("huge_pages", huge),
        Content("kernel", kernel),
        Content("unattributed", unattributed),
        Content("page_cache", available - free),
        Content("free", free),
    )
    return parts, unattributed, False


def _kernel(kib: Mapping[str, int]) -> int:
    """Sum the kernel's own structures, zswap's compressed pages included."""
    return sum(map(kib.get, KERNEL, ZEROS)) << 10


def _kept_back(kib: Mapping[str, int], available: int) -> int:
    """Return free memory and cache that the kernel keeps: its reserves, and cache that it considers in use.

    Without this part, every machine would show 1 to 2% of its RAM as unattributed.
    """
    reclaimable = kib.get("KReclaimable", kib.get("SReclaimable", 0))
    cache = kib.get("Active(file)", 0) + kib.get("Inactive(file)", 0)
    return max(0, (kib["MemFree"] + cache + reclaimable << 10) - available)


def _why_unread(error: OSError) -> Absent | None:
    """Return the reason of a file that is there and cannot be read; None for one that is not there."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return None
    return Absent.NOT_PERMITTED if isinstance(error, PermissionError) else Absent.NOT_AVAILABLE


class Collector(BaseCollector):
    name = "meminfo"

    def __init__(self, roots: Roots, page_size: int) -> None:
        self._file = kept_file(roots.procfs / "meminfo")
        self._meminfo = Meminfo()
        self._is_of_container = is_container_limited(roots)
        self._sysfs = roots.sysfs
        self._zoneinfo, self._page_size = roots.procfs / "zoneinfo", page_size
        self._low_watermark_kib: int | None = None
        self._reserves_are_unread = True
        self._arc_path = roots.procfs / "spl/kstat/zfs/arcstats"
        self._arcstats: KeptFile | None = None
        self._ticks = 0
        self._no_arc: Absent | None = None
        self._last = Checked({}, {})

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.page_size)

    def collect(self) -> Findings:
        checked = self._last = check(self._meminfo.parse(self._file.read()))
        # Containers of LXC see the ARC of the host, which is no part of their limit.
        arc = None if self._is_of_container else self._read_arc()
        unused: Bytes = Absent.NOT_AVAILABLE
        if has_other_huge_pages(checked.kib):
            unused = read_unused_huge_pages(self._sysfs)
        pool = build_pool(checked, self._low_watermark(checked), arc, unused)
        if self._is_of_container:
            pool = replace(pool, source=LXCFS + pool.source.removeprefix("meminfo:"))
        cache = ZfsCache(arc.size_bytes, arc.floor_bytes) if isinstance(arc, ArcStats) else arc
        refuted = len(checked.refuted)
        return Findings(pools=(pool,), swap=build_swap(checked), zfs_cache=cache, rejected=refuted)

    def _available_kib(self, checked: Checked) -> int:
        return compute_available(checked.kib, self._low_watermark_kib, checked.file_pages_excess).kib

    def _low_watermark(self, checked: Checked) -> int | None:
        """Read the kernel's reserves, once, where MemAvailable has to be estimated."""
        if self._reserves_are_unread and "MemAvailable" not in checked.kib:
            self._reserves_are_unread = False
            zoneinfo = read_once(self._zoneinfo)
            if zoneinfo is not None:
                self._low_watermark_kib = parse_low_watermark(zoneinfo, self._page_size)
        return self._low_watermark_kib

    def moved_bytes(self) -> int:
        """Return the fall of MemAvailable since the last result. Takes 25 µs; a whole tick takes 900 µs."""
        data = self._file.read()
        found, before = _AVAILABLE.search(data), self._last.kib.get("MemAvailable")
        if found is None or before is None:  # a kernel before 3.14, or an invalid meminfo
            latest = check(self._meminfo.parse(data))
            return self._available_kib(self._last) - self._available_kib(latest) << 10
        return before - int(found[1]) << 10

    def close(self) -> None:
        self._file.close()
        if self._arcstats:
            self._arcstats.close()

    def _read_arc(self) -> ArcStats | Absent | None:
        """Read ZFS's cache; None without ZFS. Its module can be loaded and unloaded: the file is tried again."""
        try:
            if self._arcstats is None:
                self._ticks += 1
                if self._ticks % ARC_RETRY_TICKS != 1:
                    return self._no_arc
                self._arcstats = KeptFile(self._arc_path)
            return parse_arcstats(self._arcstats.read())
        except ParseError:
            return Absent.INCONSISTENT
        except OSError as error:
            self._arcstats, self._no_arc = None, _why_unread(error)
            return self._no_arc
