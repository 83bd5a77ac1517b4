"""Memory of this machine and process as the kernel counts it.

System RAM and the resident set take a few system calls and about 30 µs, fit for a training step.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from memwatch.core.linux.cgroups import in_container
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable, read_once, without_padding
from memwatch.core.linux.meminfo import GPU_POOL, Meminfo, check, compute_available, gpu_pool_kib
from memwatch.core.model import OWN_LIMIT, RAM, RAM_LABEL, Absent, Bytes, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.library.daemon_client import daemon, read_roots
from memwatch.library.program_safety import importing

if TYPE_CHECKING:
    from memwatch.core.snapshot import Node, Snapshot
    from memwatch.library.gpu_nodes import GpuNodes

if sys.platform != "win32":
    import resource

STATM = re.compile(rb"\d+ (\d+) \d+ \d+ \d+ \d+ \d+\n")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# The longest known has 1.8 KiB.
MAX_MEMINFO_BYTES = 16384
_meminfo = Meminfo()


class Ram(NamedTuple):
    """System RAM. `total_bytes`: MemTotal, `free_bytes`: MemFree, both without nodes that are a GPU's memory.

    `quality`: estimated if the kernel's figure of available memory is missing, or refuted by other lines.
    """

    total_bytes: int
    available_bytes: int
    free_bytes: Bytes = Absent.NOT_SUPPORTED
    quality: Quality = Quality.MEASURED


class Host:
    """Reader of /proc/meminfo, which stays open, and of NUMA nodes that are a GPU's memory, if there are any."""

    def __init__(self, procfs: Path, sysfs: Path | None = None) -> None:
        self._meminfo = procfs / "meminfo"
        self._folder = None if sysfs is None else sysfs / "devices/system/node"
        self._nodes: GpuNodes | None = None
        self._file: int | None = None

    def ram(self) -> Ram | Absent:
        """Return the current System RAM. Takes 20 µs, and 35 µs for each GPU whose memory is a node (GH200).

        The first call on a machine with such a node reads the machine, which takes up to two seconds.
        """
        found = self._read()
        if self._folder is not None:
            self._nodes, self._folder = _find_nodes(self._folder), None
        if self._nodes is None or isinstance(found, Absent):
            return found
        nodes = self._nodes.read()
        return Absent.NOT_AVAILABLE if nodes is None else without_nodes(found, nodes, self._nodes.is_decided)

    def learn(self, pools: Sequence[Pool]) -> None:
        """Take from a reading of this machine which nodes are a GPU's memory."""
        if self._nodes is not None:
            self._nodes.learn(pools)

    def _read(self) -> Ram | Absent:
        try:
            if self._file is None:
                self._file = os.open(self._meminfo, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._file, MAX_MEMINFO_BYTES, 0)
        except OSError:
            return _ram_elsewhere() if not os.path.exists(self._meminfo.parent) else Absent.NOT_AVAILABLE
        return parse_meminfo(without_padding(text))

    def available_bytes(self) -> Bytes:
        ram = self.ram()
        return ram if isinstance(ram, Absent) else ram.available_bytes


def _find_nodes(folder: Path) -> GpuNodes | None:
    """Return the nodes that may be a GPU's memory, None without a node that has no CPUs."""
    without_cpus = [one for one in folder.glob("node[0-9]*") if not (read_once(one / "cpulist") or b"0").strip()]
    if not without_cpus:
        return None
    with importing:
        from memwatch.library.gpu_nodes import GpuNodes

    return GpuNodes(folder, [int(one.name[4:]) for one in without_cpus], _read_pools)


def without_nodes(ram: Ram, nodes: Sequence[Node], is_decided: bool) -> Ram | Absent:
    """Return System RAM without the nodes that are a GPU's memory, by the rule of the machine's reading."""
    if not nodes:
        return ram if is_decided else ram._replace(quality=Quality.ESTIMATED)
    with importing:
        from memwatch.core.accounting import relations

    size, available = ram.total_bytes, ram.available_bytes
    pool = Pool(
        RAM,
        PoolKind.SYSTEM_RAM,
        RAM_LABEL,
        size,
        size - available,
        available,
        "meminfo",
        ram.quality,
        free_bytes=ram.free_bytes,
    )
    rest = relations.without_nodes(pool, nodes)
    if isinstance(rest.available_bytes, Absent):
        return rest.available_bytes
    quality = Quality.ESTIMATED if rest.quality is Quality.ESTIMATED else ram.quality
    return Ram(rest.size_bytes, rest.available_bytes, rest.free_bytes, quality)


def _read_pools() -> tuple[Pool, ...]:
    """Return the pools of this machine, from its daemon if there is one."""
    with importing:
        from memwatch.library.machine_record import decode_pools

    found = daemon.get("/api/v1/pools") if daemon.is_here else None
    if found is not None:
        return decode_pools(found)
    with importing:
        from memwatch.library.local_reading import read_machine

    return read_machine().pools


def parse_meminfo(text: bytes) -> Ram | Absent:
    """Return System RAM by lines that the others do not refute, as the daemon does. Takes about 20 µs."""
    try:
        checked = check(_meminfo.parse(text))
        kib, size = checked.kib, checked.kib.get("MemTotal", 0)
        available = compute_available(kib, None, checked.file_pages_excess)
    except ParseError:
        return Absent.NOT_SUPPORTED
    if not size:
        return Absent.INCONSISTENT if "MemTotal" in checked.refuted else Absent.NOT_SUPPORTED
    no_free = Absent.INCONSISTENT if "MemFree" in checked.refuted else Absent.NOT_SUPPORTED
    free = kib["MemFree"] << 10 if "MemFree" in kib else no_free
    pooled = gpu_pool_kib(kib, available.kib)
    quality = Quality.ESTIMATED if kib.get(GPU_POOL) or GPU_POOL in checked.refuted else available.quality
    return Ram(size << 10, min(size, available.kib + pooled) << 10, free, quality)


