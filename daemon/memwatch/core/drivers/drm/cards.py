"""Graphics cards and NPUs in sysfs, debugfs and the dmem cgroup controller.

No device is opened, so a suspended card stays suspended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from memwatch.core.drivers.drm.records import DrmCard, DrmRegion
from memwatch.core.linux.files import Roots, names_in, read_once
from memwatch.core.linux.pci import bound_driver, is_awake, is_card, is_pci_address
from memwatch.core.model import MAX_BYTES, Absent, Bytes, Words
from memwatch.core.printable import decode, printable

# /sys/class/drm also has connectors (card1-DP-1), render nodes and the file "version".
_NPU = re.compile(r"accel\d{1,4}")
_NODE = re.compile(r"(?:card|renderD|controlD|accel)\d{1,4}")
_ID = re.compile(r"(?:0x)?([0-9a-f]{4})")
_DMEM = re.compile(rb"^drm/([^/\n ]{1,64})/([^/\n ]{1,32}) (\d{1,19})\n", re.MULTILINE)
_UEVENT = re.compile(r"^([A-Z_0-9]{1,40})=([^\n]{0,200})\n", re.MULTILINE)
_SIZE = re.compile(rb"^ *size: (\d{1,19})\n", re.MULTILINE)
_USAGE = re.compile(rb"^ *usage: (\d{1,19})\n", re.MULTILINE)


# NVIDIA's driver (covered by NVML), Tegra's drivers, and displays without a GPU.
NOT_HERE = frozenset({"nvidia", "nvidia-drm", "simple-framebuffer", "tegra-drm", "tegra-udrm", "vkms"})
# Drivers whose fdinfo has no memory statistics. No descriptors are searched for their clients.
SILENT = frozenset({"nouveau"})
# The list of PCI ids on Debian and on Fedora.
PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


def is_npu(name: str) -> bool:
    return _NPU.fullmatch(name) is not None


def select_nodes(names: Iterable[str]) -> tuple[str, ...]:
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


def card_names(sysfs: Path) -> list[str]:
    return [name for name in names_in(sysfs / "class/drm") if is_card(name)]


def read_cards(roots: Roots) -> tuple[DrmCard, ...]:
    """Return every card in the order of its place, without memory regions."""
    found = [_card_at(roots, name) for name in card_names(roots.sysfs)]
    return tuple(sorted(found, key=lambda card: (card.pdev is None, card.place, card.name)))


def npu_names(sysfs: Path) -> list[str]:
    return [name for name in names_in(sysfs / "class/accel") if is_npu(name)]


def read_npus(roots: Roots) -> tuple[DrmCard, ...]:
    """Return every neural processing unit in the order of its place."""
    found = [_card_at(roots, name, "accel") for name in npu_names(roots.sysfs)]
    return tuple(sorted(found, key=lambda npu: (npu.pdev is None, npu.place, npu.name)))


def is_wanted(card: DrmCard) -> bool:
    """Return True for a GPU that no other collector covers."""
    return can_render(card.nodes) and card.driver not in NOT_HERE


def reports_memory(card: DrmCard) -> bool:
    """Return True if the card's driver may have client statistics."""
    return is_wanted(card) and card.driver not in SILENT


def regions_by_name(
    roots: Roots, cards: tuple[DrmCard, ...], asleep: Collection[str]
) -> Mapping[str, tuple[DrmRegion, ...]]:
    """Return the cards' own memory by card. The dmem controller has it for xe and amdgpu since Linux 6.14."""
    group = roots.sysfs / "fs/cgroup"
    capacity = parse_dmem(read_once(group / "dmem.capacity"))
    current = parse_dmem(read_once(group / "dmem.current")) if capacity else {}
    return {
        card.name: tuple(build_regions(card.place, capacity, current))
        or (() if card.name in asleep else _regions_elsewhere(roots, card))
        for card in cards
    }


def is_asleep(sysfs: Path, card: DrmCard) -> bool:
    return not is_awake(sysfs / "class/drm" / card.name / "device")


def _regions_elsewhere(roots: Roots, card: DrmCard) -> tuple[DrmRegion, ...]:
    if card.driver == "xe":
        folder = roots.sysfs / "kernel/debug/dri" / card.place
        tiles = [name for name in names_in(folder) if name.startswith("tile")]
        found = [parse_vram_mm(f"vram{tile[4:]}", read_once(folder / tile / "vram_mm")) for tile in tiles]
    else:
        found = [parse_lmem(read_once(roots.sysfs / "class/drm" / card.name / "lmem_total_bytes"))]
    return tuple(region for region in found if region)


def _card_at(roots: Roots, name: str, kind: str = "drm") -> DrmCard:
    folder = roots.sysfs / "class" / kind / name
    device = folder / "device"
    uevent = parse_uevent(read_once(device / "uevent"))
    place = os.path.basename(os.path.realpath(device)) if os.path.exists(device) else name
    is_pci = is_pci_address(place)
    vendor = parse_id(read_once(device / "vendor")) if is_pci else Absent.NOT_SUPPORTED
    number = parse_id(read_once(device / "device")) if is_pci else Absent.NOT_SUPPORTED
    return DrmCard(
        name=name,
        driver=printable(bound_driver(device)) or uevent.get("DRIVER") or Absent.NOT_AVAILABLE,
        place=place,
        pdev=place if is_pci else None,
        nodes=select_nodes(names_in(device / kind)) or (name,),
        vendor_id=vendor,
        device_id=number,
        compatible=select_compatible(uevent),
        model=_model(roots.rootfs, vendor, number),
    )


@lru_cache(maxsize=64)
def _model(rootfs: Path, vendor: Words, device: Words) -> Words:
    # The list has 1.5 MB, so each device is looked up once.
    lists = (read_once(rootfs / place) for place in PCI_IDS)
    found = (find_model(data, vendor, device) for data in lists if data is not None)
    return next(found, Absent.NOT_AVAILABLE)
