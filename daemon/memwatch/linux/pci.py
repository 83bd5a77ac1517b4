"""Vendors of display controllers on the PCI bus, and process ids of GPU users. Not a collector."""

from __future__ import annotations

import os

from memwatch.linux.files import Roots, read_once

NVIDIA, AMD, INTEL = "10de", "1002", "8086"


class GpuPids:
    """Process ids that hold GPU memory: set by some collectors, read by another."""

    def __init__(self) -> None:
        self._by_collector: dict[str, frozenset[int]] = {}

    def update(self, collector: str, pids: frozenset[int]) -> None:
        """Replace the process ids of one collector."""
        self._by_collector[collector] = pids

    def __call__(self) -> frozenset[int]:
        return frozenset().union(*self._by_collector.values())


def pci_vendors(roots: Roots) -> frozenset[str]:
    """Return the vendor ids, four hexadecimal digits, of display controllers and accelerators."""
    folder = roots.sysfs / "bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    found = set()
    for name in names:
        kind = (read_once(folder / name / "class") or b"").strip()
        if kind.startswith((b"0x03", b"0x12")):
            vendor = (read_once(folder / name / "vendor") or b"").strip().decode("ascii", "replace")
            found.add(vendor.removeprefix("0x").lower())
    return frozenset(found)


def pci_numbers(address: object) -> tuple[int, ...] | None:
    """Return a PCI address as numbers, so that 00000000:01:00.0 (NVML) and 0000:01:00.0 (sysfs) are equal."""
    parts = str(address).replace(".", ":").split(":") if isinstance(address, str) else []
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return None
    return numbers if len(numbers) == 4 else None
