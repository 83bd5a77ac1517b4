"""The lines of the kernel's log that speak of memory. Pure rules but for one notebook. Not a collector."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.kernel_log import DriverError, KernelLog, OomKill

KEPT_KILLS = 16
# GPUs times kinds of complaints: what a kernel would have to make up to be more than that is not noted.
MOST_ERRORS = 256
MOST_TEXT = 200

# Of a hundred thousand lines, the few that are looked at more closely.
_WORTH = re.compile(rb"NVRM|amdgpu|\[TTM\]|oom-kill:|[Kk]ill(?:ed)? process")

# mm/oom_kill.c. Since Linux 5.0 a line `oom-kill:` says why; before, "Kill process … or sacrifice child" does.
# Names of programs and of cgroups may hold anything but a newline, so what follows them decides where they end.
# Beginning and end are looked for apart: one pattern for all took 30 s for a line of 8 kB full of `,oom_memcg=`.
_CAUSE = re.compile(rb"oom-kill:constraint=CONSTRAINT_(\w{1,20}),")
_CAUSE_END = re.compile(rb",pid=(\d{1,10}),uid=\d{1,10}$")
_VICTIM = re.compile(rb"Killed process (\d{1,10}),? \(")
_VICTIM_END = re.compile(rb"\),? (?:UID \d{1,10},? )?total-vm:\d{1,15}kB, anon-rss:(\d{1,15})kB")
_BY_LIMIT = b"Memory cgroup out of memory: "
_OLD_CAUSE = re.compile(rb"Memory cgroup out of memory: Kill process (\d{1,10}) \(")

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


class Record(NamedTuple):
    """A record of /dev/kmsg. `facility` 0 is the kernel; everything else was written by a program."""

    facility: int
    sequence: int
    text: bytes


def parse_record(line: bytes) -> Record | None:
    """`3,718,23548522484,-;Killed process …`; None for what is none, such as a record's further lines."""
    head, semicolon, text = line.rstrip(b"\n").partition(b";")
    parts = head.split(b",")
    if not semicolon or len(parts) < 3 or not all(part.isdigit() and len(part) <= 20 for part in parts[:3]):
        return None
    return Record(int(parts[0]) >> 3, int(parts[1]), text)


def worth_a_look(line: bytes) -> bool:
    return _WORTH.search(line) is not None


class Complaint(NamedTuple):
    """What a driver said."""

    driver: str
    pci: str
    kind: str


def complaint_of(text: bytes) -> Complaint | None:
    """NVIDIA's and AMD's lines about memory, by kind; None for anything else."""
    if b"NVRM" in text:
        xid = _XID.search(text)
        if xid:
            return Complaint("nvidia", xid[1].decode().lower(), f"xid_{int(xid[2])}")
        no_memory = _NO_MEMORY.search(text, text.index(b"NVRM"))
        return Complaint("nvidia", "", "nv_err_no_memory") if no_memory else None
    if b"amdgpu" in text or b"[TTM]" in text:
        kind = next((kind for pattern, kind in _AMD if pattern.search(text)), None)
        pci = _PCI.search(text)
        return Complaint("amdgpu", pci[1].decode() if pci else "", kind) if kind else None
    return None


class Cause(Struct, frozen=True):
    """Why the kernel is about to kill process `pid`."""

    pid: int
    scope: Literal["machine", "nodes", "cgroup"]
    cgroup: str = ""


def cause_of(text: bytes) -> Cause | None:
    found, end = _CAUSE.search(text), _CAUSE_END.search(text)
    task = text.rfind(b",task=", found.end() - 1, end.start()) if found and end else -1
    if found and end and task >= 0:
        constraint, pid = found[1], int(end[1])
        if constraint == b"MEMCG":
            return Cause(pid, "cgroup", words(_group_in(text[found.end() - 1 : task])))
        return Cause(pid, "machine" if constraint == b"NONE" else "nodes")
    old = _OLD_CAUSE.search(text)
    return Cause(int(old[1]), "cgroup") if old else None


def _group_in(text: bytes) -> bytes:
    """The cgroup whose limit it was; older kernels do not say."""
    _, _, rest = text.partition(b",oom_memcg=")
    return rest.rpartition(b",task_memcg=")[0]


def victim_of(text: bytes, cause: Cause | None, number: int) -> OomKill | None:
    """Who was killed; the cause is of a line before, if that was about the same process."""
    found = _VICTIM.search(text)
    ends = list(_VICTIM_END.finditer(text, found.end())) if found else []
    if found is None or not ends:
        return None
    pid, name = int(found[1]), text[found.end() : ends[-1].start()]
    if cause is None or cause.pid != pid:
        cause = Cause(pid, "cgroup" if text.endswith(_BY_LIMIT, 0, found.start()) else "machine")
    return OomKill(number, pid, words(name), int(ends[-1][1]) << 10, cause.scope, cause.cgroup)


def words(text: bytes) -> str:
    return text[:MOST_TEXT].decode("utf-8", "backslashreplace")


class Notebook:
    """What the lines so far add up to. `read` takes them one by one, `log` is the sum."""

    def __init__(self) -> None:
        self.log = KernelLog()
        self._kills: deque[OomKill] = deque(maxlen=KEPT_KILLS)
        self._errors: dict[Complaint, DriverError] = {}
        self._cause: Cause | None = None
        self._fault: Complaint | None = None
        self._killed = 0

    def read(self, text: bytes, unix: float) -> None:
        """One line of the kernel's, seen at wall clock time `unix`."""
        cause = cause_of(text)
        victim = victim_of(text, self._cause, self._killed + 1)
        complaint = complaint_of(text)
        if cause:
            self._cause = cause
        elif victim:
            self._killed += 1
            self._kills.append(victim)
            self.log = replace(self.log, kills=tuple(self._kills))
        elif complaint:
            self._note(complaint, words(text), unix)
        elif self._fault:
            self._name_the_faulty(text)

    def lose(self, messages: int) -> None:
        self.log = replace(self.log, lost_total=self.log.lost_total + messages)

    def _note(self, complaint: Complaint, text: str, unix: float) -> None:
        before = self._errors.get(complaint)
        if before is None and len(self._errors) >= MOST_ERRORS:
            return
        self._fault = complaint if complaint.kind == "page_fault" else None
        count = before.count + 1 if before else 1
        self._errors[complaint] = DriverError(*complaint, count, unix, text)
        self.log = replace(self.log, driver_errors=tuple(self._errors.values()))

    def _name_the_faulty(self, text: bytes) -> None:
        """amdgpu says whose fault a page fault was in the line after it."""
        found = _FAULT_OF.search(text)
        if found and self._fault:
            error = self._errors[self._fault]
            by = f"{error.text} by {words(found[1])} (pid {int(found[2])})"
            self._errors[self._fault] = replace(error, text=by)
            self.log = replace(self.log, driver_errors=tuple(self._errors.values()))
            self._fault = None
