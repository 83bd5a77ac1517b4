"""OOM kills and driver errors from the kernel log, since memwatchd started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from memwatch.core import units
from memwatch.core.model import Absent, Bytes

# Allocations that a driver could not make. NVIDIA's driver also logs them when an allocation succeeds at the second
# attempt: one at each of three starts of vLLM that worked (vllm#56824).
FAILED_ALLOCATIONS: Mapping[str, str] = {
    "nv_err_no_memory": "out of memory (NV_ERR_NO_MEMORY)",
    "no_memory": "not enough memory for a command submission",
    "vm_validate_failed": "page tables that could not be brought back into memory",
    "evict_failed": "memory that could not be evicted",
    "no_eviction_space": "no space to evict a buffer to",
    "svm_limit": "a mapping beyond the driver's limit on System RAM",
}
# Errors about memory, as opposed to a faulty program or a GPU that hangs or fell off the bus (XID 79). Of NVIDIA's
# XIDs: double bit errors, page retirement and row remapping, contained and uncontained ECC errors.
ABOUT_MEMORY: Mapping[str, str] = {
    **FAILED_ALLOCATIONS,
    "queue_buffer_freed": "a buffer that was freed while a queue used it",
    "vram_lost": "contents of VRAM lost in a reset",
    **{f"xid_{code}": f"XID {code}" for code in (48, 63, 64, 92, 94, 95)},
}
OTHERS: Mapping[str, str] = {
    "page_fault": "a page fault of a GPU program",
    "ring_timeout": "a ring that timed out",
    "gpu_reset": "a reset of the GPU",
}
KNOWN = ABOUT_MEMORY.keys() | OTHERS.keys()


_LONG_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")


def shorten_cgroup(place: str) -> str:
    """Return the last part of a cgroup path, with twelve digits of a container's id.

    `/` has a limit only in a container, whose own cgroup it is.
    """
    last = place.rstrip("/").rsplit("/", 1)[-1] if place.startswith("/") else place
    return _LONG_ID.sub(r"\1", last) or "this container"


def describe_kind(kind: str) -> str:
    """Describe a kind of driver error: "XID 79", "a page fault of a GPU program"."""
    return ABOUT_MEMORY.get(kind) or OTHERS.get(kind) or kind.replace("xid_", "XID ")


KillScope = Literal["machine", "nodes", "cgroup", "unknown"]


class OomTask(Struct, frozen=True):
    """A process in the table that the kernel logs before a kill."""

    pid: int
    name: str
    rss_bytes: int


class OomKill(Struct, frozen=True):
    """A process killed by the kernel's OOM killer. `number` counts kills since memwatchd started.

    `scope`: where memory ran out: the machine, the NUMA nodes `nodes`, or the limit of `cgroup`; unknown if the
    line with the cause was lost. `tasks`: the largest processes at that time.
    """

    number: int
    pid: int
    name: str
    anonymous_bytes: Bytes
    scope: KillScope
    cgroup: str = ""
    tasks: tuple[OomTask, ...] = ()
    nodes: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Format as an event: "OOM killer: killed python3 (123), 63.8 MiB"."""
        why = {
            "machine": "",
            "unknown": " (the line with the cause is missing)",
            "nodes": " (its NUMA nodes were out of memory)",
            "cgroup": f" (limit of {self.cgroup or 'its cgroup'} reached)",
        }
        held = "" if isinstance(self.anonymous_bytes, Absent) else f", {units.size(self.anonymous_bytes)}"
        return f"OOM killer: killed {self.name} ({self.pid}){held}{why[self.scope]}"


class DriverError(Struct, frozen=True):
    """Count of one kind of error of a driver. `pci` is empty if its log lines do not name the GPU.

    `text` is the latest line of the log.
    """

    driver: str
    pci: str
    kind: str
    count: int
    last_seen_unix: float
    text: str

    @property
    def place(self) -> str:
        """Return the PCI address, or the driver if the line has none."""
        return self.pci or self.driver


class KernelLog(Struct, frozen=True):
    """State since memwatchd started. `kills`: the latest. `lost_total`: messages overwritten unread."""

    kills: tuple[OomKill, ...] = ()
    driver_errors: tuple[DriverError, ...] = ()
    lost_total: int = 0
