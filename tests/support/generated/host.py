"""Generated hosts: System RAM with huge pages, NUMA nodes, zram, cgroups and processes."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.collectors.cgroup import CgroupLimit, limiting_cgroup
from memwatch.core.collectors.meminfo import ArcStats, build_pool, build_swap
from memwatch.core.collectors.numa import parse_node
from memwatch.core.collectors.zram import parse_mm_stat
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import LXCFS
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo import check
from memwatch.core.model import CGROUP_NOTE, Absent, Process, Quality, Share, ShareKind
from memwatch.core.snapshot import CHARGED, GPU_CHARGING, Machine, Node, ProcessScan
from support.generated.figures import MIB, Figures

FIRST_PID, PIDS = 100, 8


class Host(Struct, frozen=True):
    """The host's part of a machine. `size_bytes`: its System RAM, GPU nodes included.

    `gpu_nodes`: sizes of the NUMA nodes without CPUs. `pids`: that a driver may report.
    """

    size_bytes: int
    gpu_nodes: tuple[tuple[int, int], ...]
    machine: Machine
    pids: tuple[int, ...] = tuple(range(FIRST_PID, FIRST_PID + PIDS))

    @property
    def cpu_bytes(self) -> int:
        return self.size_bytes - sum(size for _, size in self.gpu_nodes)


def draw_host(figures: Figures) -> Host:
    choose, cpu = figures.choose, figures.size()
    nodes = tuple((number, figures.size()) for number in range(1, 1 + choose.pick((0, 0, 0, 1, 2))))
    contained = choose.chance(30)
    details = {"virtualization": "WSL2"} if choose.chance(5) else {}
    if choose.chance(10):
        details[GPU_CHARGING] = CHARGED
    machine = Machine(
        "generated",
        in_container=contained,
        sees_all_processes=not contained or choose.chance(50),
        details=details,
    )
    return Host(cpu + sum(size for _, size in nodes), nodes, machine)


def draw_memory(figures: Figures, host: Host) -> Findings:
    """Return what meminfo and arcstats report. A container's meminfo may be that of lxcfs."""
    choose, limited = figures.choose, host.machine.in_container and figures.choose.chance(30)
    size = figures.part(host.size_bytes) if limited else host.size_bytes
    try:
        kib = draw_meminfo(figures, size >> 10)
        arc = ArcStats(figures.reported(figures.part(size)), MIB) if not limited and choose.chance(10) else None
        pool, swap = build_pool(check(kib), None if choose.chance(50) else 4096, arc), build_swap(check(kib))
    except ParseError:  # the collector fails
        return Findings()
    return Findings(pools=(replace(pool, source=LXCFS + pool.source) if limited else pool,), swap=swap)


