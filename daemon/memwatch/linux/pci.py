"""Which makers' display controllers are on the PCI bus. Not a collector."""

from __future__ import annotations

import os

from memwatch.linux.files import Roots, read_once

NVIDIA, AMD, INTEL = "10de", "1002", "8086"


class GpuPids:
    """Which processes hold memory of a GPU: told by some collectors, asked by another."""

    def __init__(self) -> None:
        self._by_collector: dict[str, frozenset[int]] = {}

    def tell(self, collector: str, pids: frozenset[int]) -> None:
        """What one collector knows now, instead of what it said before."""
        self._by_collector[collector] = pids

    def __call__(self) -> frozenset[int]:
        return frozenset().union(*self._by_collector.values())


def pci_vendors(roots: Roots) -> frozenset[str]:
    """Vendor ids, four hexadecimal digits, of display controllers and accelerators."""
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
