"""The kmsg collector: OOM kills and driver errors from the kernel log, and no forged lines."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.collectors import kmsg
from memwatch.core.kernel_log import KernelLog
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.kmsg_parser import MAX_KILLS, KernelLogTracker, parse_record
from memwatch.core.model import Absent
from support.daemon_process import quiet_machine, running_daemon
from support.kmsg_samples import (
    AMD_EVICT,
    AMD_FAULT,
    AMD_NO_MEMORY,
    GLOBAL_KILL,
    LIMIT_REPORT,
    MEMCG_KILL,
    NO_MEMORY,
    NODES_KILL,
    OFF_THE_BUS,
    OLD_KILL,
    UNRELATED,
    XID_31,
    XID_79,
    log_to,
    record,
)
from support.open_things import close_at_end

# NVIDIA/open-gpu-kernel-modules#1078.
NVGPU = "nvgpu: 17000000.gpu nvgpu_dma_print_err:101  [INFO]  DMA alloc FAILED:"
NVIDIA_DRM = "[drm:nv_drm_gem_alloc_nvkms_memory_ioctl [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100]"


def read(*lines: str) -> KernelLog:
    tracker = KernelLogTracker()
    for line in lines:
        tracker.read(line.encode(), 1_800_000_000.0)
    return tracker.log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Create an empty kernel log."""
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text("")
    return path


def collector_of(log: Path) -> kmsg.Collector:
    return close_at_end(kmsg.Collector(Roots(rootfs=log.parent.parent), lambda: 1_800_000_000.0))


