"""Parsers of graphics cards' files in sysfs, debugfs and the dmem cgroup controller. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memwatch.core.drivers.drm.records import DrmRegion
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import decode, printable

# /sys/class/drm also has connectors (card1-DP-1), render nodes and the file "version".
_CARD = re.compile(r"card\d{1,4}")
_NPU = re.compile(r"accel\d{1,4}")
_NODE = re.compile(r"(?:card|renderD|controlD|accel)\d{1,4}")
_ID = re.compile(r"(?:0x)?([0-9a-f]{4})")
_DMEM = re.compile(rb"^drm/([^/\n ]{1,64})/([^/\n ]{1,32}) (\d{1,19})\n", re.MULTILINE)
_UEVENT = re.compile(r"^([A-Z_0-9]{1,40})=([^\n]{0,200})\n", re.MULTILINE)
_SIZE = re.compile(rb"^ *size: (\d{1,19})\n", re.MULTILINE)
_USAGE = re.compile(rb"^ *usage: (\d{1,19})\n", re.MULTILINE)

# No card has an exbibyte of memory.
MAX_BYTES = 1 << 60

# NVIDIA's driver (covered by NVML), Tegra's drivers, and displays without a GPU.
NOT_HERE = frozenset({"nvidia", "nvidia-drm", "simple-framebuffer", "tegra-drm", "tegra-udrm", "vkms"})
# Drivers whose fdinfo has no memory statistics. No descriptors are searched for their clients.
SILENT = frozenset({"nouveau"})


def is_card(name: str) -> bool:
    return _CARD.fullmatch(name) is not None


def is_npu(name: str) -> bool:
    return _NPU.fullmatch(name) is not None


def select_nodes(names: list[str]) -> tuple[str, ...]:
    """Return the device files among the entries of a device's folder `drm` or `accel`."""
    return tuple(sorted(name for name in names if _NODE.fullmatch(name)))


def can_render(nodes: tuple[str, ...]) -> bool:
    """Return True if there is a render node. Without one a card is only a display, such as a server's BMC."""
    return any(node.startswith("renderD") for node in nodes)


def parse_id(data: bytes | None) -> Words:
    """Parse a PCI vendor or device id, four hexadecimal digits."""
    found = _ID.fullmatch((data or b"").strip().decode("ascii", "replace").lower())
    return found[1] if found else Absent.NOT_SUPPORTED


def find_model(pci_ids: bytes, vendor: Words, device: Words) -> Words:
    """Return a device's name from the list of PCI ids: "Intel Arc A770" for "56a0  DG2 [Arc A770]"."""
    if isinstance(vendor, Absent) or isinstance(device, Absent):
        return Absent.NOT_SUPPORTED
    maker = re.search(rf"^{vendor}  (\S+).*\n((?:\t.*\n|#.*\n)*)".encode(), pci_ids, re.MULTILINE)
    found = maker and re.search(rf"^\t{device}  (.*)\n".encode(), maker[2], re.MULTILINE)
    if not maker or not found:
        return Absent.NOT_AVAILABLE
    name = decode(found[1][:200]).strip().rpartition("[")[2].rstrip("]")
    word = decode(maker[1])
    return name if name.startswith(word) else f"{word} {name}"


def parse_uevent(data: bytes | None) -> Mapping[str, str]:
    found = _UEVENT.findall((data or b"").decode("ascii", "replace"))
    return {key: printable(value) for key, value in found}


def select_compatible(uevent: Mapping[str, str]) -> Words:
    """Return the GPU's most general compatible string in the device tree, such as `arm,mali-valhall-csf`."""
    words = [word for key, word in sorted(uevent.items()) if re.fullmatch(r"OF_COMPATIBLE_\d", key)]
    return words[-1] if words else Absent.NOT_SUPPORTED


def parse_dmem(data: bytes | None) -> Mapping[tuple[str, str], int]:
    """Parse bytes by device and region. A region without a number ("max") is left out."""
    return {(_text(device), _text(region)): int(size) for device, region, size in _DMEM.findall(data or b"")}


def build_regions(
    device: str, capacity: Mapping[tuple[str, str], int], current: Mapping[tuple[str, str], int]
) -> Iterator[DrmRegion]:
    """Return a card's own memory from the dmem controller. The root cgroup's counter covers the whole device."""
    for (owner, name), size in sorted(capacity.items()):
        if owner == device and 0 < size <= MAX_BYTES:
            yield build_region(name, size, current.get((owner, name), Absent.NOT_SUPPORTED), "cgroup:dmem.current")


def parse_vram_mm(name: str, data: bytes | None) -> DrmRegion | None:
    """Parse `size` and `usage` of a memory manager of xe in debugfs, both in bytes."""
    size, usage = _SIZE.search(data or b""), _USAGE.search(data or b"")
    if not size or not usage or not 0 < int(size[1]) <= MAX_BYTES:
        return None
    return build_region(name, int(size[1]), int(usage[1]), "debugfs:vram_mm")


def parse_lmem(data: bytes | None) -> DrmRegion | None:
    """Parse the memory size of a discrete card with Intel's out-of-tree i915, which does not report its use."""
    text = (data or b"").strip()
    if not re.fullmatch(rb"\d{1,19}", text) or not 0 < int(text) <= MAX_BYTES:
        return None
    return build_region("local0", int(text), Absent.NOT_PERMITTED, "sysfs:lmem_total_bytes")


def build_region(name: str, size: int, used: Bytes, source: str) -> DrmRegion:
    fits = isinstance(used, Absent) or used <= size
    return DrmRegion(name, size, used if fits else Absent.INCONSISTENT, source)


def _text(raw: bytes) -> str:
    return printable(raw.decode("ascii", "backslashreplace"))