def draw_meminfo(figures: Figures, total: int) -> dict[str, int]:
    choose = figures.choose
    free = figures.part(total)
    kib = {
        "MemTotal": figures.reported(total),
        "MemFree": figures.reported(free),
        "MemAvailable": figures.reported(figures.part(total)),
        "AnonPages": figures.reported(figures.part(total) >> 2),
        "Shmem": figures.reported(figures.part(total) >> 3),
        "SUnreclaim": figures.reported(figures.part(total) >> 4),
        "KReclaimable": figures.reported(figures.part(total) >> 5),
        "SReclaimable": figures.reported(figures.part(total) >> 5),
        "Active(file)": figures.reported(figures.part(total) >> 3),
        "Inactive(file)": figures.reported(figures.part(total) >> 3),
        "SwapTotal": figures.reported(total),
        "SwapFree": figures.reported(figures.part(total)),
    }
    if choose.chance(20):
        pages = figures.part(total) >> 11
        kib |= {
            "HugePages_Total": figures.reported(pages),
            "HugePages_Free": figures.reported(pages // 2),
            "HugePages_Rsvd": figures.reported(pages // 4),
            "Hugepagesize": 2048,
        }
        if choose.chance(50):
            kib["Hugetlb"] = figures.reported(pages * 2048)
    return {key: value for key, value in kib.items() if not choose.chance(figures.gaps // 3)}


def draw_nodes(figures: Figures, host: Host) -> Findings:
    """Return all nodes, or none if the folder is not visible. Their figures may contradict those of meminfo."""
    choose = figures.choose
    if choose.chance(15):
        return Findings()
    try:
        nodes = [draw_node(figures, 0, host.cpu_bytes, b"0-3\n")]
        nodes += [draw_node(figures, number, size, b"\n") for number, size in host.gpu_nodes]
    except ParseError:  # the collector fails
        return Findings()
    return Findings(nodes=tuple(nodes))


def draw_node(figures: Figures, number: int, size: int, cpus: bytes) -> Node:
    kib = {
        "MemTotal": figures.reported(size >> 10),
        "MemFree": figures.reported(figures.part(size >> 10)),
        "Active(file)": figures.reported(figures.part(size) >> 14),
        "Inactive(file)": figures.reported(figures.part(size) >> 14),
        "AnonPages": figures.reported(figures.part(size) >> 14),
        "Shmem": figures.reported(figures.part(size) >> 14),
        "SUnreclaim": figures.reported(figures.part(size) >> 14),
    }
    lines = [f"Node {number} {key}: {value} kB\n" for key, value in kib.items()]
    return parse_node(number, "".join(lines).encode(), None if figures.choose.chance(figures.gaps) else cpus)


def draw_zram(figures: Figures, host: Host) -> Findings:
    if not figures.choose.chance(20):
        return Findings()
    stored, memory = figures.reported(host.size_bytes >> 2), figures.reported(host.size_bytes >> 3)
    try:
        return Findings(zram=parse_mm_stat(f"{stored} 0 {memory}\n".encode()))
    except ParseError:  # the collector fails
        return Findings()


def draw_cgroups(figures: Figures, host: Host) -> Findings:
    """Return the share of the tightest of nested limits, as the collector does."""
    choose = figures.choose
    if not host.machine.in_container or choose.chance(30):
        return Findings()
    groups = [
        CgroupLimit(
            Path("/"),
            figures.reported(figures.part(host.cpu_bytes)) if choose.chance(70) else None,
            figures.reported(figures.part(host.cpu_bytes) >> 1),
        )
        for _ in range(choose.integer(1, 3))
    ]
    group = limiting_cgroup(groups, host.size_bytes)
    share = Share(
        id="cgroup",
        kind=ShareKind.CGROUP,
        label="Container limit",
        within="ram",
        used_bytes=(group or groups[-1]).used_bytes,
        limit_bytes=Absent.NOT_SUPPORTED if group is None or group.limit_bytes is None else group.limit_bytes,
        source="cgroup2",
        quality=Quality.DERIVED,
        note=CGROUP_NOTE,
    )
    return Findings(shares=(share,))


def draw_processes(figures: Figures, host: Host) -> Findings:
    """Return the visible processes, and PIDs that only drivers know. The PID of a missing one may be reused."""
    choose = figures.choose
    if choose.chance(10):
        return Findings()
    visible = [pid for pid in host.pids if not choose.chance(30)]
    missing = frozenset(pid for pid in host.pids if (pid not in visible and choose.chance(70)) or choose.chance(2))
    processes = [
        Process(
            pid,
            1.0,
            f"process {pid}",
            rss,
            rss,
            "rss",
            unit=choose.pick(("a.service", None)),
            orphan=choose.chance(20),
        )
        for pid in visible
        for rss in [max(1, figures.part(host.cpu_bytes) >> 3)]
    ]
    hidden = choose.chance(20)
    scan = ProcessScan(len(processes), 0, "partial" if hidden else "complete", "hidden" if hidden else None)
    return Findings(processes=tuple(processes), process_scan=scan, missing_pids=missing)