def found_by(collector: kmsg.Collector) -> KernelLog:
    found = collector.collect().kernel_log
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (MEMCG_KILL, "OOM killer: killed train, v2 (4242), 63.8 MiB anonymous (/job reached its limit)"),
        (
            (*LIMIT_REPORT, *MEMCG_KILL),
            "OOM killer: killed train, v2 (4242), 63.8 MiB anonymous (/job reached its limit of 64.0 MiB)",
        ),
        (
            ("memory: usage 65536kB, limit 9007199254740988kB, failcnt 0", *MEMCG_KILL),
            "OOM killer: killed train, v2 (4242), 63.8 MiB anonymous (/job reached its limit)",
        ),
        ((*LIMIT_REPORT, *GLOBAL_KILL), "OOM killer: killed (sd) pam) (991), 2.0 GiB anonymous"),
        (GLOBAL_KILL, "OOM killer: killed (sd) pam) (991), 2.0 GiB anonymous"),
        (NODES_KILL, "OOM killer: killed solver (77), 1.0 MiB anonymous (its NUMA nodes were out of memory)"),
        (OLD_KILL, "OOM killer: killed python3 (310), 62.5 MiB anonymous (its cgroup reached its limit)"),
        (
            (*LIMIT_REPORT, *OLD_KILL),
            "OOM killer: killed python3 (310), 62.5 MiB anonymous (its cgroup reached its limit of 64.0 MiB)",
        ),
        (MEMCG_KILL[1:], "OOM killer: killed train, v2 (4242), 63.8 MiB anonymous (its cgroup reached its limit)"),
        (OLD_KILL[1:], "OOM killer: killed python3 (310), 62.5 MiB anonymous (the line with the cause is missing)"),
        (
            ("Out of memory: Kill process 310 (python3) score 970 or sacrifice child", OLD_KILL[1]),
            "OOM killer: killed python3 (310), 62.5 MiB anonymous",
        ),
        (GLOBAL_KILL[1:], "OOM killer: killed (sd) pam) (991), 2.0 GiB anonymous"),
        (
            ("Task in /pod 1/ab killed as a result of limit of /pod 1", *LIMIT_REPORT, *OLD_KILL),
            "OOM killer: killed python3 (310), 62.5 MiB anonymous (/pod 1 reached its limit of 64.0 MiB)",
        ),
        (
            ("Memory limit reached of cgroup /pod1", *OLD_KILL),
            "OOM killer: killed python3 (310), 62.5 MiB anonymous (/pod1 reached its limit)",
        ),
        (
            (*LIMIT_REPORT, OLD_KILL[0], OLD_KILL[1].replace("310 (python3)", "311 (cp)")),
            "OOM killer: killed cp (311), 62.5 MiB anonymous (its cgroup reached its limit of 64.0 MiB)",
        ),
        (
            (
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
                "task_memcg=/job/a,task=python3,pid=310,uid=0",
                OLD_KILL[0],
                OLD_KILL[1].replace("310 (python3)", "311 (cp)"),
            ),
            "OOM killer: killed cp (311), 62.5 MiB anonymous (/job reached its limit)",
        ),
    ],
    ids=[
        "limit",
        "limit with its size",
        "limit of swap",
        "machine after a report about a cgroup",
        "machine",
        "nodes",
        "Linux 4.9",
        "Linux 4.9 with its size",
        "limit without its cause",
        "no cause at all",
        "machine, Linux 4.9",
        "machine without its cause",
        "Linux 4.9 with its cgroup",  # istio/istio#42734
        "Linux 4.9 with its cgroup alone",
        "Linux 4.9, a child in its place",  # bluek8s/kubedirector#356, kubernetes/kubernetes#56891
        "Linux 5.0, a child in its place",
    ],
)
def test_oom_kill_has_victim_and_cause(lines: tuple[str, ...], text: str) -> None:
    """Name, process id, size, and the limit or nodes that ran out."""
    (kill,) = read(*lines).kills

    assert kill.text == text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (MEMCG_KILL[0], ("train, v2", 4242, "cgroup", "/job", ())),
        (GLOBAL_KILL[0], ("(sd) pam)", 991, "machine", "", ())),
        (NODES_KILL[0], ("solver", 77, "nodes", "", (1,))),
        (
            "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=0-1,4,cpuset=a,nodemask=7,mems_allowed=0-7,"
            "global_oom,task_memcg=/,task=a,pid=5,uid=0",
            ("a", 5, "nodes", "", (0, 1, 4)),
        ),
        (
            "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=x,mems_allowed=9,"
            "mems_allowed=0-4294967295,global_oom,task_memcg=/,task=a,pid=5,uid=0",
            ("a", 5, "nodes", "", ()),
        ),
    ],
)
def test_line_of_the_cause_alone_is_a_kill(line: str, expected: tuple[object, ...]) -> None:
    """Linux 6.6 of Anolis logs nothing else at a limit. It has no size, and is not counted twice."""
    tracker = KernelLogTracker()
    tracker.read(line.encode(), 100.0)
    tracker.end_wait(100.9)
    early = tracker.log.kills
    tracker.end_wait(101.0)
    tracker.end_wait(102.0)

    (kill,) = tracker.log.kills
    assert early == ()
    assert (kill.name, kill.pid, kill.scope, kill.cgroup, kill.nodes) == expected
    assert kill.anonymous_bytes is Absent.NOT_AVAILABLE
    assert "iB" not in kill.text


def test_kills_of_a_user_hide_no_kill_of_a_service_in_the_log() -> None:
    """Forty between two ticks, after one of a service and one of the machine."""
    tracker = KernelLogTracker(Accounts(Path("/nonexistent")).of_cgroup)
    group = "/user.slice/user-1001.slice/run-{}.scope"
    lines = [*GLOBAL_KILL, *(line.replace("/job", "/system.slice/db.service") for line in MEMCG_KILL)]
    for number in range(40):
        lines += [line.replace("/job", group.format(number)) for line in MEMCG_KILL]
    for line in lines:
        tracker.read(line.encode(), 100.0)

    kills = tracker.log.kills
    assert [kill.scope for kill in kills[:2]] == ["machine", "cgroup"]
    assert kills[1].cgroup == "/system.slice/db.service"
    assert (len(kills), kills[-1].number) == (MAX_KILLS, 42)


