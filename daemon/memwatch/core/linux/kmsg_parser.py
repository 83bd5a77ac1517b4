"""Kernel log lines about OOM kills and GPU driver errors, and crash records that the kernel kept. Not a collector.

The parsers are pure. `KernelLogTracker` accumulates their results.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.budget import ROOT, Account, Held, next_to_go
from memwatch.core.kernel_log import DriverError, KernelLog, KillScope, OomKill, OomTask
from memwatch.core.linux.cgroup_mounts import UNLIMITED_BYTES
from memwatch.core.linux.files import Roots
from memwatch.core.listing import first_of
from memwatch.core.model import Absent, Bytes, known_or
from memwatch.core.printable import decode
from memwatch.core.runtime.regular_file import read_regular

MAX_KILLS = 16
# Processes that are kept of the table before a kill.
MAX_TASKS = 10
# Limit on the number of distinct errors, one per GPU and kind. Further ones are counted only.
MAX_ERRORS = 256
MAX_TEXT_LENGTH = 200
WSL_DRIVER = "dxgkrnl"

# Prefilter: only lines that match are parsed, a few of 100,000.
_WORTH = re.compile(
    rb"NVRM|\[nvidia-drm\]|nvgpu: .* FAILED: |[Ff]ailed to allocate|[ (=]-12\b|alloc failed, req-size"
    rb"|amdgpu|\[TTM\]|VRAM is lost|dxgk: .*: -12"
    rb"|oom-kill:|[Kk]ill(?:ed)? process"
    rb"|Tasks state|^Tasks? in /|^Memory limit reached of cgroup /|^memory: usage |^\[ *\d{1,10}\] "
)

# mm/oom_kill.c. Since Linux 5.0 a line `oom-kill:` has the cause, before it "Kill process … or sacrifice child".
# Names of programs and cgroups may contain anything except a newline, so the text after them marks their end.
# Start and end are matched separately: a single pattern took 30 s for a line of 8 kB full of `,oom_memcg=`.
_CAUSE = re.compile(rb"oom-kill:constraint=CONSTRAINT_(\w{1,20}),")
_CAUSE_END = re.compile(rb",pid=(\d{1,10}),uid=\d{1,10}$")
# Kernels of RHEL 6 have the user before the name, and `vsz` for `total-vm`.
_VICTIM = re.compile(rb"Killed process (\d{1,10}),? (?:UID \d{1,10}, )?\(")
_VICTIM_END = re.compile(rb"\),? (?:UID \d{1,10},? )?(?:total-vm|vsz):\d{1,15}kB, anon-rss:(\d{1,15})kB")
_BY_LIMIT = b"Memory cgroup out of memory: "
_OLD_CAUSE = re.compile(rb"(Memory cgroup o|O)ut of memory(?: \([^)]{1,40}\))?: Kill process (\d{1,10}) \(")
# Before Linux 5.0 an earlier line names the cgroup at its limit, with its task or alone. It may be left out.
_AT_LIMIT = (b" killed as a result of limit of ", b"Memory limit reached of cgroup ")
_OF_MACHINE = re.compile(rb"Out of memory(?: \([^)]{1,40}\))?: $")
# The other processes of a group with memory.oom.group follow, each with a line of its victim.
_GROUP = re.compile(rb"^Tasks in (/.*) are going to be killed due to memory\.oom\.group set$")
# mm/memcontrol.c, in the report before the cause, in all versions: usage and limit of the cgroup at its limit.
_LIMIT = re.compile(rb"^memory: usage \d{1,17}kB, limit (\d{1,17})kB, failcnt ")
_NODES = re.compile(rb"(\d{1,4})(?:-(\d{1,4}))?")
# A line with a cause is followed by that of its victim within a millisecond. Some kernels write none.
ALONE_SECONDS = 1.0
MAX_NODE = 1023

# mm/oom_kill.c, dump_tasks(): `[   3921]  1000  3921  9876543  5580123 … 0 vllm`. The columns after `rss` differ by
# version; the last one before the name is oom_score_adj.
_TABLE = b"Tasks state (memory values in pages)"
_TASK = re.compile(rb"^\[ *(\d{1,10})\] +\d{1,10} +(\d{1,10}) +\d{1,12} +(\d{1,12})(?: +-?\d{1,15}){3,7} +(\S.*)$")

# Drivers before 319 have no "PCI:".
_XID = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]*\): (\d{1,4}),")
_NO_MEMORY = re.compile(rb"\bNV_ERR_NO_MEMORY\b")
# The part of NVIDIA's driver for displays: VRAM is full for a window or a game. It names a GPU by its domain in 16
# bits, its bus and its device (NVIDIA/open-gpu-kernel-modules#1078). Domains above 0 have another form on some.
_NVIDIA_DRM = re.compile(
    rb"\[nvidia-drm\] \[GPU ID 0x([0-9a-f]{8})\] Failed to allocate NVKMS (?:video )?memory for GEM object"
)
# A lost GPU without an XID: as the driver starts, or beside the XID of the same loss (NVSentinel #155, gpud #1209).
_OFF_THE_BUS = b"fallen off the bus"
_NVIDIA_PCI = re.compile(rb"\b([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.[0-7]\b")
# WSL's driver, for GPUs of all makers: ENOMEM, such as of dxgkio_make_resident while programs see free memory
# (microsoft/WSL#41176). It logs other numbers at each start.
_WSL_NO_MEMORY = re.compile(rb"\bdxgk: dxgkio_\w{1,60}: Ioctl failed: -12$")
# Jetson's GPU driver, nvgpu_dma_print_err of its linux/dma.c. Its memory is System RAM; a failure in vidmem is
# followed by an attempt there. A block with physical addresses is contiguous: the machine may have free memory, but
# not in one piece, as in OE4T/meta-tegra#1613, where the CMA area was too small.
_NVGPU = re.compile(rb"\bnvgpu: \S+ .*DMA alloc FAILED: \[sysmem\] (?:.*flags:(.*))?")
_CONTIGUOUS = b"PHYSICALLY_ADDRESSED"
# Other drivers by DRM: -12 is ENOMEM, as in xe_vm.c when buffers of a program could not be brought back for its
# next command. That of the Raspberry Pi needs contiguous memory (anholt/linux#23), which CMA lacks.
_DRM_NO_MEMORY = re.compile(
    rb"\b(i915|xe|radeon|nouveau|vc4|v3d|panfrost|panthor|lima|msm|etnaviv)(?:[ :_\]-]).*?"
    rb"(?:failed to allocate (?:buffer|memory|GEM|from CMA|VRAM|pages?|BO|heap|object)\b"
    rb"|(?:failed|error)\b.*[ (=]-12\b)",
    re.IGNORECASE,
)
_CMA_FULL = re.compile(rb"^cma: .*\balloc failed, req-size: \d{1,12} pages, ret: -\d")
CMA, CONTIGUOUS_DRIVERS = "cma", frozenset({"vc4"})
OFF_THE_BUS, XID_OFF_THE_BUS = "off_the_bus", "xid_79"
# The driver logs both lines of one loss at once.
SAME_LOSS_SECONDS = 10.0
# Many kernels do not name the driver in this line of amdgpu (xCollateral/VulkanMod#213).
_VRAM_LOST = b"[drm] VRAM is lost due to GPU reset!"
_PCI = re.compile(rb"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_FAULT_OF = re.compile(rb"amdgpu: +Process (.{1,64}?) pid (\d{1,10}) thread")
_AMD = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (rb"Not enough memory for command submission", "no_memory"),
        # ENOMEM of any of its functions: buffers of a program, of the driver itself, or pages of System RAM.
        (rb"(?:[Ff]ailed|ERROR).*[ (]-12\b|\(-12\) failed", "no_memory"),
        (rb"amdgpu_vm_validate(?:_pt_bos)?\(\) failed", "vm_validate_failed"),
        (rb"\[(?:gfxhub|mmhub)\d*\].*page fault \(src_id", "page_fault"),
        # GPUs before Vega, such as an RX 580 (Lucretia/vulkan-overlay#31).
        (rb"VM fault \(0x[0-9a-f]{2}, vmid \d", "page_fault"),
        (rb"ring \S+ timeout", "ring_timeout"),
        (rb"GPU reset begin", "gpu_reset"),
        (rb"VRAM is lost due to GPU reset", "vram_lost"),
        (
            rb"Failed to evict (?:process )?queue|evicting device resources failed|Buffer eviction failed",
            "evict_failed",
        ),
        # kfd_svm.c; seen as large models are loaded (ROCm/legacy-rocm-build#6582, #5952).
        (rb"SVM mapping failed, exceeds resident system memory limit", "svm_limit"),
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
    """Parse an error about memory logged by a GPU's driver, or by the kernel's CMA. None for any other line."""
    if b"NVRM" in text:
        xid = _XID.search(text)
        if xid:
            return DriverMessage("nvidia", xid[1].decode().lower(), f"xid_{int(xid[2])}")
        if _OFF_THE_BUS in text:
            address = _NVIDIA_PCI.search(text, text.index(b"NVRM"))
            return DriverMessage("nvidia", address[1].decode().lower() if address else "", OFF_THE_BUS)
        no_memory = _NO_MEMORY.search(text, text.index(b"NVRM"))
        return DriverMessage("nvidia", "", "nv_err_no_memory") if no_memory else None
    if b"[nvidia-drm]" in text:
        found = _NVIDIA_DRM.search(text)
        return DriverMessage("nvidia", _parse_gpu_id(int(found[1], 16)), "no_memory") if found else None
    if b"amdgpu" in text or b"[TTM]" in text or text == _VRAM_LOST:
        kind = next((kind for pattern, kind in _AMD if pattern.search(text)), None)
        pci = _PCI.search(text)
        return DriverMessage("amdgpu", pci[1].decode() if pci else "", kind) if kind else None
    if found := _NVGPU.search(text):
        is_contiguous = _CONTIGUOUS in (found[1] or b"")
        return DriverMessage("nvidia", "", "no_contiguous_memory" if is_contiguous else "no_memory")
    if _CMA_FULL.search(text):
        return DriverMessage(CMA, "", "no_contiguous_memory")
    if found := _DRM_NO_MEMORY.search(text):
        driver, pci = found[1].decode().lower(), _PCI.search(text)
        kind = "no_contiguous_memory" if driver in CONTIGUOUS_DRIVERS else "no_memory"
        return DriverMessage(driver, pci[1].decode() if pci else "", kind)
    return DriverMessage(WSL_DRIVER, "", "no_memory") if _WSL_NO_MEMORY.search(text) else None


def _parse_gpu_id(number: int) -> str:
    """Return the address of a GPU as in lines about XIDs, empty in a domain above 0."""
    return "" if number >> 16 else f"0000:{number >> 8 & 0xFF:02x}:{number & 0xFF:02x}"


class OomCause(Struct, frozen=True):
    """Cause of an imminent OOM kill of process `pid`. `limit_bytes`: limit of the cgroup, from an earlier line.

    `or_child`: the next victim may be a child of the process, as before Linux 5.1.
    """

    pid: int
    scope: KillScope
    cgroup: str = ""
    name: str = ""
    nodes: tuple[int, ...] = ()
    limit_bytes: Bytes = Absent.NOT_AVAILABLE
    or_child: bool = False


# Names of the constraints in the kernel, include/linux/oom.h.
SCOPES: Mapping[bytes, KillScope] = {
    b"NONE": "machine",
    b"CPUSET": "nodes",
    b"MEMORY_POLICY": "nodes",
    b"MEMCG": "cgroup",
}


def parse_oom_cause(text: bytes) -> OomCause | None:
    """Parse the line before a kill. Since Linux 5.0 it has all but the size of the victim."""
    found, end = _CAUSE.search(text), _CAUSE_END.search(text)
    task = text.rfind(b",task=", found.end() - 1, end.start()) if found and end else -1
    if found and end and task >= 0:
        scope, place = SCOPES.get(found[1], "unknown"), text[found.end() - 1 : task]
        cgroup = words(_parse_cgroup(place)) if scope == "cgroup" else ""
        nodes = _parse_nodes(place, found[1]) if scope == "nodes" else ()
        return OomCause(int(end[1]), scope, cgroup, words(text[task + 6 : end.start()]), nodes)
    old = _OLD_CAUSE.search(text)
    return OomCause(int(old[2]), "cgroup" if old[1].startswith(b"M") else "machine", or_child=True) if old else None


def with_limit(cause: OomCause, cgroup: str, limit: Bytes) -> OomCause:
    """Add what earlier lines said about the cgroup at its limit."""
    return replace(cause, cgroup=cause.cgroup or cgroup, limit_bytes=limit) if cause.scope == "cgroup" else cause


def parse_at_limit(text: bytes) -> str | None:
    """Parse the line before Linux 5.0 that names the cgroup at its limit. None for any other line."""
    by_task, alone = _AT_LIMIT
    if text.startswith(b"Task in /"):
        _, found, cgroup = text.rpartition(by_task)
    else:
        before, found, cgroup = text.partition(alone)
        found = b"" if before else found
    return words(cgroup) if found and cgroup.startswith(b"/") else None


def _parse_nodes(text: bytes, constraint: bytes) -> tuple[int, ...]:
    """Return the allowed NUMA nodes, such as `0-1,4`: those of the policy, or those of the cpuset.

    The cpuset's name comes between the two lists, and may contain anything.
    """
    key = b",mems_allowed=" if constraint == b"CPUSET" else b",nodemask="
    at = text.rfind(key) if constraint == b"CPUSET" else text.find(key)
    nodes: list[int] = []
    for part in text[at + len(key) :].split(b",") if at >= 0 else ():
        found = _NODES.fullmatch(part)
        if found is None:
            break
        first, last = int(found[1]), int(found[2] or found[1])
        nodes += range(first, min(last, MAX_NODE) + 1)
    return tuple(dict.fromkeys(nodes[: MAX_NODE + 1]))


def _parse_cgroup(text: bytes) -> bytes:
    """Return the cgroup whose limit was reached. Empty on older kernels.

    The name of a cpuset comes before it and may contain anything but a slash, with which a path begins.
    """
    _, found, rest = text.partition(b",oom_memcg=/")
    return b"/" + rest.rpartition(b",task_memcg=")[0] if found else b""


def parse_victim(text: bytes, cause: OomCause | None, number: int) -> OomKill | None:
    """Parse an OOM kill. `cause` is from an earlier line and is used if it concerns the process or its child."""
    found = _VICTIM.search(text)
    ends = list(_VICTIM_END.finditer(text, found.end())) if found else []
    if found is None or not ends:
        return None
    pid, name = int(found[1]), text[found.end() : ends[-1].start()]
    if cause is None or not (cause.or_child or cause.pid == pid):
        cause = OomCause(pid, _scope_before(text[: found.start()]))
    held = int(ends[-1][1]) << 10
    return build_kill(number, words(name), held, replace(cause, pid=pid))


def build_kill(number: int, name: str, held: Bytes, cause: OomCause) -> OomKill:
    return OomKill(
        number, cause.pid, name, held, cause.scope, cause.cgroup, nodes=cause.nodes, limit_bytes=cause.limit_bytes
    )


def parse_limit(text: bytes) -> Bytes | None:
    """Parse the limit of a cgroup. Absent if it has none: then swap was limited. None for any other line."""
    found = _LIMIT.match(text)
    if found is None:
        return None
    limit = int(found[1]) << 10
    return limit if limit < UNLIMITED_BYTES else Absent.NOT_AVAILABLE


def _scope_before(text: bytes) -> KillScope:
    """Return the scope by the words before a victim. Before Linux 5.3 there are none."""
    if text.endswith(_BY_LIMIT):
        return "cgroup"
    return "machine" if _OF_MACHINE.search(text) else "unknown"


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

    def __init__(self, account_of: Callable[[str], Account] = Account) -> None:
        """`account_of` a cgroup. Of more than MAX_KILLS kills, the account with the most loses its smallest."""
        self.log: KernelLog = KernelLog()
        self._account_of = account_of
        self._kills: list[OomKill] = []
        self._errors: dict[DriverMessage, DriverError] = {}
        self.left_out: int = 0
        self._cause: OomCause | None = None
        self._alone: tuple[OomCause, float] | None = None
        self._limit: Bytes = Absent.NOT_AVAILABLE
        self._at_limit = ""
        self._group = ""
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
        limit = parse_limit(text)
        at_limit = parse_at_limit(text)
        if limit is not None or at_limit is not None:
            self._limit = self._limit if limit is None else limit
            self._at_limit = at_limit or self._at_limit
            return
        cause = parse_oom_cause(text)
        victim = parse_victim(text, self._cause, self._killed + 1)
        complaint, group = parse_driver_message(text), _GROUP.match(text)
        if cause:
            self._set_cause(cause, unix)
        elif victim:
            self._add_victim(victim)
        elif group:
            self._group = words(group[1])
        elif complaint and not self._repeats_xid(complaint, unix):
            self._note(complaint, words(text), unix)
        elif self._fault:
            self._name_faulting_process(text)

    def _set_cause(self, cause: OomCause, unix: float) -> None:
        if self._alone is not None and cause.or_child and self._alone[0].pid == cause.pid:
            # Linux 5.0 logs a line of both forms. The first one says more.
            self._cause, self._alone = replace(self._alone[0], or_child=True), None
            return
        self._add_alone()
        cause = with_limit(cause, self._at_limit, self._limit)
        self._at_limit, self._limit = "", Absent.NOT_AVAILABLE
        self._cause, self._group = cause, ""
        self._alone = (cause, unix) if cause.name else None

    def end_wait(self, unix: float) -> None:
        """Add a kill of which only the cause was logged, some time ago."""
        if self._alone is not None and not 0.0 <= unix - self._alone[1] < ALONE_SECONDS:
            self._add_alone()

    def _add_alone(self) -> None:
        if self._alone is not None:
            cause, self._alone = self._alone[0], None
            self._add(build_kill(self._killed + 1, cause.name, Absent.NOT_AVAILABLE, cause))

    def _add_victim(self, victim: OomKill) -> None:
        """Add a victim, or the size of one that was added by its cause. Others may be killed with its group."""
        last = self._kills[-1] if self._kills else None
        if self._alone is None and last and last.pid == victim.pid and isinstance(last.anonymous_bytes, Absent):
            self._kills[-1] = replace(last, anonymous_bytes=victim.anonymous_bytes)
            self.log = replace(self.log, kills=tuple(self._kills))
            return
        if self._alone is not None and self._alone[0].pid != victim.pid:
            self._add_alone()
        self._alone = None
        if self._cause is not None and self._cause.or_child:
            self._cause = None  # of this victim only
        if self._group and victim.scope in {"cgroup", "unknown"} and not victim.cgroup:
            victim = replace(victim, scope="cgroup", cgroup=self._group)
        self._add(replace(victim, number=self._killed + 1))

    def _add(self, kill: OomKill) -> None:
        self._killed += 1
        self._kills.append(replace(kill, tasks=tuple(self._tasks or ())))
        if len(self._kills) > MAX_KILLS:
            del self._kills[next_to_go({number: self._weigh(one) for number, one in enumerate(self._kills)})]
        self._tasks = None
        self.log = replace(self.log, kills=tuple(self._kills))

    def _weigh(self, kill: OomKill) -> Held:
        size = known_or(kill.anonymous_bytes, 0)
        return Held(self._account_of(kill.cgroup) if kill.scope == "cgroup" else ROOT, size)

    def count_lost(self, messages: int) -> None:
        self.log = replace(self.log, lost_total=self.log.lost_total + messages)

    def _repeats_xid(self, complaint: DriverMessage, unix: float) -> bool:
        """Return True for a loss that was counted as an XID just before, so that it is not counted twice."""
        if complaint.kind != OFF_THE_BUS:
            return False
        counted = self._errors.get(complaint._replace(kind=XID_OFF_THE_BUS))
        return counted is not None and 0.0 <= unix - counted.last_seen_unix < SAME_LOSS_SECONDS

    def _note(self, complaint: DriverMessage, text: str, unix: float) -> None:
        before = self._errors.get(complaint)
        if before is None and len(self._errors) >= MAX_ERRORS:
            self.left_out += 1
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


# Crash records in pstore: in the firmware, or in memory that survives a reset.

# systemd-pstore.service moves the records to the second folder at boot.
PSTORE_FOLDERS = ("fs/pstore", "var/lib/systemd/pstore")
MAX_RECORD_FILES, MAX_RECORD_BYTES, MAX_REASON_LENGTH = 200, 1 << 20, 200
MAX_RECORDS = 3
_REASON = re.compile(
    rb"(Kernel panic - not syncing: [^\n]{0,180}|Out of memory and no killable processes[^\n]{0,80}|"
    rb"BUG: [^\n]{0,180}|Oops: [^\n]{0,180}|watchdog: BUG: [^\n]{0,160})"
)


def find_crash_records(roots: Roots, since_unix: float) -> tuple[str, ...]:
    """Return the records written after a time, each with its reason if it has one. Only root may read them."""
    folders = (roots.sysfs / PSTORE_FOLDERS[0], roots.rootfs / PSTORE_FOLDERS[1])
    found = [one for folder in folders for one in _read_folder(folder, since_unix)]
    with_reason = [one for one in found if ": " in one]
    return first_of(list(dict.fromkeys(with_reason or found)), MAX_RECORDS, "crash records")


def _read_folder(folder: Path, since_unix: float) -> list[str]:
    try:
        named = sorted(path for path in folder.rglob("*") if path.name.startswith(("dmesg", "console")))
        files = [path for path in named if os.path.isfile(path) and path.stat().st_mtime >= since_unix]
        return [*map(_describe, files[:MAX_RECORD_FILES]), *(path.name for path in files[MAX_RECORD_FILES:])]
    except OSError:
        return []


def _describe(path: Path) -> str:
    reason = _REASON.search(read_regular(path, MAX_RECORD_BYTES))
    return f"{path.name}: {decode(reason[1])[:MAX_REASON_LENGTH]}" if reason else path.name
