"""Records of /dev/kmsg, in the forms of several kernels and drivers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

MEMCG_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
    "task_memcg=/job/one,task=train, v2,pid=4242,uid=0",
    "Memory cgroup out of memory: Killed process 4242 (train, v2) total-vm:75160kB, anon-rss:65280kB, "
    "file-rss:6552kB, shmem-rss:0kB, UID:0 pgtables:184kB oom_score_adj:0",
)
GLOBAL_KILL = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice/user-1000.slice,task=(sd) pam),pid=991,uid=1000",
    "Out of memory: Killed process 991 ((sd) pam)) total-vm:1048576kB, anon-rss:2097152kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:1000 pgtables:4200kB oom_score_adj:200",
)
NODES_KILL = (
    "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=1,cpuset=half,mems_allowed=1,global_oom,"
    "task_memcg=/,task=solver,pid=77,uid=5",
    "Out of memory: Killed process 77 (solver) total-vm:1048576kB, anon-rss:1024kB, file-rss:0kB, shmem-rss:0kB, "
    "UID:5 pgtables:4200kB oom_score_adj:0",
)
# Before the cause, kernels report the memory of the cgroup: mm/memcontrol.c, mem_cgroup_print_oom_meminfo().
LIMIT_REPORT = (
    "memory: usage 65536kB, limit 65536kB, failcnt 19",
    "swap: usage 0kB, limit 9007199254740988kB, failcnt 0",
    "Memory cgroup stats for /job:",
)
# Linux 4.9, as on Jetsons with JetPack 4.
OLD_KILL = (
    "Memory cgroup out of memory: Kill process 310 (python3) score 970 or sacrifice child",
    "Killed process 310 (python3) total-vm:213084kB, anon-rss:64000kB, file-rss:5120kB, shmem-rss:0kB",
)
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1353"
)
XID_79 = "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# One record: the kernel writes the line ends of a message as \x0a.
OFF_THE_BUS = (
    r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0a"
    "NVRM: fallen off the bus and is not responding to commands."
)
XID_31 = "NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS"
AMD_NO_MEMORY = "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!"
AMD_FAULT = (
    "amdgpu 0000:03:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:88 vmid:8 pasid:32787)",
    "amdgpu 0000:03:00.0: amdgpu:  Process darktable pid 70131 thread worker 0 pid 70175",
)
AMD_EVICT = "amdgpu 0000:03:00.0: amdgpu: Failed to evict queue 1"
UNRELATED = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "amdgpu 0000:03:00.0: amdgpu: 512M of VRAM memory ready",
    "amdgpu 0000:03:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    "oom_reaper: reaped process 4242 (train), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "usb 1-1: Killed process of enumeration",
)


def record(text: str, sequence: int, priority: int = 3) -> str:
    """Return a record of /dev/kmsg with one of the additional lines of devices."""
    return f"{priority},{sequence},{sequence * 1000},-;{text}\n SUBSYSTEM=pci\n"


def log_to(path: Path, lines: Iterable[str], first: int = 1, priority: int = 3) -> None:
    """Append lines to a fake log, numbered from `first`."""
    with path.open("a") as log:
        log.writelines(record(line, number, priority) for number, line in enumerate(lines, first))