def test_victim_that_is_logged_late_is_no_second_kill() -> None:
    """Its line has the size. A clock that is set back ends the wait as well."""
    tracker = KernelLogTracker()
    tracker.read(MEMCG_KILL[0].encode(), 100.0)
    tracker.end_wait(50.0)
    tracker.read(MEMCG_KILL[1].encode(), 100.0)

    (kill,) = tracker.log.kills
    assert kill.text == "OOM killer: killed train, v2 (4242), 63.8 MiB anonymous (/job reached its limit)"


def test_limit_is_that_of_the_next_kill_alone() -> None:
    """The kernel limits the rate of its reports: the next kill may come without one."""
    kills = read(*LIMIT_REPORT, *MEMCG_KILL, *(line.replace("4242", "4243") for line in MEMCG_KILL)).kills

    assert [kill.limit_bytes for kill in kills] == [64 << 20, Absent.NOT_AVAILABLE]


def test_group_of_linux_4_19_is_that_of_all_its_victims() -> None:
    """Its lines of victims say nothing about the limit. One cause is about one victim, or its child."""
    group = "Tasks in /job are going to be killed due to memory.oom.group set"
    others = [OLD_KILL[1].replace("310", str(pid)) for pid in (311, 312)]

    kills = read(*OLD_KILL, group, *others).kills
    assert [(kill.pid, kill.scope, kill.cgroup) for kill in kills] == [
        (310, "cgroup", ""),
        (311, "cgroup", "/job"),
        (312, "cgroup", "/job"),
    ]
    assert [kill.scope for kill in read(*OLD_KILL, *others).kills] == ["cgroup", "unknown", "unknown"]


@pytest.mark.parametrize(
    "line", ["Task in /job/a killed as a result of limit of /job", "Memory limit reached of cgroup /job"]
)
def test_cgroup_of_an_older_report_is_read_from_the_log(log: Path, line: str) -> None:
    collector = collector_of(log)

    log_to(log, (line, *LIMIT_REPORT, *OLD_KILL))

    assert [(kill.cgroup, kill.limit_bytes) for kill in found_by(collector).kills] == [("/job", 64 << 20)]


def test_report_is_read_from_the_log(log: Path) -> None:
    """The lines of the report that are not needed are left out before they are parsed."""
    collector = collector_of(log)

    log_to(log, (*LIMIT_REPORT, *MEMCG_KILL))

    assert [kill.limit_bytes for kill in found_by(collector).kills] == [64 << 20]


@pytest.mark.parametrize(
    "line",
    [
        "Killed process 310, UID 1000, (train) total-vm:9kB, anon-rss:65312kB, file-rss:3kB",
        "Killed process 310 (train) vsz:9kB, anon-rss:65312kB, file-rss:3kB",
    ],
)
def test_victim_of_an_early_kernel_is_read_from_the_log(log: Path, line: str) -> None:
    """Linux 2.6.32 as in RHEL 6, and as it was released."""
    collector = collector_of(log)

    log_to(log, (line,))

    (kill,) = found_by(collector).kills
    assert (kill.pid, kill.name, kill.anonymous_bytes) == (310, "train", 65312 << 10)


def test_causes_without_victims_are_kills_in_order() -> None:
    tracker = KernelLogTracker()
    for line in (MEMCG_KILL[0], NODES_KILL[0], GLOBAL_KILL[0], GLOBAL_KILL[1]):
        tracker.read(line.encode(), 100.0)

    assert [(kill.number, kill.pid) for kill in tracker.log.kills] == [(1, 4242), (2, 77), (3, 991)]


