"""Facts of the machine and of the daemon for the head of the report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil
from msgspec import Struct

import memwatch
from hardware.native import GpuFacts
from hardware.vendor_tools import Tool

MIB = 1 << 20
# Set to read another machine's files in place of this one's.
HOST_PATHS = ("MEMWATCHD_PROCFS", "MEMWATCHD_SYSFS", "MEMWATCHD_ROOTFS")
DRIVER_COLLECTORS = ("nvml", "tegra", "nvmap", "amdgpu", "amdsmi", "drm")


def describe_machine(snapshot: Any, device: Any, gpu: GpuFacts, tool: Tool) -> Mapping[str, str]:
    """Return the facts that a reader needs to compare two reports. The host's name and UUIDs are left out."""
    replaced = [f"{name}={os.environ[name]}" for name in HOST_PATHS if name in os.environ]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **({"simulated": f"files of {', '.join(replaced)}"} if replaced else {}),
        "machine": snapshot["machine"]["name"] or "unknown",
        "GPU": f"{device['name']} ({device['id']} of {len(snapshot['devices'])})",
        "driver": str(device["driver"]),
        "driver API": f"{gpu.api} {gpu.version}, which calls it {gpu.name}",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "architecture": f"{device['architecture']}: {'; '.join(device['evidence'])}",
        "vendor's tool": tool.name,
        "memwatchd": f"{memwatch.__version__}, Python {platform.python_version()}",
        "user": _describe_user(),
    }


def _describe_user() -> str:
    if os.geteuid() == 0:
        return "root"
    return "not root: NvMap's list of processes (Jetson), other users' fdinfo and the kernel's log may be missing"


class Cost(Struct):
    """CPU time of the daemon and its helpers since this was created."""

    pid: int
    began: float
    cpu_seconds: float

    @classmethod
    def since_now(cls, pid: int) -> Cost:
        return cls(pid, time.monotonic(), sum(_cpu_seconds(one) for one in _tree(pid)))

    def describe(self, snapshot: Any) -> Mapping[str, str]:
        processes = _tree(self.pid)
        spent = sum(map(_cpu_seconds, processes)) - self.cpu_seconds
        passed = time.monotonic() - self.began
        collectors = [one for one in snapshot["collectors"] if one["name"] in DRIVER_COLLECTORS]
        return {
            "CPU, daemon and helpers": f"{100 * spent / passed:.2f} % of a core over {passed:.0f} s",
            "RSS": ", ".join(f"{_rss(one) / MIB:.1f} MiB ({_role(one, self.pid)})" for one in processes),
            **{f"collector {one['name']}": _describe_collector(one) for one in collectors},
            "calls of the driver": "not counted by the daemon",
        }


def _describe_collector(collector: Any) -> str:
    seconds = collector["duration_seconds"]
    took = "not read" if seconds is None else f"{seconds * 1000:.1f} ms for the last read"
    return f"{collector['state']}, {took}, {sum(collector['errors'].values())} errors"


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _rss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _role(process: psutil.Process, daemon: int) -> str:
    return "daemon" if process.pid == daemon else "helper"


def display_gpus() -> list[str]:
    """Return the vendor and device numbers of display controllers of NVIDIA, AMD and Intel."""
    vendors = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
    found = []
    folder = os.path.join(os.environ.get("MEMWATCHD_SYSFS", "/sys"), "bus/pci/devices")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        kind, vendor, device = (_read(folder, name, part) for part in ("class", "vendor", "device"))
        if kind.startswith("0x03") and vendor in vendors:
            found.append(f"{vendors[vendor]} {vendor[2:]}:{device[2:]}")
    return found


def _read(*parts: str) -> str:
    with suppress(OSError), open(os.path.join(*parts)) as file:
        return file.read().strip()
    return ""
