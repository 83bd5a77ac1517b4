"""The files that a report contains: those that collectors read, how each is redacted, and the search for them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from msgspec import Struct

from memwatch.core.linux.files import Roots, names_in
from memwatch.core.linux.pci import read_gpu
from memwatch.core.printable import describe_error
from memwatch.core.runtime.programs import MAX_LINKS


class Kind(Enum):
    """Redaction of a file. `FIGURES`: as it is, for files in which the kernel writes only numbers and its own
    names. `TEXT`: with names, addresses and ids replaced. `PRESENCE`: empty, as only its existence counts.
    `LINK`: a symbolic link that is not followed. The others have a format of their own.
    """

    FIGURES = "figures"
    TEXT = "text"
    PRESENCE = "presence"
    LINK = "link"
    HOST = "host name"
    BOOT = "boot id"
    SERIAL = "serial number"
    BOOT_OPTIONS = "boot options"
    CPU_TIMES = "processor times"
    MOUNTS = "mounts"
    CGROUP = "cgroup paths"
    ENVIRONMENT = "environment"
    STAT = "process"
    STATUS = "process status"
    FDINFO = "descriptor"
    NODE_PROPERTIES = "node properties"
    NVMAP_CLIENTS = "nvmap clients"
    DISTRIBUTION = "distribution"
    PCI_IDS = "pci ids"


class Source(Struct, frozen=True):
    """Files by their root (`proc`, `sys` or `root`) and pattern, in which `*` matches within a name.

    `wakes`: reading it could wake a suspended device.
    """

    root: str
    pattern: str
    kind: Kind = Kind.FIGURES
    wakes: bool = False


_PROC = {
    Kind.FIGURES: (
        "meminfo",
        "vmstat",
        "buddyinfo",
        "zoneinfo",
        "pressure/memory",
        "sys/kernel/osrelease",
        "sys/kernel/arch",
        "sys/kernel/pid_max",
        "self/uid_map",
        "spl/kstat/zfs/arcstats",
        "driver/nvidia/gpus/*/numa_status",
    ),
    Kind.TEXT: ("driver/nvidia/params", "device-tree/model", "device-tree/compatible"),
    Kind.CPU_TIMES: ("stat",),
    Kind.HOST: ("sys/kernel/hostname",),
    Kind.BOOT: ("sys/kernel/random/boot_id",),
    Kind.BOOT_OPTIONS: ("cmdline",),
    Kind.MOUNTS: ("self/mountinfo",),
    Kind.CGROUP: ("self/cgroup",),
    Kind.ENVIRONMENT: ("1/environ",),
}
_SYS = {
    Kind.FIGURES: (
        "devices/system/node/node*/meminfo",
        "devices/system/node/node*/cpulist",
        "block/zram*/mm_stat",
        "block/zram*/disksize",
        "class/kfd/kfd/topology/generation_id",
        "class/kfd/kfd/topology/nodes/*/gpu_id",
        "class/kfd/kfd/topology/nodes/*/name",
        "class/kfd/kfd/topology/nodes/*/mem_banks/*/properties",
        "module/nvidia/version",
        "module/amdgpu/version",
        "module/ttm/parameters/p*",
        "module/amdttm/parameters/p*",
        "kernel/debug/dri/*/tile*/vram_mm",
    ),
    Kind.TEXT: (
        "class/dmi/id/sys_vendor",
        "class/dmi/id/product_name",
        "class/dmi/id/product_version",
        "class/dmi/id/board_vendor",
        "class/dmi/id/board_name",
        "firmware/devicetree/base/model",
        "firmware/devicetree/base/compatible",
    ),
    Kind.NODE_PROPERTIES: ("class/kfd/kfd/topology/nodes/*/properties",),
    Kind.NVMAP_CLIENTS: ("kernel/debug/nvmap/iovmm/clients",),
    Kind.PRESENCE: ("bus/pci/drivers/amdgpu/new_id", "bus/platform/uevent"),
}
_ROOT = {
    Kind.TEXT: ("etc/nv_tegra_release", "run/systemd/container"),
    Kind.FIGURES: ("opt/rocm/.info/version", "usr/share/libdrm/amdgpu.ids"),
    Kind.PRESENCE: (
        ".dockerenv",
        "run/.containerenv",
        "dev/dxg",
        "dev/nvidiactl",
        "dev/nvmap",
        "dev/nvhost-ctrl",
        "dev/nvhost-gpu",
    ),
    Kind.DISTRIBUTION: ("etc/os-release",),
    Kind.PCI_IDS: ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids"),
}
# Folders whose existence counts, also if they have none of the files: a machine without GPUs has a bus.
FOLDERS = ("proc/driver/nvidia", "sys/bus", "sys/class/drm", "sys/class/kfd", "sys/block", "sys/fs/cgroup")
_PCI = ("class", "vendor", "device")
# Below the device of a card. Reading the last group can resume a suspended GPU.
_CARD = {
    Kind.FIGURES: (
        *_PCI,
        "revision",
        "board_info",
        "power/runtime_status",
        "power/control",
        "power/autosuspend_delay_ms",
        "mem_info_*",
        "current_*_partition",
        "available_*_partition",
        "uma/carveout*",
    ),
    Kind.TEXT: ("uevent", "product_name"),
    Kind.SERIAL: ("unique_id",),
    Kind.LINK: ("driver", "physfn"),
}
_CARD_SENSORS = (
    "gpu_busy_percent",
    "mem_busy_percent",
    "gpu_metrics",
    "ras/*_err_count",
    "ras/gpu_vram_bad_pages",
    "hwmon/hwmon*/name",
    "hwmon/hwmon*/*_label",
    "hwmon/hwmon*/*_input",
    "hwmon/hwmon*/*_average",
)
_CARDS = (
    "class/drm/card[0-9]",
    "class/drm/card[0-9][0-9]",
    "class/accel/accel[0-9]",
    "class/accel/accel[0-9][0-9]",
)
_CGROUP = {
    2: (
        "memory.stat",
        "memory.max",
        "memory.high",
        "memory.events",
        "memory.current",
        "memory.pressure",
        "dmem.capacity",
        "dmem.current",
        "dmem.max",
        "dmem.low",
        "dmem.min",
        "dmem.peak",
    ),
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat", "memory.oom_control"),
}
_PROCESS = {Kind.STAT: "stat", Kind.STATUS: "status", Kind.FIGURES: "statm", Kind.CGROUP: "cgroup"}


def list_sources(roots: Roots) -> Iterator[Source]:
    """Yield the sources of the machine itself. Those of cgroups and processes follow from its processes."""
    for root, table in (("proc", _PROC), ("sys", _SYS), ("root", _ROOT)):
        yield from _table(root, "", table)
    for card in _CARDS:
        yield Source("sys", f"{card}/dev")
        yield Source("sys", f"{card}/lmem_total_bytes")
        yield Source("sys", f"{card}/device/drm/*/dev")
        yield from _device(f"{card}/device/")
    for address in names_in(roots.sysfs / "bus/pci/devices"):
        if read_gpu(roots.sysfs / "bus/pci/devices" / address) is not None:
            yield from _device(f"bus/pci/devices/{address}/")


def _table(root: str, folder: str, table: dict[Kind, tuple[str, ...]]) -> Iterator[Source]:
    for kind, patterns in table.items():
        yield from (Source(root, folder + pattern, kind) for pattern in patterns)


def _device(folder: str) -> Iterator[Source]:
    yield from _table("sys", folder, _CARD)
    yield from (Source("sys", folder + pattern, wakes=True) for pattern in _CARD_SENSORS)


def process_sources(pids: Sequence[int]) -> Iterator[Source]:
    """Yield the files of processes. Their descriptors are listed by `gpu_descriptors`."""
    for pid in pids:
        yield from (Source("proc", f"{pid}/{name}", kind) for kind, name in _PROCESS.items())
        yield Source("sys", f"class/kfd/kfd/proc/{pid}/vram_*")
        yield Source("sys", f"class/kfd/kfd/proc/{pid}/sdma_*")
        yield Source("sys", f"class/kfd/kfd/proc/{pid}/context_*/vram_*")


def cgroup_sources(mounts: Sequence[tuple[int, Path]], paths: Sequence[str]) -> Iterator[Source]:
    """Yield the files of cgroups and their ancestors.

    `mounts` are versions of hierarchies and folders relative to sysfs. `paths` begin with a slash.
    """
    folders = dict.fromkeys(folder for path in paths for folder in _ancestors(path))
    for version, mount in mounts:
        for folder in folders:
            place = escape(f"{mount}/{folder}".rstrip("/"))  # a user may name a group `*`
            yield from (Source("sys", f"{place}/{name}") for name in _CGROUP[version])


def _ancestors(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    yield from ("/".join(parts[:end]) for end in range(len(parts) + 1))


class Walk:
    """A search below one root. `links` collects symbolic links, `unread` folders that cannot be listed.

    Both are keyed by the path relative to the root; `unread` has the reason.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.links: dict[str, str] = {}
        self.unread: dict[str, str] = {}

    def find(self, pattern: str, follow_last: bool = True) -> Iterator[str]:
        """Yield the paths of existing files that match, with links resolved. The last is kept if not followed."""
        yield from self._step("", pattern.split("/"), follow_last, MAX_LINKS)

    def _step(self, folder: str, parts: Sequence[str], follow_last: bool, links_left: int) -> Iterator[str]:
        if not parts:
            yield folder
            return
        first, rest = parts[0], parts[1:]
        if first in ("", "."):
            yield from self._step(folder, rest, follow_last, links_left)
        elif first == "..":
            if folder:
                yield from self._step(posixpath.dirname(folder), rest, follow_last, links_left)
        else:
            for name in self._names(folder, first):
                yield from self._enter(f"{folder}/{name}".lstrip("/"), rest, follow_last, links_left)

    def _enter(self, path: str, rest: Sequence[str], follow_last: bool, links_left: int) -> Iterator[str]:
        full = self._root / path
        if not os.path.lexists(full):
            self._note_hidden(full, path)
            return
        if not full.is_symlink():
            yield from self._step(path, rest, follow_last, links_left)
            return
        target = os.readlink(full)
        if not links_left or target.startswith("/"):
            return
        self.links[path] = target
        if rest or follow_last:
            parts = (*target.split("/"), *rest)
            yield from self._step(posixpath.dirname(path), parts, follow_last, links_left - 1)
        else:
            yield path

    def _names(self, folder: str, pattern: str) -> Sequence[str]:
        if not any(mark in pattern for mark in "*?["):
            return (pattern,)
        try:
            names = os.listdir(self._root / folder)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                self.unread[folder] = describe_error(error)
            return ()
        return sorted(name for name in names if fnmatchcase(name, pattern))

    def _note_hidden(self, full: Path, path: str) -> None:
        """Note a file in a folder without access: `lexists` is false for it as well."""
        try:
            os.lstat(full)
        except PermissionError as error:
            self.unread[path] = describe_error(error)
        except OSError:
            return