def test_processes_that_are_killed_with_their_group_have_its_name() -> None:
    """With memory.oom.group one cause is followed by several victims."""
    rest = MEMCG_KILL[1].replace("4242", "4243")
    kills = read(*MEMCG_KILL, "Tasks in /job are going to be killed due to memory.oom.group set", rest).kills

    assert [(kill.pid, kill.scope, kill.cgroup) for kill in kills] == [
        (4242, "cgroup", "/job"),
        (4243, "cgroup", "/job"),
    ]


def test_cause_of_another_process_is_not_used() -> None:
    """A cause belongs to the process it names."""
    kill = read(MEMCG_KILL[0], GLOBAL_KILL[1]).kills[1]

    assert (kill.pid, kill.scope, kill.cgroup) == (991, "machine", "")


VC4_FULL = ("vc4", "", "no_contiguous_memory")
RADEON_FULL = ("radeon", "", "no_memory")
AMD_ENOMEM = ("amdgpu", "", "no_memory")


@pytest.mark.parametrize(
    ("line", "driver", "pci", "kind"),
    [
        (NO_MEMORY, "nvidia", "", "nv_err_no_memory"),
        (XID_79, "nvidia", "0000:65:00", "xid_79"),
        (XID_31, "nvidia", "0000:65:00", "xid_31"),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", "nvidia", "0000:03:00", "xid_31"),
        # Without an XID: NVIDIA/NVSentinel#155, leptonai/gpud#1209, dcgm-exporter#348, Bumblebee#554.
        (OFF_THE_BUS, "nvidia", "0000:b3:00", "off_the_bus"),
        ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "nvidia", "0000:01:00", "off_the_bus"),
        ("NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus", "nvidia", "0000:a1:00", "off_the_bus"),
        (AMD_NO_MEMORY, "amdgpu", "", "no_memory"),
        (
            "[drm:amdgpu_cs_parser_bos [amdgpu]] *ERROR* amdgpu_vm_validate() failed.",
            "amdgpu",
            "",
            "vm_validate_failed",
        ),
        (AMD_FAULT[0], "amdgpu", "0000:03:00.0", "page_fault"),
        (
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled",
            "amdgpu",
            "",
            "ring_timeout",
        ),
        ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", "amdgpu", "0000:03:00.0", "gpu_reset"),
        ("amdgpu 0000:03:00.0: amdgpu: VRAM is lost due to GPU reset!", "amdgpu", "0000:03:00.0", "vram_lost"),
        ("[drm] VRAM is lost due to GPU reset!", "amdgpu", "", "vram_lost"),
        (
            "amdgpu 0000:01:00.0: VM fault (0x01, vmid 1) at page 73533277, read from 'TC3' (0x54433300) (196)",
            "amdgpu",
            "0000:01:00.0",
            "page_fault",
        ),
        (AMD_EVICT, "amdgpu", "0000:03:00.0", "evict_failed"),
        ("amdgpu: Failed to evict process queues", "amdgpu", "", "evict_failed"),
        ("[TTM] Buffer eviction failed", "amdgpu", "", "evict_failed"),
        ("[drm:amdgpu_gem_object_create] *ERROR* Failed to allocate GEM object (81, 2, 4096, -12)", *AMD_ENOMEM),
        ("amdgpu 0000:03:00.0: (-12) failed to allocate kernel bo", "amdgpu", "0000:03:00.0", "no_memory"),
        ("amdgpu 0000:03:00.0: evicting device resources failed", "amdgpu", "0000:03:00.0", "evict_failed"),
        ("amdgpu: SVM mapping failed, exceeds resident system memory limit", "amdgpu", "", "svm_limit"),
        ("amdgpu: Freeing queue vital buffer 0x7f00, queue evicted", "amdgpu", "", "queue_buffer_freed"),
        ("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12", "dxgkrnl", "", "no_memory"),
        (f"{NVIDIA_DRM} Failed to allocate NVKMS memory for GEM object", "nvidia", "0000:01:00", "no_memory"),
        (
            "[drm] [nvidia-drm] [GPU ID 0x00006501] Failed to allocate NVKMS video memory for GEM object, trying "
            "to fall back to sysmem",
            "nvidia",
            "0000:65:01",
            "no_memory",
        ),
        (
            "[drm] [nvidia-drm] [GPU ID 0x00010100] Failed to allocate NVKMS memory for GEM object",
            "nvidia",
            "",
            "no_memory",
        ),
        ("[TTM] Failed to find memory space for buffer 0x0000 eviction", "amdgpu", "", "no_eviction_space"),
        (f"{NVGPU} [sysmem] size=2097152 aligned=2097152 flags:NO_KERNEL_MAPPING", "nvidia", "", "no_memory"),
        (f"{NVGPU} [sysmem] size=2097152 aligned=2097152 flags:", "nvidia", "", "no_memory"),
        (  # OE4T/meta-tegra#1613
            f"{NVGPU} [sysmem] size=257490944 aligned=257490944 flags:PHYSICALLY_ADDRESSED",
            "nvidia",
            "",
            "no_contiguous_memory",
        ),
        ("xe 0000:03:00.0: [drm] VM worker error: -12", "xe", "0000:03:00.0", "no_memory"),
        # anholt/linux#23
        ("vc4-drm soc:gpu@7e4c0000: failed to allocate buffer with size 5595136", *VC4_FULL),
        ("[drm:vc4_bo_create [vc4]] *ERROR* Failed to allocate from CMA:", *VC4_FULL),
        ("cma: cma_alloc: linux,cma: alloc failed, req-size: 2048 pages, ret: -12", "cma", *VC4_FULL[1:]),
        ("cma: cma_alloc: alloc failed, req-size: 62 pages, ret: -16", "cma", *VC4_FULL[1:]),
        ("[drm:radeon_gem_object_create] *ERROR* Failed to allocate GEM object (8192, 2, 4096, -12)", *RADEON_FULL),
        ("i915 0000:00:02.0: [drm] *ERROR* failed to pin the ring (-12)", "i915", "0000:00:02.0", "no_memory"),
        ("panfrost ff9a0000.gpu: mapping failed: -12", "panfrost", "", "no_memory"),
    ],
)
def test_driver_errors_are_classified(line: str, driver: str, pci: str, kind: str) -> None:
    """By kind, and by GPU where the line names one."""
    (error,) = read(line, *UNRELATED, line).driver_errors

    assert (error.driver, error.pci, error.kind, error.count) == (driver, pci, kind, 2)
    assert error.text == line


