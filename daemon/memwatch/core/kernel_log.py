"""Kills and errors: of the kernel's log, of services that log kills, and ends of processes that the kernel saw."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Literal

from msgspec import Struct

from memwatch.core import units
from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes
from memwatch.core.printable import shorten_ids

# Allocations that a driver could not make. NVIDIA's driver also logs them when an allocation succeeds at the second
# attempt: one at each of three starts of vLLM that worked (vllm#56824).
FAILED_ALLOCATIONS: Mapping[str, str] = {
    "nv_err_no_memory": "out of memory (NV_ERR_NO_MEMORY)",
    "no_memory": "not enough memory for a command or a buffer",
    "vm_validate_failed": "page tables that could not be brought back into memory",
    "evict_failed": "memory that could not be evicted",
    "no_eviction_space": "no space to evict a buffer to",
    "svm_limit": "a mapping beyond the driver's limit on System RAM",
}
# Errors about memory, as opposed to a faulty program or a GPU that hangs or fell off the bus (XID 79). Of NVIDIA's
# XIDs: double bit errors, page retirement and row remapping, contained and uncontained ECC errors.
ABOUT_MEMORY: Mapping[str, str] = {
    **FAILED_ALLOCATIONS,
    "no_contiguous_memory": "no contiguous memory for a buffer",
    "queue_buffer_freed": "a buffer that was freed while a queue used it",
    "vram_lost": "contents of VRAM lost in a reset",
    **{f"xid_{code}": f"XID {code}" for code in (48, 63, 64, 92, 94, 95)},
}
OTHERS: Mapping[str, str] = {
    "page_fault": "a page fault of a GPU program",
    "ring_timeout": "a ring that timed out",
    "gpu_reset": "a reset of the GPU",
    "off_the_bus": "a GPU that has fallen off the bus",
}
KNOWN = ABOUT_MEMORY.keys() | OTHERS.keys()


def shorten_cgroup(place: str) -> str:
    """Return the last part of a cgroup path, with twelve digits of a container's id.

    `/` has a limit only in a container, whose own cgroup it is.
    """
    last = place.rstrip("/").rsplit("/", 1)[-1] if place.startswith("/") else place
    return shorten_ids(last) or "this container"


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
    """A process killed by the kernel's OOM killer.

    `scope` is unknown if the line with the cause was lost.
    """

    number: Annotated[int, Doc("Sequence number since memwatchd started.")]
    pid: int
    name: str
    anonymous_bytes: Annotated[Bytes, Doc("Null if the kernel logged only the cause of the kill.")]
    scope: Annotated[KillScope, Doc("Where memory ran out.")]
    cgroup: Annotated[str, Doc("Cgroup whose limit was reached, as named by the kernel; may be empty.")] = ""
    tasks: Annotated[
        tuple[OomTask, ...], Doc("Largest processes at that time, from the table in the kernel log.")
    ] = ()
    nodes: Annotated[
        tuple[int, ...], Doc("NUMA nodes that were out of memory, if it was not the whole machine.")
    ] = ()
    limit_bytes: Annotated[Bytes, Doc("Limit of the cgroup, if the kernel logged it.")] = Absent.NOT_AVAILABLE

    @property
    def text(self) -> str:
        """Format as an event: "OOM killer: killed python3 (123), 63.8 MiB anonymous"."""
        limit = "" if isinstance(self.limit_bytes, Absent) else f" of {units.size(self.limit_bytes)}"
        why = {
            "machine": "",
            "unknown": " (the line with the cause is missing)",
            "nodes": " (its NUMA nodes were out of memory)",
            "cgroup": f" ({self.cgroup or 'its cgroup'} reached its limit{limit})",
        }
        held = "" if isinstance(self.anonymous_bytes, Absent) else f", {units.size(self.anonymous_bytes)} anonymous"
        return f"OOM killer: killed {self.name} ({self.pid}){held}{why[self.scope]}"


class DriverError(Struct, frozen=True):
    """Count of one kind of error of a driver."""

    driver: str
    pci: Annotated[str, Doc("Empty if the log line does not name the GPU.")]
    kind: str
    count: int
    last_seen_unix: float
    text: Annotated[str, Doc("Latest line of this kind.")]

    @property
    def place(self) -> str:
        """Return the PCI address, or the driver if the line has none."""
        return self.pci or self.driver


class KernelLog(Struct, frozen=True):
    """Messages of the kernel's log about memory since memwatchd started. `kills`: the latest."""

    kills: tuple[OomKill, ...] = ()
    driver_errors: tuple[DriverError, ...] = ()
    lost_total: Annotated[int, Doc("Messages overwritten before they were read.")] = 0


# `oomd_prekill`: systemd-oomd reports a kill that follows at once. `oom_report`: systemd reports that the kernel's
# OOM killer killed a process of a unit. `unit_end`: systemd reports that a unit's main process ended by a signal,
# without a cause.
KillSource = Literal[
    "systemd_oomd",
    "oomd_prekill",
    "earlyoom",
    "nohang",
    "kubelet",
    "runtime",
    "runtime_oom",
    "oom_report",
    "unit_end",
    "guardian",
]


class ServiceKill(Struct, frozen=True):
    """A kill in the log of a service. `number` counts since memwatchd started.

    `place`: the cgroup, unit, pod or container that was killed; empty if the line names a process. `text` is the
    line.
    """

    number: int
    unix: float
    source: KillSource
    text: str
    pid: int | None = None
    name: str = ""
    place: str = ""


class ProcessEnd(Struct, frozen=True):
    """End of a process that was watched. `status` is its wait status, None if the kernel does not report it."""

    pid: int
    unix: float
    status: int | None = None

    @property
    def signal_name(self) -> str | None:
        """Return the signal that ended it: "SIGKILL". None if it exited, or if that is not known."""
        number = 0 if self.status is None else self.status & 0x7F
        if not number:
            return None
        with suppress(ValueError):
            return signal.Signals(number).name
        return f"signal {number}"

    @property
    def was_killed(self) -> bool:
        return self.status is not None and self.status & 0x7F == signal.SIGKILL
