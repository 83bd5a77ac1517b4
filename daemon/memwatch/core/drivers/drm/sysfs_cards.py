"""Graphics cards in sysfs. No device is opened, so a suspended card stays suspended."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from memwatch.core.drivers.drm.cards import (
    NOT_HERE,
    SILENT,
    build_regions,
    can_render,
    find_model,
    is_card,
    is_npu,
    parse_dmem,
    parse_id,
    parse_lmem,
    parse_uevent,
    parse_vram_mm,
    select_compatible,
    select_nodes,
)
from memwatch.core.drivers.drm.fdinfo import is_pci_address
from memwatch.core.drivers.drm.records import DrmCard, DrmRegion
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.linux.runtime_power import is_awake
from memwatch.core.model import Absent, Words
from memwatch.core.printable import printable

# The list of PCI ids on Debian and on Fedora.
PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


def card_names(sysfs: Path) -> list[str]:
    return [name for name in _names(sysfs / "class/drm") if is_card(name)]


def read_cards(roots: Roots) -> tuple[DrmCard, ...]:
    """Return every card in the order of its place, without memory regions."""
    found = [_card_at(roots, name) for name in card_names(roots.sysfs)]
    return tuple(sorted(found, key=lambda card: (card.pdev is None, card.place, card.name)))


def npu_names(sysfs: Path) -> list[str]:
    return [name for name in _names(sysfs / "class/accel") if is_npu(name)]


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
        tiles = [name for name in _names(folder) if name.startswith("tile")]
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
        driver=_read_driver_name(device) or uevent.get("DRIVER") or Absent.NOT_AVAILABLE,
        place=place,
        pdev=place if is_pci else None,
        nodes=select_nodes(_names(device / kind)) or (name,),
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


def _read_driver_name(device: Path) -> str:
    try:
        return printable(os.path.basename(os.readlink(device / "driver")))
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
