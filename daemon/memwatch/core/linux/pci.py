"""GPUs on the PCI bus, process ids of GPU users, and power management of devices. Not a collector.

A device may be suspended while `power/control` is `auto`. `power/runtime_status` is `active`, `suspended`, or one
of the two ways between them (https://docs.kernel.org/power/runtime_pm.html). Reading these files wakes no device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from memwatch.core.linux.files import Roots, read_once

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_GPU_VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}
# Display controllers of server boards that carry a GPU maker's name: ATI Rage XL and ES1000.
_BOARD_DISPLAYS = frozenset({(AMD, "4752"), (AMD, "515e")})
# Values of `runtime_status`; a kernel without power management has none.
_AWAKE = ("active", "unsupported")
_CARD = re.compile(r"card\d{1,6}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class PciGpu(Struct, frozen=True):
    """A GPU on the PCI bus by vendor and device id, four hexadecimal digits each."""

    vendor: str
    device: str

    @property
    def maker(self) -> str:
        return _GPU_VENDORS[self.vendor]

    def __str__(self) -> str:
        return f"{self.maker} {self.vendor}:{self.device}"


def parse_gpu(pci_class: str, vendor: str, device: str) -> PciGpu | None:
    """Return the GPU in a PCI function, None if it is not a GPU. Takes ids as in sysfs: `0x030000`.

    AMD's Instinct cards without a display are "processing accelerators" (0x1200). So are Intel's NPUs, which are
    not GPUs.
    """
    kind, maker, number = (word.removeprefix("0x").lower() for word in (pci_class, vendor, device))
    shows = kind.startswith("03") and maker in _GPU_VENDORS and (maker, number) not in _BOARD_DISPLAYS
    computes = kind.startswith("1200") and maker == AMD
    return PciGpu(maker, number) if shows or computes else None


def read_gpu(function: Path) -> PciGpu | None:
    """Read the GPU of a folder in /sys/bus/pci/devices. None if it is not one."""
    pci_class = _read_word(function / "class")
    if not is_gpu_class(pci_class):
        return None
    return parse_gpu(pci_class, _read_word(function / "vendor"), _read_word(function / "device"))


def is_unread(function: Path) -> bool:
    """Return True for a PCI function that is there and may be a GPU: its class or its maker cannot be read."""
    pci_class = _read_word(function / "class")
    is_known = bool(pci_class) and not (is_gpu_class(pci_class) and not _read_word(function / "vendor"))
    return not is_known and os.path.exists(function)


def is_gpu_class(pci_class: str) -> bool:
    """Check for a display controller or a processing accelerator."""
    return pci_class.startswith(("0x03", "0x12"))


def _read_word(path: Path) -> str:
    return (read_once(path) or b"").decode("ascii", "replace").strip()


class GpuPids:
    """Process ids that hold GPU memory: set by some collectors, read by another."""

    def __init__(self) -> None:
        self._by_collector: dict[str, frozenset[int]] = {}

    def update(self, collector: str, pids: frozenset[int]) -> None:
        """Replace the process ids of one collector."""
        self._by_collector[collector] = pids

    def __call__(self) -> frozenset[int]:
        return frozenset().union(*self._by_collector.values())

    def driver_lists(self) -> Mapping[str, frozenset[int]]:
        """Return the lists of drivers by collector. Those of DRM clients are read in /proc itself."""
        return {name: pids for name, pids in self._by_collector.items() if name != "drm"}


def pci_vendors(roots: Roots, kernel_driver: str = "") -> frozenset[str]:
    """Return the vendor ids, four hexadecimal digits, of display controllers and accelerators.

    With `kernel_driver`, of those only that are bound to it: not to another driver, such as vfio-pci for a virtual
    machine, and not to none.
    """
    folder = roots.sysfs / "bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    found = set()
    for name in names:
        kind = (read_once(folder / name / "class") or b"").strip()
        if kind.startswith((b"0x03", b"0x12")) and kernel_driver in ("", bound_driver(folder / name)):
            vendor = (read_once(folder / name / "vendor") or b"").strip().decode("ascii", "replace")
            found.add(vendor.removeprefix("0x").lower())
    return frozenset(found)


def bound_driver(function: Path) -> str:
    """Return the name of the driver that is bound to a PCI function, or an empty string."""
    try:
        return os.path.basename(os.readlink(function / "driver"))
    except OSError:
        return ""


def is_card(name: str) -> bool:
    """Check for the name of a graphics card in /sys/class/drm, whose connectors are `card0-HDMI-A-1`."""
    return _CARD.fullmatch(name) is not None


def is_pci_address(text: str) -> bool:
    """Check for an address in the format of sysfs."""
    return _ADDRESS.fullmatch(text) is not None


def pci_numbers(address: object) -> tuple[int, ...] | None:
    """Return a PCI address as numbers, so that 00000000:01:00.0 (NVML) and 0000:01:00.0 (sysfs) are equal."""
    parts = str(address).replace(".", ":").split(":") if isinstance(address, str) else []
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return None
    return numbers if len(numbers) == 4 else None


def read_status(device: Path) -> str:
    """Return the runtime status. A kernel without power management has no such file: its devices are `unsupported`.

    An unreadable file is no evidence that a device is awake: the status is empty then.
    """
    file = device / "power/runtime_status"
    data = read_once(file)
    if data is None:
        return "" if os.path.exists(file) else "unsupported"
    return data.decode("ascii", "replace").strip()


def is_awake_status(status: object) -> bool:
    return status in _AWAKE


def is_awake(device: Path) -> bool:
    """Return True if no call can wake the device, as it is awake. A device that is just resuming is not, yet."""
    return is_awake_status(read_status(device))


def may_suspend(device: Path) -> bool:
    """Return False only for `on`, which keeps a device awake."""
    return (read_once(device / "power/control") or b"").strip() != b"on"