@pytest.mark.parametrize(
    "line",
    [
        f"{NVGPU} [vidmem] size=4096 aligned=4096 flags:",  # it then takes System RAM
        "xe 0000:03:00.0: [drm] VM worker error: -16",  # busy
    ],
)
def test_failures_without_a_lack_of_memory_are_no_errors(line: str) -> None:
    assert read(line).driver_errors == ()


def test_start_of_the_driver_for_displays_is_no_error() -> None:
    assert read("[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver").driver_errors == ()


@pytest.mark.parametrize("number", [-2, -22, -122, -1])
def test_failures_of_wsl_at_each_start_are_no_errors(number: int) -> None:
    """microsoft/WSL#11293, #11939 and #40715: they are logged beside a GPU that works."""
    assert read(f"misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: {number}").driver_errors == ()


def test_loss_of_a_gpu_beside_its_xid_is_counted_once() -> None:
    """The driver logs an XID and a second line of the same loss. That of another GPU is another loss."""
    repeated, other = "NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.", OFF_THE_BUS

    errors = read(XID_79, repeated, other).driver_errors

    assert [(one.pci, one.kind, one.count) for one in errors] == [
        ("0000:65:00", "xid_79", 1),
        ("0000:b3:00", "off_the_bus", 1),
    ]


def test_later_loss_without_an_xid_is_counted() -> None:
    tracker = KernelLogTracker()
    for line, unix in ((XID_79, 100.0), ("NVRM: GPU at 0000:65:00.0 has fallen off the bus.", 5000.0)):
        tracker.read(line.encode(), unix)

    assert [one.kind for one in tracker.log.driver_errors] == ["xid_79", "off_the_bus"]


