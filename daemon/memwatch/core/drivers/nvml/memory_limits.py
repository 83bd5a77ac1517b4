"""Limits of cgroups on one GPU's memory, where the driver keeps them itself (its `misc` backend, R615).

Where the kernel has the dmem controller, the driver uses that, and the collector `dmem` reads the files. Reading
needs no privilege, and a MIG GPU has no such limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import Structure, byref, c_char_p, c_ulonglong
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.errors import GPU_WIDE, OTHER_FORM, Code, NvmlError, absent_reason
from memwatch.core.drivers.nvml.records import CgroupLimit
from memwatch.core.linux.cgroup_mounts import UnifiedTree, find_unified_tree
from memwatch.core.linux.dmem import UNLIMITED_BYTES, parse_regions, region_address
from memwatch.core.linux.files import Roots, SourceUnavailable, read_once
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Words

# Interval for finding limited cgroups, and for reading their use. At most this many cgroups are asked about.
FIND_SECONDS, READ_SECONDS = 30.0, 5.0
MAX_CGROUPS = 64
UNSUPPORTED = OTHER_FORM | {Code.NOT_SUPPORTED, Code.NO_PERMISSION}


class MemoryLimits(Structure):
    """nvmlGetMemoryLimits_v1_t of nvml.h 13.4. nvidia-ml-py has it since 13.615 only."""

    _fields_ = (
        ("nameSpace", c_char_p),  # in: full path of the cgroup's folder
        ("softLimit", c_ulonglong),  # 0: none
        ("hardLimit", c_ulonglong),  # NVML_DEVICE_MEMORY_LIMIT_MAX, all bits set: none
        ("currentUsed", c_ulonglong),
    )


class Answer(NamedTuple):
    soft_bytes: int
    hard_bytes: int
    used_bytes: int


def read_limits(handle: binding.Handle, folder: Path) -> Answer | None:
    """Return the limits that apply to a cgroup, None without any. The nearest limited ancestor counts."""
    limits = MemoryLimits(nameSpace=str(folder).encode())
    try:
        binding.call("nvmlDeviceGetMemoryLimits_v1", handle, byref(limits))
    except NvmlError as rejected:
        if rejected.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):  # no limit, or the cgroup was removed
            return None
        raise
    if limits.hardLimit >= UNLIMITED_BYTES:
        return None
    return Answer(limits.softLimit, limits.hardLimit, limits.currentUsed)


class LimitReader:
    """Limits on one GPU. The first call that the driver does not support is the last.

    `left_out`: cgroups with processes on the GPU that the driver was not asked about.
    """

    def __init__(self, handle: binding.Handle, pci: Words, roots: Roots, codes: dict[str, int]) -> None:
        self._handle, self._pci, self._roots, self._codes = handle, pci, roots, codes
        self._limits: tuple[CgroupLimit, ...] | Absent = Absent.NOT_AVAILABLE
        self._found_at: float | None = None
        self.left_out: int = 0
        self._read_at = 0.0

    def read(self, now: float, pids: Iterable[int], has_mig: bool) -> tuple[CgroupLimit, ...] | Absent:
        """Return the limits of memwatchd's own cgroup and those of the processes on the GPU."""
        if has_mig or self._limits is Absent.NOT_SUPPORTED:
            return Absent.NOT_SUPPORTED
        try:
            if self._found_at is None or now - self._found_at >= FIND_SECONDS:
                self._found_at = self._read_at = now
                self._limits = self._find(pids)
            elif now - self._read_at >= READ_SECONDS and not isinstance(self._limits, Absent):
                self._read_at = now
                self._limits = self._read_again(self._limits)
        except NvmlError as rejected:
            if rejected.code in GPU_WIDE:
                raise
            self._codes["memory_limits"] = rejected.code
            self._limits = Absent.NOT_SUPPORTED if rejected.code in UNSUPPORTED else absent_reason(rejected.code)
        return self._limits

    def _find(self, pids: Iterable[int]) -> tuple[CgroupLimit, ...] | Absent:
        try:
            tree = find_unified_tree(self._roots)
        except SourceUnavailable:
            return Absent.NOT_SUPPORTED
        if self._is_kernels(tree):
            return Absent.NOT_SUPPORTED
        own = tree.own_path(read_once(self._roots.procfs / "self/cgroup") or b"")
        paths = dict.fromkeys([own, *(self._cgroup_of(pid, tree) for pid in sorted(set(pids)))])
        known = [path for path in paths if path is not None]
        self.left_out = len(known[MAX_CGROUPS:])
        found: dict[str, CgroupLimit] = {}
        for path in known[:MAX_CGROUPS]:
            limited = self._climb(tree, path)
            if limited is not None:
                is_own = path == own or (limited.cgroup in found and found[limited.cgroup].own)
                found[limited.cgroup] = CgroupLimit(*_figures(limited), own=is_own)
        return tuple(found.values())

    def _is_kernels(self, tree: UnifiedTree) -> bool:
        """Return True if the kernel has this GPU's memory as a dmem region: the driver uses its limits then."""
        regions = [parse_regions(read_once(tree.folder / name)) for name in ("dmem.capacity", "dmem.current")]
        here = pci_numbers(self._pci)
        return any(pci_numbers(region_address(region)) == here for one in regions for region in one)

    def _cgroup_of(self, pid: int, tree: UnifiedTree) -> str | None:
        cgroup = read_once(self._roots.procfs / str(pid) / "cgroup")
        return None if cgroup is None else tree.own_path(cgroup)

    def _climb(self, tree: UnifiedTree, path: str) -> CgroupLimit | None:
        """Return the limit that applies to a cgroup, with the ancestor it belongs to.

        A cgroup without a limit reads as its nearest limited ancestor, so the outermost with this answer has it.
        """
        answer = read_limits(self._handle, tree.folder / path.strip("/"))
        if answer is None:
            return None
        owner = PurePosixPath(path)
        for parent in owner.parents[:-1]:
            above = read_limits(self._handle, tree.folder / str(parent).strip("/"))
            if above is None or above[:2] != answer[:2]:
                break
            owner = parent
        return CgroupLimit(str(owner), *answer)

    def _read_again(self, limits: tuple[CgroupLimit, ...]) -> tuple[CgroupLimit, ...]:
        tree = find_unified_tree(self._roots)
        answers = [(one, read_limits(self._handle, tree.folder / one.cgroup.strip("/"))) for one in limits]
        return tuple(CgroupLimit(one.cgroup, *answer, own=one.own) for one, answer in answers if answer)


def _figures(limit: CgroupLimit) -> tuple[str, int, int, int]:
    return limit.cgroup, limit.soft_bytes, limit.hard_bytes, limit.used_bytes
