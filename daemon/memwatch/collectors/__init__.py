"""One file per collector, and one line here to enlist it."""

from __future__ import annotations

import os
import sys
from functools import partial
from platform import machine as processor

from msgspec import Struct

from memwatch.collectors import (
    amd_cli,
    amdgpu,
    amdgpu_sensors,
    amdsmi,
    apple,
    buddyinfo,
    cgroup,
    cgroup_pressure,
    containers,
    drm,
    kmsg,
    machine,
    meminfo,
    numa,
    nvmap,
    nvml,
    processes,
    psi,
    psutil_host,
    psutil_processes,
    tegra,
    tegrastats,
    vmstat,
    zram,
)
from memwatch.collectors.base import Enlisted
from memwatch.linux.files import Roots
from memwatch.linux.pci import GpuPids


class CollectorOptions(Struct, frozen=True):
    """What a user may choose about collectors. `disabled` names those that are not run."""

    top: int = 50
    processes_period_seconds: float = 10.0
    command_lines: bool = False
    cgroup_scope: cgroup.Scope = "auto"
    helper_pause_seconds: float = nvml.PAUSE_SECONDS
    container_socket: str | None = None
    tegra_board: str = "auto"
    tegrastats_path: str = "auto"
    tegrastats_interval_seconds: float = 1.0
    amdsmi_pause_seconds: float = amdsmi.PAUSE_SECONDS
    disabled: frozenset[str] = frozenset()


def enlist(roots: Roots, options: CollectorOptions, platform: str = sys.platform) -> list[Enlisted]:
    """The collectors of this platform in the order in which they are asked."""
    listed = _of_linux(roots, options) if platform == "linux" else _of_others(options, platform)
    return [entry for entry in listed if entry.name not in options.disabled]


def _of_linux(roots: Roots, options: CollectorOptions) -> list[Enlisted]:
    top, period, scope = options.top, options.processes_period_seconds, options.cgroup_scope
    commands = options.command_lines
    page, ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    gpu_pids, pause = GpuPids(), options.helper_pause_seconds
    board = options.tegra_board
    stats = partial(
        tegrastats.Collector, roots, options.tegrastats_path, options.tegrastats_interval_seconds, board
    )
    return [
        Enlisted("meminfo", partial(meminfo.Collector, roots, page), meminfo.Collector.may_block),
        Enlisted("psi", partial(psi.Collector, roots), psi.Collector.may_block),
        Enlisted("vmstat", partial(vmstat.Collector, roots), vmstat.Collector.may_block),
        Enlisted("kmsg", partial(kmsg.Collector, roots), kmsg.Collector.may_block),
        Enlisted("buddyinfo", partial(buddyinfo.Collector, roots, page), buddyinfo.Collector.may_block),
        Enlisted("numa", partial(numa.Collector, roots), numa.Collector.may_block),
        Enlisted("zram", partial(zram.Collector, roots), zram.Collector.may_block),
        Enlisted("cgroup", partial(cgroup.Collector, roots, scope), cgroup.Collector.may_block),
        Enlisted("containers", partial(containers.Collector, options.container_socket), True),
        Enlisted("cgroup_pressure", partial(cgroup_pressure.Collector, roots), cgroup_pressure.Collector.may_block),
        Enlisted("machine", partial(machine.Collector, roots), machine.Collector.may_block),
        Enlisted("tegra", partial(tegra.Collector, roots, board), tegra.Collector.may_block),
        Enlisted("nvmap", partial(nvmap.Collector, roots, gpu_pids, board), nvmap.Collector.may_block),
        Enlisted("tegrastats", stats, tegrastats.Collector.may_block),
        Enlisted("nvml", partial(nvml.Collector, roots, gpu_pids, pause), nvml.Collector.may_block),
        Enlisted("amdgpu", partial(amdgpu.Collector, roots, page, gpu_pids), amdgpu.Collector.may_block),
        Enlisted("amdgpu_sensors", partial(amdgpu_sensors.Collector, roots), amdgpu_sensors.Collector.may_block),
        Enlisted("amdsmi", partial(amdsmi.Collector, roots, options.amdsmi_pause_seconds), True),
        Enlisted("amd_cli", partial(amd_cli.Collector, roots), amd_cli.Collector.may_block),
        Enlisted("drm", partial(drm.Collector, roots, gpu_pids), drm.Collector.may_block),
        Enlisted(
            "processes", partial(processes.Collector, roots, top, period, page, ticks, gpu_pids, commands), True
        ),
    ]


def _of_others(options: CollectorOptions, platform: str) -> list[Enlisted]:
    top, period = options.top, options.processes_period_seconds
    # Apple's chips have one memory for all their parts, and that is what Apple calls it.
    label = "Unified memory" if (platform, processor()) == ("darwin", "arm64") else "System RAM"
    listed = [
        Enlisted("psutil_host", partial(psutil_host.Collector, label), psutil_host.Collector.may_block),
        Enlisted("psutil_processes", partial(psutil_processes.Collector, top, period), True),
    ]
    if platform == "darwin":
        listed.append(Enlisted("apple", apple.Collector, apple.Collector.may_block))
    return listed