def test_amdgpu_page_fault_names_its_process() -> None:
    """amdgpu prints the process in the next line."""
    (error,) = read(*AMD_FAULT).driver_errors

    assert error.text.endswith("pasid:32787) by darktable (pid 70131)")


def test_unrelated_lines_are_ignored() -> None:
    """Boot messages, OOM reaper lines and hung engines are not memory events."""
    assert read(*UNRELATED) == KernelLog()


def test_only_kills_after_the_start_are_reported(log: Path) -> None:
    """Earlier kills are ignored. New ones are reported once."""
    log_to(log, MEMCG_KILL)
    collector = collector_of(log)
    before = found_by(collector)
    log_to(log, GLOBAL_KILL, first=3)

    after, again = found_by(collector), found_by(collector)
    collector.close()

    assert before.kills == ()
    assert [kill.pid for kill in after.kills] == [991]
    assert again == after


def test_lines_written_by_programs_are_ignored(log: Path) -> None:
    """A line that a program writes to /dev/kmsg looks the same but has another facility."""
    collector = collector_of(log)
    log_to(log, GLOBAL_KILL, priority=14)

    assert found_by(collector).kills == ()
    collector.close()


@pytest.mark.parametrize(
    "line",
    [
        "oom-kill:constraint=CONSTRAINT_MEMCG," + ",oom_memcg=,task_memcg=,task=" * 270,
        "Out of memory: Killed process 1 (" * 240,
        "NVRM" * 2000,
    ],
    ids=["cause", "victim", "driver"],
)
def test_repetitive_line_is_parsed_in_linear_time(line: str) -> None:
    """Users who can name a cgroup control part of the line: 8 kB of it once took 30 s of the tick."""
    started = time.process_time()

    log = read(line)

    assert log == KernelLog()
    assert time.process_time() - started < 0.25


def test_cpuset_that_imitates_a_limit_does_not_name_the_cgroup() -> None:
    """Its name comes first in the line. It has no slash, with which the path of a cgroup begins."""
    cause = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,oom_memcg=victim,mems_allowed=0,"
        "oom_memcg=/user.slice/a,task_memcg=/user.slice/a/b,task=x,pid=7,uid=1000"
    )

    tracker = KernelLogTracker()
    tracker.read(cause.encode(), 100.0)
    tracker.end_wait(200.0)

    assert [kill.cgroup for kill in tracker.log.kills] == ["/user.slice/a"]


def test_names_that_imitate_the_line_are_parsed() -> None:
    """The last keyword of each kind is the kernel's. Earlier ones are part of a name."""
    odd = "/a,oom_memcg=/b,task_memcg=/c"
    cause = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={odd},"
        "task_memcg=/d,task=x,task=y,pid=7,uid=0"
    )
    victim = "Memory cgroup out of memory: Killed process 7 (a) total-vm:1kB, b) total-vm:9kB, anon-rss:8kB, x"

    (kill,) = read(cause, victim).kills

    assert (kill.pid, kill.cgroup, kill.name) == (7, odd, "a) total-vm:1kB, b")
    assert (kill.scope, kill.anonymous_bytes) == ("cgroup", 8 << 10)


def test_overwritten_messages_are_counted_as_lost(log: Path) -> None:
    """Missing sequence numbers are messages lost before they were read."""
    collector = collector_of(log)
    log_to(log, ["one", "two"])
    log_to(log, [XID_79], first=40)

    found = found_by(collector)
    collector.close()

    assert found.lost_total == 37
    assert [error.kind for error in found.driver_errors] == ["xid_79"]


