"""The collectors: one module each, and one line in `COLLECTORS`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from memwatch.core.collectors import (
    amd_cli,
    amdgpu,
    amdgpu_sensors,
    amdsmi,
    apple,
    buddyinfo,
    cgroup,
    cgroup_kills,
    cgroup_pressure,
    containers,
    dmem,
    drm,
    engines,
    hwmon,
    journal,
    kmsg,
    kubernetes,
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
from memwatch.core.collectors.base import BaseCollector, CollectorEntry, Host
from memwatch.core.linux.files import Roots

# In the order in which they run. Settings, the configuration file and the metrics are derived from this tuple.
COLLECTORS: tuple[type[BaseCollector], ...] = (
    meminfo.Collector,
    psi.Collector,
    vmstat.Collector,
    kmsg.Collector,
    journal.Collector,
    buddyinfo.Collector,
    numa.Collector,
    zram.Collector,
    cgroup.Collector,
    containers.Collector,
    kubernetes.Collector,
    cgroup_pressure.Collector,
    cgroup_kills.Collector,
    dmem.Collector,
    machine.Collector,
    tegra.Collector,
    nvmap.Collector,
    tegrastats.Collector,
    nvml.Collector,
    amdgpu.Collector,
    amdgpu_sensors.Collector,
    amdsmi.Collector,
    amd_cli.Collector,
    drm.Collector,
    hwmon.Collector,
    processes.Collector,
    engines.Collector,
    psutil_host.Collector,
    psutil_processes.Collector,
    apple.Collector,
)


def list_collectors(host: Host, disabled: Collection[str] = ()) -> list[CollectorEntry]:
    """Return the entries of this platform's collectors, without the disabled ones.

    One that is off by default is included only if the options of the host enable it.
    """
    return [
        CollectorEntry(kind.name, partial(kind.create, host), kind.may_block, sign_paths(host.roots, kind.signs))
        for kind in COLLECTORS
        if kind.supports(host.platform) and kind.name not in disabled and is_enabled(kind, host)
    ]


def is_enabled(kind: type[BaseCollector], host: Host) -> bool:
    return kind.options().enabled or host.options_for(kind.options).enabled


def sign_paths(roots: Roots, signs: Iterable[str]) -> tuple[str, ...]:
    """Return the absolute paths of signs such as `sys/class/drm/` and `dev/nvidiactl`."""
    folders = {"proc": roots.procfs, "sys": roots.sysfs, "dev": roots.rootfs / "dev"}
    parts = (sign.split("/", 1) for sign in signs)
    return tuple(f"{folders[root]}/{rest}" for root, rest in parts)
