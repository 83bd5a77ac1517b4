"""JSON schema of the kernel's figures: swap, PSI, nodes, counters and its log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch_web.api.schema_base import Answer, Figures


class Swap(Figures):
    size_bytes: int
    used_bytes: int
    zswap_stored_bytes: int | None
    zswap_memory_bytes: int | None


class Zram(Figures):
    stored_bytes: int | None
    memory_bytes: int | None


class ZfsCache(Figures):
    size_bytes: int
    minimum_bytes: int


class PsiLine(Answer):
    ratio_10s: float
    ratio_60s: float
    ratio_300s: float
    total_seconds: float


class MemoryPsi(Figures):
    some: PsiLine
    full: PsiLine | None


class CgroupPressure(Answer):
    """A cgroup whose tasks stall on memory because of its limit, while the machine has enough."""

    cgroup: str
    some_ratio: float


class Node(Figures):
    id: int
    size_bytes: int | None
    available_bytes: int | None
    free_bytes: int | None
    has_cpus: bool | None
    largest_free_block_bytes: int | None
    free_large_blocks_bytes: int | None
    quality: Literal["measured", "derived", "estimated"] | None = Field(
        description="Of available_bytes: estimated if a line was left out that the others refute."
    )
    contents: dict[str, int] = Field(description="Breakdown of used memory, for a node without CPUs.")


class Tegrastats(Answer):
    largest_free_blocks: int = Field(description="Number of free blocks of the largest size.")
    largest_free_block_bytes: int = Field(description="At most 4 MiB; falls with fragmentation.")


class Kernel(Figures):
    """Counters of /proc/vmstat since boot, and memory that cannot be reclaimed."""

    oom_kills_total: int | None
    compact_fail_total: int | None = Field(description="Compactions that made no free block.")
    compact_stall_total: int | None = Field(description="Allocations that compacted memory themselves.")
    allocstall_total: int | None = Field(description="Allocations that freed memory themselves (direct reclaim).")
    pgscan_direct_total: int | None = Field(description="Pages scanned by direct reclaim.")
    pgsteal_direct_total: int | None = Field(description="Pages freed by direct reclaim.")
    workingset_refault_file_total: int | None = Field(description="Pages of files read again soon after a drop.")
    pswpin_total: int | None = Field(description="Pages read from swap.")
    pswpout_total: int | None = Field(description="Pages written to swap.")
    mlocked_bytes: int | None = Field(description="Memory locked by programs (mlock).")
    unevictable_bytes: int | None = Field(description="Memory that reclaim skips; contains the locked memory.")


class OomTask(Answer):
    pid: int
    name: str
    rss_bytes: int


class OomKill(Figures):
    number: int = Field(description="Sequence number since memwatchd started.")
    pid: int
    name: str
    anonymous_bytes: int | None = Field(description="Null if the kernel logged only the cause of the kill.")
    scope: Literal["machine", "nodes", "cgroup", "unknown"] = Field(description="Where memory ran out.")
    cgroup: str = Field(description="Cgroup whose limit was reached, as named by the kernel; may be empty.")
    tasks: list[OomTask] = Field(description="Largest processes at that time, from the table in the kernel log.")
    nodes: list[int] = Field(description="NUMA nodes that were out of memory, if it was not the whole machine.")


class DriverError(Answer):
    driver: str
    pci: str = Field(description="Empty if the log line does not name the GPU.")
    kind: str
    count: int
    last_seen_unix: float
    text: str = Field(description="Latest line of this kind.")


class KernelLog(Answer):
    """Kernel log messages about memory since memwatchd started."""

    kills: list[OomKill]
    driver_errors: list[DriverError]
    lost_total: int = Field(description="Messages overwritten before they were read.")
