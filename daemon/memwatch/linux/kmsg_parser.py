"""Parser of kernel log lines about OOM kills and GPU driver errors. Not a collector.

All functions are pure. `KernelLogTracker` accumulates their results.
"""

from __future__ import annotations

import mmap
import re
from collections import deque
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.kernel_log import DriverError, KernelLog, OomKill, OomTask
from memwatch.printable import decode

MAX_KILLS = 16
# Processes that are kept of the table before a kill.
MAX_TASKS = 10
# Limit on the number of distinct errors, one per GPU and kind. Further ones are ignored.
MAX_ERRORS = 256
MAX_TEXT_LENGTH = 200

# Prefilter: only lines that match are parsed, a few of 100,000.
_WORTH = re.compile(rb"NVRM|amdgpu|\[TTM\]|oom-kill:|[Kk]ill(?:ed)? process|Tasks state|^\[ *\d{1,10}\] ")

# mm/oom_kill.c. Since Linux 5.0 a line `oom-kill:` has the cause, before it "Kill process … or sacrifice child".
# Names of programs and cgroups may contain anything except a newline, so the text after them marks their end.
# Start and end are matched separately: a single pattern took 30 s for a line of 8 kB full of `,oom_memcg=`.
_CAUSE = re.compile(rb"oom-kill:constraint=CONSTRAINT_(\w{1,20}),")
_CAUSE_END = re.compile(rb",pid=(\d{1,10}),uid=\d{1,10}$")
_VICTIM = re.compile(rb"Killed process (\d{1,10}),? \(")
_VICTIM_END = re.compile(rb"\),? (?:UID \d{1,10},? )?total-vm:\d{1,15}kB, anon-rss:(\d{1,15})kB")
_BY_LIMIT = b"Memory cgroup out of memory: "
_OLD_CAUSE = re.compile(rb"Memory cgroup out of memory: Kill process (\d{1,10}) \(")

# mm/oom_kill.c, dump_tasks(): `[   3921]  1000  3921  9876543  5580123 … 0 vllm`. The columns after `rss` differ by
# version; the last one before the name is oom_score_adj.
_TABLE = b"Tasks state (memory values in pages)"
_TASK = re.compile(rb"^\[ *(\d{1,10})\] +\d{1,10} +(\d{1,10}) +\d{1,12} +(\d{1,12})(?: +-?\d{1,15}){3,7} +(\S.*)$")

_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]*\): (\d{1,4}),")
_NO_MEMORY = re.compile(rb"\bNV_ERR_NO_MEMORY\b")
_PCI = re.compile(rb"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_FAULT_OF = re.compile(rb"amdgpu: +Process (.{1,64}?) pid (\d{1,10}) thread")
_AMD = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (rb"Not enough memory for command submission", "no_memory"),
        (rb"amdgpu_vm_validate(?:_pt_bos)?\(\) failed", "vm_validate_failed"),
        (rb"\[(?:gfxhub|mmhub)\d*\].*page fault \(src_id", "page_fault"),
        (rb"ring \S+ timeout", "ring_timeout"),
        (rb"GPU reset begin", "gpu_reset"),
        (rb"VRAM is lost due to GPU reset", "vram_lost"),
        (rb"Failed to evict (?:process )?queue|evicting device resources failed", "evict_failed"),
        (rb"Freeing queue vital buffer", "queue_buffer_freed"),
        (rb"Failed to find memory space for buffer .*eviction", "no_eviction_space"),
    )
)


class KmsgRecord(NamedTuple):
    """A record of /dev/kmsg. `facility` 0 is the kernel. Any other was written by a program."""

    facility: int
    sequence: int
    text: bytes


def parse_record(line: bytes) -> KmsgRecord | None:
    """Parse a record such as `3,718,23548522484,-;Killed process …`. None for continuation lines and others."""
    head, semicolon, text = line.rstrip(b"\n").partition(b";")
    parts = head.split(b",")
    if not semicolon or len(parts) < 3 or not all(part.isdigit() and len(part) <= 20 for part in parts[:3]):
        return None
    return KmsgRecord(int(parts[0]) >> 3, int(parts[1]), text)


def may_matter(line: bytes) -> bool:
    return _WORTH.search(line) is not None


class DriverMessage(NamedTuple):
    """An error logged by a GPU driver."""

    driver: str
    pci: str
    kind: str


def parse_driver_message(text: bytes) -> DriverMessage | None:
    """Parse an error about memory logged by NVIDIA's or AMD's driver. None for any other line."""
    if b"NVRM" in text:
        xid = _XID.search(text)
        if xid:
            return DriverMessage("nvidia", xid[1].decode().lower(), f"xid_{int(xid[2])}")
        no_memory = _NO_MEMORY.search(text, text.index(b"NVRM"))
        return DriverMessage("nvidia", "", "nv_err_no_memory") if no_memory else None
    if b"amdgpu" in text or b"[TTM]" in text:
        kind = next((kind for pattern, kind in _AMD if pattern.search(text)), None)
        pci = _PCI.search(text)
        return DriverMessage("amdgpu", pci[1].decode() if pci else "", kind) if kind else None
    return None


