"""Examination of a machine: the PCI bus, the latest snapshot, installed versions, lines of /proc/meminfo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memwatch.build_info import REVISION, __version__
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.listing import some_of
from memwatch.core.options import ConfigState
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.reporting.answers import Check, Examination, Verdict
from memwatch.reporting.doctor.checks import (
    MachineNames,
    check_config,
    check_deliveries,
    check_locked_memory,
    check_names,
    find_unseen_gpus,
    run_checks,
)
from memwatch.reporting.doctor.versions import find_known_issues, read_versions


class Examiner:
    """Runs all checks. Each run reads a few small files; nothing runs on a tick."""

    def __init__(
        self,
        roots: Roots,
        lock_error: Callable[[], str | None] = lambda: None,
        config: Callable[[], ConfigState] = ConfigState,
        failed_deliveries: Callable[[], Sequence[str]] = tuple,
        names: Callable[[], MachineNames | None] = lambda: None,
    ) -> None:
        """`lock_error`: the reason why the daemon could not lock its memory; a command locks none.

        `config`: state of the daemon's configuration. `failed_deliveries`: a sentence for each failing receiver.
        `names`: those of the machine for Prometheus, None if there is nothing to compare.
        """
        self._roots = roots
        self._lock_error = lock_error
        self._config = config
        self._failed_deliveries = failed_deliveries
        self._names = names

    def examine(self, snapshot: Snapshot) -> Examination:
        unseen = find_unseen_gpus(self._roots, snapshot)
        locked = check_locked_memory(self._lock_error())
        issues = find_known_issues(read_versions(self._roots))
        lines = check_meminfo_lines(self._roots.procfs)
        config = check_config(self._config())
        deliveries = check_deliveries(self._failed_deliveries())
        alerts = (*deliveries, *check_names(self._names()))
        checks = (*config, *unseen, *run_checks(snapshot), *alerts, *locked, *issues, *lines)
        return Examination(checks, __version__, REVISION)


MAX_NAMED = 8
_LINE = re.compile(rb"^([A-Za-z][\w()]{0,39}): +(\d{1,15})(?: kB)?\n", re.MULTILINE)
# Part of free memory in CMA from which on it is mentioned.
MIN_CMA_RATIO = 0.5
# Lines up to Linux 6.17, and those of NVIDIA's and Android's kernels.
KNOWN = frozenset(
    (
        *(
            "MemTotal",
            "MemFree",
            "MemAvailable",
            "MemShared",
            "Buffers",
            "Cached",
            "SwapCached",
            "Active",
            "Inactive",
        ),
        *("Active(anon)", "Inactive(anon)", "Active(file)", "Inactive(file)", "Unevictable", "Mlocked"),
        *("HighTotal", "HighFree", "LowTotal", "LowFree", "MmapCopy", "SwapTotal", "SwapFree", "Zswap", "Zswapped"),
        *(
            "Dirty",
            "Writeback",
            "AnonPages",
            "Mapped",
            "Shmem",
            "KReclaimable",
            "Slab",
            "SReclaimable",
            "SUnreclaim",
        ),
        *(
            "KernelStack",
            "ShadowCallStack",
            "PageTables",
            "SecPageTables",
            "NFS_Unstable",
            "Bounce",
            "WritebackTmp",
        ),
        *(
            "CommitLimit",
            "Committed_AS",
            "VmallocTotal",
            "VmallocUsed",
            "VmallocChunk",
            "Percpu",
            "EarlyMemtestBad",
        ),
        *(
            "HardwareCorrupted",
            "AnonHugePages",
            "ShmemHugePages",
            "ShmemPmdMapped",
            "FileHugePages",
            "FilePmdMapped",
        ),
        *("CmaTotal", "CmaFree", "Unaccepted", "Balloon", "GPUActive", "GPUReclaim", "Quicklists"),
        *("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp", "Hugepagesize", "Hugetlb"),
        *("NvMapMemFree", "NvMapMemUsed"),
    )
)
_DIRECT_MAP = re.compile(r"DirectMap\d{1,4}[kMG]")


def check_meminfo_lines(procfs: Path) -> Iterator[Check]:
    """Yield hints about lines that are not known here, and about memory that programs do not get."""
    found = {key.decode(): int(kib) << 10 for key, kib in _LINE.findall(read_once(procfs / "meminfo") or b"")}
    unknown = [name for name in found if name not in KNOWN and not _DIRECT_MAP.fullmatch(name)]
    if unknown:
        count = "1 line" if len(unknown) == 1 else f"{len(unknown)} lines"
        verb = "is" if len(unknown) == 1 else "are"
        text = f"{count} of meminfo {verb} not known to this version: {some_of(unknown, MAX_NAMED)}"
        yield Check("meminfo.unknown", Verdict.HINT, text, "update memwatchd; System RAM does not depend on them")
    if balloon := found.get("Balloon"):
        yield Check("meminfo.balloon", Verdict.HINT, f"a hypervisor has taken back {size(balloon)} (Balloon)")
    free, cma = found.get("MemFree", 0), found.get("CmaFree", 0)
    if cma and cma >= MIN_CMA_RATIO * free:
        text = f"{size(cma)} of {size(free)} free memory is CMA: the kernel and pinned buffers cannot use it"
        yield Check("meminfo.cma", Verdict.HINT, text)
