"""docs/reference/effects.md: what each reading does to a sleeping or idle server, GPU or disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memwatch.core.collectors import COLLECTORS
from memwatch.core.collectors.amd_cli import PERIOD_SECONDS as TOOL_SECONDS
from memwatch.core.collectors.engines import PERIOD_SECONDS
from memwatch.core.drivers.nvml.runtime_suspend import (
    IDLE_SECONDS,
    MAX_IDLE_BYTES,
    MAX_IDLE_SECONDS,
    RELEASED_SECONDS,
)
from memwatch.core.engines.exchange import SHARE_SECONDS
from memwatch.core.engines.kinds import KINDS
from memwatch.core.engines.server import MAX_SILENT_SECONDS, RARE_SECONDS, SILENT_SECONDS
from memwatch.core.units import size
from scripts.reference.markdown import code, codes, page, table

INTRO = """
memwatchd must not change what it watches. It sends no request that loads a model, wakes a server or restarts its
idle time. It makes no call that resumes a suspended GPU or keeps an idle one awake. Its figures come from no disk.

In the tests, simulated servers and GPUs fall asleep while they are watched, and stay asleep for ten minutes. The
simulated NVIDIA driver resumes its GPU on every call.
"""
GPUS = """
## GPUs

A GPU may be suspended while its `power/control` is `auto`, as on most laptops. With `on`, the default of servers
and desktops with NVIDIA GPUs, nothing of the following applies. The state is read from `power/runtime_status` in
sysfs, which wakes no device. A GPU that is neither `active` nor `unsupported` there counts as suspended.
"""
SUSPENDED = """
Figures that are not read are absent with the reason `suspended`, never 0. The device's page says since when, if
memwatchd saw the change. A pool whose size was read before keeps its size, which sleep does not change. A GPU that
was suspended at the start has no pool, name or architecture until it is used.

`memwatch doctor --report` leaves out the files of a suspended GPU. The Python library does not look up the device
files of a container while a GPU is suspended: the driver's file `information` would resume it.
"""
DISKS = """
## Disks and zram

No collector reads a disk or asks one for its state. Figures come from /proc, /sys and cgroups, which the kernel
answers from memory. zram is memory: reading its `mm_stat` wakes nothing. These are the files that may be on a disk:

| file | read or written |
| --- | --- |
| configuration | at the start, and on a reload |
| `pci.ids`, `amdgpu.ids` | once per device |
| `/etc/passwd` | when it has changed |
| headers of a model's files | when a server has loaded it |
| history, alerts, leases under `--state-dir` | written once a minute, and when they change |

Written history keeps the disk of `--state-dir` awake. The command `memwatchd` keeps none without that option; the
service has `/var/lib/memwatchd`.
"""
SERVERS = f"""
## Model servers

These are all requests to a [model server](../howto/engines.md), with the effect of each on a server that sleeps or
loads a model. All are `GET`; an access log gets a line for each. They are sent every {PERIOD_SECONDS:g} s or once
in {RARE_SECONDS:g} s, and after no answer {SILENT_SECONDS:g} s later. All servers are asked at once. One that does
not answer within {SHARE_SECONDS:g} s twice in a row is asked again after {SILENT_SECONDS:g} s, then after twice
that time, up to {MAX_SILENT_SECONDS:g} s.
"""
NEVER = """
## Servers that start on a connection

A proxy or a systemd socket may start its server on the first connection. memwatchd finds only servers that run, but
always asks an address under `[[engines]]`: name no such address there.
"""

# By collector: what it reads, what it does to a suspended GPU, and to an idle one that may be suspended.
DEVICES: Mapping[str, tuple[str, str, str]] = {
    "nvml": (
        "NVIDIA's driver, through NVML",
        "Neither opened nor called. NVML is closed if all GPUs sleep. Else it is opened without attaching GPUs "
        "(`NVML_INIT_FLAG_NO_ATTACH`), and each GPU that is awake by its address.",
        f"Released after {IDLE_SECONDS:g} s without utilization and with at most {size(MAX_IDLE_BYTES)} held. If "
        f"it is not suspended within {RELEASED_SECONDS:g} s, it is read again, and released after twice the time, "
        f"up to {MAX_IDLE_SECONDS / 3600:g} h. Never, if the driver's `Runtime D3 status` is not supported or "
        "disabled.",
    ),
    "amdgpu": (
        "`mem_info_*` of amdgpu, processes of KFD",
        "None: the driver answers from memory.",
        "None. A device file is opened once at most: at the start, of a GPU that is awake and that no file tells "
        "from an APU.",
    ),
    "amdgpu_sensors": ("utilization and errors of amdgpu", "Not read.", "Not read: only with `on`."),
    "amdsmi": ("AMD's library, if installed", "Not loaded.", "Not loaded: only with `on` for all GPUs."),
    "amd_cli": (
        "`amd-smi` or `rocm-smi`, where the driver's files are hidden",
        "Not run.",
        f"Run every {TOOL_SECONDS:g} s, which lets the GPU be suspended in between.",
    ),
    "drm": (
        "sysfs, and fdinfo of processes",
        "None. Of xe, whose fdinfo resumes a GPU, no fdinfo is read.",
        "None: no device file is opened.",
    ),
    "hwmon": (
        "sensors and throttling of amdgpu, i915 and xe",
        "Not read.",
        "Read with pauses of its `autosuspend_delay_ms` and 1 s, in which it can be suspended.",
    ),
    "dmem": ("limits of cgroups on GPU memory", "None: the kernel answers from memory.", "None."),
    "tegra": ("GPU memory of a Jetson, in /proc/meminfo", "None.", "None."),
    "nvmap": ("GPU memory of a Jetson's processes, in debugfs", "None.", "None."),
    "tegrastats": ("NVIDIA's program, on a Jetson", "Not applicable: the GPU is part of the chip.", "None."),
    "apple": ("the system's registry of devices", "Not applicable: the GPU is part of the chip.", "None."),
}
# Collectors that read no device.
KERNEL = frozenset(
    {
        *("meminfo", "psi", "vmstat", "kmsg", "journal", "buddyinfo", "numa", "zram", "machine", "processes"),
        *("cgroup", "containers", "kubernetes", "cgroup_pressure", "cgroup_kills"),
        *("engines", "psutil_host", "psutil_processes"),
    }
)


def device_rows() -> Iterator[tuple[str, ...]]:
    """Yield collector, source and effects. Raises `ValueError` for a collector that is not described."""
    names = {one.name for one in COLLECTORS}
    if differing := names ^ (DEVICES.keys() | KERNEL):
        raise ValueError(f"describe what {', '.join(sorted(differing))} does to a sleeping device")
    for name, (source, suspended, idle) in DEVICES.items():
        yield code(name), source, suspended, idle
    others = codes(one.name for one in COLLECTORS if one.name in KERNEL)
    yield others, "no device", "None.", "None."


def request_rows() -> Iterator[tuple[str, ...]]:
    """Yield engine, path, frequency and effect of each request."""
    for kind in KINDS:
        for one in kind.requests:
            yield kind.title, codes(one.path.split("|"), ", else "), one.asked, one.effect


def render() -> str:
    devices = ("collector", "reads", "effect on a suspended GPU", "on an idle GPU that may be suspended")
    requests = ("server", "request", "sent", "effect")
    return page(
        "Effects on servers, GPUs and disks",
        INTRO,
        GPUS,
        table(devices, device_rows()),
        SUSPENDED,
        DISKS,
        SERVERS,
        table(requests, request_rows()),
        NEVER,
    )