class OomCause(Struct, frozen=True):
    """Cause of an imminent OOM kill of process `pid`."""

    pid: int
    scope: Literal["machine", "nodes", "cgroup"]
    cgroup: str = ""


def parse_oom_cause(text: bytes) -> OomCause | None:
    found, end = _CAUSE.search(text), _CAUSE_END.search(text)
    task = text.rfind(b",task=", found.end() - 1, end.start()) if found and end else -1
    if found and end and task >= 0:
        constraint, pid = found[1], int(end[1])
        if constraint == b"MEMCG":
            return OomCause(pid, "cgroup", words(_parse_cgroup(text[found.end() - 1 : task])))
        return OomCause(pid, "machine" if constraint == b"NONE" else "nodes")
    old = _OLD_CAUSE.search(text)
    return OomCause(int(old[1]), "cgroup") if old else None


def _parse_cgroup(text: bytes) -> bytes:
    """Return the cgroup whose limit was reached. Empty on older kernels."""
    _, _, rest = text.partition(b",oom_memcg=")
    return rest.rpartition(b",task_memcg=")[0]


def parse_victim(text: bytes, cause: OomCause | None, number: int) -> OomKill | None:
    """Parse an OOM kill. `cause` is from an earlier line and is used if it concerns the same process."""
    found = _VICTIM.search(text)
    ends = list(_VICTIM_END.finditer(text, found.end())) if found else []
    if found is None or not ends:
        return None
    pid, name = int(found[1]), text[found.end() : ends[-1].start()]
    if cause is None or cause.pid != pid:
        cause = OomCause(pid, "cgroup" if text.endswith(_BY_LIMIT, 0, found.start()) else "machine")
    return OomKill(number, pid, words(name), int(ends[-1][1]) << 10, cause.scope, cause.cgroup)


def parse_task(text: bytes, page_size: int = mmap.PAGESIZE) -> OomTask | None:
    """Parse a row of the table of tasks. None for a thread, and for any other line."""
    found = _TASK.match(text)
    if found is None or found[1] != found[2]:
        return None
    return OomTask(int(found[1]), words(found[4]), int(found[3]) * page_size)


def words(text: bytes) -> str:
    return decode(text[:MAX_TEXT_LENGTH])


class KernelLogTracker:
    """Accumulator of parsed lines. `read` adds one line, `log` is the current result."""

    def __init__(self) -> None:
        self.log: KernelLog = KernelLog()
        self._kills: deque[OomKill] = deque(maxlen=MAX_KILLS)
        self._errors: dict[DriverMessage, DriverError] = {}
        self._cause: OomCause | None = None
        self._fault: DriverMessage | None = None
        self._killed = 0
        self._tasks: list[OomTask] | None = None

    def read(self, text: bytes, unix: float) -> None:
        """Add one line from the kernel, read at Unix time `unix`."""
        if text.startswith(_TABLE):
            self._tasks = []
        elif self._tasks is not None and (task := parse_task(text)) is not None:
            self._tasks = sorted([*self._tasks, task], key=lambda one: -one.rss_bytes)[:MAX_TASKS]
            return
        cause = parse_oom_cause(text)
        victim = parse_victim(text, self._cause, self._killed + 1)
        complaint = parse_driver_message(text)
        if cause:
            self._cause = cause
        elif victim:
            self._killed += 1
            self._kills.append(replace(victim, tasks=tuple(self._tasks or ())))
            self._tasks = None
            self.log = replace(self.log, kills=tuple(self._kills))
        elif complaint:
            self._note(complaint, words(text), unix)
        elif self._fault:
            self._name_faulting_process(text)

    def count_lost(self, messages: int) -> None:
        self.log = replace(self.log, lost_total=self.log.lost_total + messages)

    def _note(self, complaint: DriverMessage, text: str, unix: float) -> None:
        before = self._errors.get(complaint)
        if before is None and len(self._errors) >= MAX_ERRORS:
            return
        self._fault = complaint if complaint.kind == "page_fault" else None
        count = before.count + 1 if before else 1
        self._errors[complaint] = DriverError(*complaint, count, unix, text)
        self.log = replace(self.log, driver_errors=tuple(self._errors.values()))

    def _name_faulting_process(self, text: bytes) -> None:
        """Add the process to a page fault. amdgpu logs it in the line after the fault."""
        found = _FAULT_OF.search(text)
        if found and self._fault:
            error = self._errors[self._fault]
            by = f"{error.text} by {words(found[1])} (pid {int(found[2])})"
            self._errors[self._fault] = replace(error, text=by)
            self.log = replace(self.log, driver_errors=tuple(self._errors.values()))
            self._fault = None