def test_pipe_is_read_without_blocking(tmp_path: Path) -> None:
    """Some containers provide a pipe. It is read in pieces as they arrive."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    collector = collector_of(tmp_path / "dev/kmsg")
    nothing = found_by(collector)
    pipe = os.open(tmp_path / "dev/kmsg", os.O_WRONLY)
    whole = "".join(record(line, number) for number, line in enumerate(MEMCG_KILL, 1)).encode()
    os.write(pipe, whole[:150])
    half = found_by(collector)
    os.write(pipe, whole[150:])

    found = found_by(collector)
    os.close(pipe)
    collector.close()

    assert nothing.kills == half.kills == ()
    assert [kill.pid for kill in found.kills] == [4242]


def test_file_that_is_not_the_kernel_log_is_rejected(tmp_path: Path) -> None:
    """A missing file, a link to /dev/null and a folder are each named in the reason."""
    (tmp_path / "dev").mkdir()
    path = tmp_path / "dev/kmsg"
    with pytest.raises(SourceUnavailable, match="No such file"):
        collector_of(path)
    path.symlink_to("/dev/null")
    with pytest.raises(SourceUnavailable, match="not the kernel log, which is character device 1:11"):
        collector_of(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceUnavailable, match="not the kernel log"):
        collector_of(path)


def test_flood_is_read_in_pieces_and_counted(log: Path) -> None:
    """A driver error that repeats 20,000 times is one entry with a count. No tick reads it all."""
    collector = collector_of(log)
    log_to(log, [NO_MEMORY] * 20_000)

    counts = [found_by(collector).driver_errors[0].count for _ in range(12)]
    collector.close()

    assert counts[0] < 5000
    assert counts[-1] == 20_000


def test_kernel_log_of_this_machine_is_read_or_refused_with_a_reason() -> None:
    """A forged line is written meanwhile, if permitted, and must be ignored."""
    forged_line = (
        "<3>memwatch test: Out of memory: Killed process 4194304 (memwatch-test) total-vm:1kB, anon-rss:1kB"
    )
    try:
        collector = close_at_end(kmsg.Collector(Roots()))
    except SourceUnavailable as error:
        assert re.search("CAP_SYSLOG|No such file|character device 1:11", str(error))  # noqa: PT017
        return
    with contextlib.suppress(PermissionError):
        Path("/dev/kmsg").write_text(forged_line)

    found = found_by(collector)
    collector.close()

    assert [kill for kill in found.kills if kill.pid == 4194304] == []


def test_unreadable_kernel_log_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """A daemon without privileges: a reason and a remedy, or the log if the kernel lets every user read it."""
    restricted = Path("/proc/sys/kernel/dmesg_restrict")
    with running_daemon(tmp_path, *quiet_machine(rootfs="/"), without_privileges=True) as daemon:
        states = {one["name"]: one for one in daemon.get("/api/v1/collectors").json}

    if restricted.exists() and restricted.read_text().strip() == "1" and Path("/dev/kmsg").exists():
        assert states["kmsg"]["state"] == "unavailable"
        assert "not permitted; run as root, or grant CAP_SYSLOG" in states["kmsg"]["error"]
    else:
        assert states["kmsg"]["state"] in ("ok", "unavailable")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_arbitrary_lines_never_raise(lines: list[bytes]) -> None:
    tracker = KernelLogTracker()
    cut = [MEMCG_KILL[1].encode()[: len(line)] for line in lines]
    for line in [*lines, *[b"3,1,1,-;" + line for line in lines], *cut]:
        record_of = parse_record(line)
        tracker.read(record_of.text if record_of else line, 0.0)

    assert len(tracker.log.kills) <= 16


@pytest.mark.parametrize(
    "line", [b"", b"\n", b" SUBSYSTEM=pci\n", b"no;semicolon", b"1,2;x", b"-3,1,1,-;x", b"9" * 30 + b",1,1,-;x"]
)
def test_invalid_record_is_none(line: bytes) -> None:
    """Continuation lines, and numbers that no kernel prints."""
    assert parse_record(line) is None