def _ram_elsewhere() -> Ram | Absent:
    """Read System RAM with psutil, which memwatchd uses on systems without /proc."""
    import psutil

    found = psutil.virtual_memory()
    return Ram(found.total, found.available, found.free)


class OwnStatm:
    """/proc/self/statm, kept open: to open it takes 4 of 6 µs.

    A forked child opens its own. If the program closed the file, its number may be that of another one by now.
    """

    def __init__(self) -> None:
        self._file = self._pid = -1

    def read(self) -> re.Match[bytes] | None:
        pid = os.getpid()
        if pid == self._pid:
            with suppress(OSError):
                if found := STATM.fullmatch(os.pread(self._file, 200, 0)):
                    return found
        self._file, self._pid = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), pid
        return STATM.fullmatch(os.pread(self._file, 200, 0))


_own_statm = OwnStatm()


def rss_bytes() -> Bytes:
    """Return the resident set size of this process."""
    try:
        found = _own_statm.read()
    except FileNotFoundError:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except OSError:
        return Absent.NOT_AVAILABLE
    return int(found[1]) * PAGE_BYTES if found else Absent.NOT_AVAILABLE


host: Host = Host(*read_roots(os.environ)[:2])


# `memwatch run` sets it: a reset would also lower the peak that it reports for this process.
KEEP_PEAK = "MEMWATCH_KEEP_PEAK"
HIGH_WATER = re.compile(rb"^VmHWM:\s+(\d{1,15}) kB$", re.MULTILINE)
# Both sum pages of several CPUs, ru_maxrss without those that a CPU has not handed in yet.
SLACK_BYTES = 1 << 20
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class ProcessPeak:
    """Reader of the kernel's high-water mark (VmHWM). A read takes 1 µs in most cases.

    ru_maxrss is the greater of VmHWM and the peak of the program that this process ran before its last exec. At
    `_clean` or above it is VmHWM. Only below, /proc/self/status, 15 µs, is read as well.
    """

    name = "process"

    def __init__(self) -> None:
        self._clean: int | None = None
        self.can_reset: bool = True

    def read(self) -> tuple[Bytes, ...]:
        peak = read_maxrss()
        if isinstance(peak, Absent) or (self._clean is not None and peak >= self._clean):
            return (peak,)
        high_water = read_high_water()
        if isinstance(high_water, Absent):
            return (peak,)
        self._clean = peak - SLACK_BYTES if high_water >= peak - SLACK_BYTES else peak + 1
        return (high_water,)

    def reset(self) -> bool:
        """Set the high-water mark to the current resident set. False where that is not permitted."""
        self.can_reset = KEEP_PEAK not in os.environ and _clear_refs()
        return self.can_reset


def _clear_refs() -> bool:
    try:
        file = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(file, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(file)


def read_maxrss() -> Bytes:
    if sys.platform == "win32":
        return Absent.NOT_SUPPORTED
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def read_high_water() -> Bytes:
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:
            found = HIGH_WATER.search(file.read(4096))
    except OSError:
        return Absent.NOT_AVAILABLE
    return int(found[1]) << 10 if found else Absent.NOT_SUPPORTED


class CgroupLimit(NamedTuple):
    """The smallest limit of the cgroups of this process. `name`: a label such as "container limit".

    `left_bytes`: memory the kernel can still provide before an OOM kill. Page cache does not count as used. GPU
    memory of a unified machine does not either.
    """

    name: str
    size_bytes: int
    left_bytes: int


def own_limit(roots: Roots | None = None) -> CgroupLimit | None:
    """Read the current limit. None without a limit below System RAM or without accounting. Takes about 0.2 ms."""
    share = read_own_share(roots)
    if share is None or isinstance(share.limit_bytes, Absent) or isinstance(share.left_bytes, Absent):
        return None
    return CgroupLimit(share.label.lower(), share.limit_bytes, share.left_bytes)


def read_own_share(roots: Roots | None = None) -> Share | None:
    """Return the share of System RAM that this process's container, unit or job may use, None without a limit."""
    from memwatch.core.collectors.cgroup import Collector

    try:
        with closing(Collector(roots or Roots(*read_roots(os.environ)), "cgroup")) as collector:
            (share,) = collector.collect().shares
    except (OSError, SourceUnavailable, ParseError):
        return None
    return replace(share, id=OWN_LIMIT) if isinstance(share.limit_bytes, int) else None


def with_own_limit(found: Snapshot, own: Share | None, is_contained: bool) -> Snapshot:
    """Return the machine as this process can use it: within its own limit, and not within another container's.

    `own`: `read_own_share`. `is_contained`: this process is in a container. The container that a daemon is in may
    be another one than this process's. It is the same if the limits are equal, or, as in LXC, if none is read here.
    """
    from memwatch.core.accounting.gpu_limits import with_charged_headroom

    def binds(share: Share) -> bool:
        return is_contained if own is None else share.limit_bytes == own.limit_bytes

    shares = tuple(one for one in found.shares if one.kind is not ShareKind.CGROUP or binds(one))
    return with_charged_headroom(replace(found, shares=shares if own is None else (*shares, own)))


def as_used_here(found: Snapshot) -> Snapshot:
    """Return this machine as this process can use it. Takes about 0.3 ms."""
    roots = Roots(*read_roots(os.environ))
    return with_own_limit(found, read_own_share(roots), in_container(roots))
