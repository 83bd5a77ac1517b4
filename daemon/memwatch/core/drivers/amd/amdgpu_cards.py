"""GPUs of the amdgpu driver: their properties that do not change while it is loaded, and their names.

The driver's FUSION flag, which marks an APU, takes one ioctl. Opening a render node wakes a suspended GPU (Linux
6.12 and 7.2: pm_runtime_get_sync in amdgpu_driver_open_kms). The flag is therefore read only at startup, if the
files in sysfs are inconclusive, from a GPU that is awake, and never while polling.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memwatch.core.drivers.amd.records import AmdCard, KfdNode
from memwatch.core.drivers.amd.sysfs import (
    absent_reason,
    parse_figure,
    parse_id,
    parse_metrics_format,
    parse_node,
    parse_properties,
    parse_release,
    parse_text,
)
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import bound_driver, is_awake_status, is_card, is_pci_address, may_suspend
from memwatch.core.model import Absent, Bytes, Words, known_or
from memwatch.core.printable import decode

# Names by device id. amdgpu.ids, which also distinguishes revisions, takes precedence.
KNOWN = {
    "1114": "AMD Radeon 860M (Krackan Point)",
    "1435": "AMD Custom GPU (Steam Deck OLED)",
    "150e": "AMD Radeon 890M (Strix Point)",
    "1586": "AMD Radeon 8060S (Strix Halo)",
    "15bf": "AMD Radeon 780M (Phoenix)",
    "163f": "AMD Custom GPU (Steam Deck)",
    "1900": "AMD Radeon 780M (Hawk Point)",
    "740f": "AMD Instinct MI210",
    "744c": "AMD Radeon RX 7900 XT/XTX",
    "74a0": "AMD Instinct MI300A",
    "74a1": "AMD Instinct MI300X",
}

# amdgpu.ids has 40 KiB. A much larger file is something else.
MAX_LIST_BYTES = 1 << 20
_LINE = re.compile(rb"^([0-9A-Fa-f]{4}),[ \t]*([0-9A-Fa-f]{1,2}),[ \t]*(\S[^\r\n]{0,120})$", re.MULTILINE)

Names = Mapping[tuple[str, int], str]


def parse_ids(data: bytes) -> dict[tuple[str, int], str]:
    """Parse libdrm's amdgpu.ids: lines such as `744C, C8, AMD Radeon RX 7900 XTX`."""
    return {
        (device.decode().lower(), int(revision, 16)): decode(name.strip())
        for device, revision, name in _LINE.findall(data[:MAX_LIST_BYTES])
    }


def choose_name(product: str | None, device_id: str, revision: str, listed: Names) -> str:
    """Return the best name. `product` is read from the board's FRU chip, which few boards have."""
    number = int(revision, 16) if revision else -1
    name = product or listed.get((device_id, number)) or KNOWN.get(device_id)
    return name or f"AMD GPU 1002:{device_id or '????'}"


DRIVER = "amdgpu"
# AMD's driver package (amdgpu-dkms) ships amdttm in place of the kernel's ttm.
_TTM_MODULES = ("amdttm", "ttm")
_MAX_FILE_BYTES = 8192
_RENDER = re.compile(r"renderD(\d{1,6})")
_PARTITION = "amdgpu_xcp"


class CardEntries(Struct, frozen=True):
    """Entries of /sys/class/drm: names of cards by PCI address, and of partitions' cards by render minor."""

    gpus: Mapping[str, tuple[str, ...]]
    partitions: Mapping[int, str]


class Driver(Struct, frozen=True):
    """The driver as a whole. `release`: the kernel version whose behaviour it has."""

    release: tuple[int, ...]
    version: Words
    pages_limit_bytes: Bytes


def read(path: Path, size: int = _MAX_FILE_BYTES) -> bytes | Absent:
    """Return the first `size` bytes of a sysfs file, or why it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return absent_reason(error)
    try:
        return os.read(file, size)
    except OSError as error:
        return absent_reason(error)
    finally:
        os.close(file)


def list_names(folder: Path) -> list[str]:
    found = names_or_reason(folder)
    return known_or(found, [])


def names_or_reason(folder: Path) -> list[str] | Absent:
    """Return the sorted names in a folder, or why it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        return absent_reason(error)


def find(drm: Path) -> CardEntries:
    """List the driver's cards and their partitions.

    `card1-DP-1` is a connector. A partition of an MI300 is a platform device without memory files.
    """
    gpus: dict[str, tuple[str, ...]] = {}
    partitions: dict[int, str] = {}
    for name in list_names(drm):
        if not is_card(name):
            continue
        device = Path(os.path.realpath(drm / name / "device"))
        if device.name.startswith(_PARTITION):
            minor = _render_minor(device)
            partitions |= {} if minor is None else {minor: name}
        elif is_pci_address(device.name) and bound_driver(device) == DRIVER:
            gpus[device.name] = (*gpus.get(device.name, ()), name)
    return CardEntries(dict(sorted(gpus.items())), partitions)


def _render_minor(device: Path) -> int | None:
    minors = [int(found[1]) for name in list_names(device / "drm") if (found := _RENDER.fullmatch(name))]
    return minors[0] if minors else None


def read_driver(roots: Roots, page_size: int) -> Driver:
    """Read the driver's properties. AMD's package has its own version, numbered like the kernel it is based on."""
    modules = roots.sysfs / "module"
    version = parse_text(read(modules / DRIVER / "version"))
    release = parse_release(version.encode() if isinstance(version, str) else version)
    kernel = parse_release(read(roots.procfs / "sys/kernel/osrelease"))
    limits = [parse_figure(read(modules / ttm / "parameters/pages_limit")) for ttm in _TTM_MODULES]
    pages = next((limit for limit in limits if isinstance(limit, int)), limits[-1])
    return Driver(release or kernel, version, pages * page_size if isinstance(pages, int) else pages)


def read_nodes(topology: Path, known: Sequence[str]) -> tuple[KfdNode, ...]:
    """Return the compute driver's (KFD) nodes of the GPUs in `known`.

    In a container the files of GPUs that are not assigned to it cannot be read.
    """
    nodes = []
    for name in list_names(topology / "nodes"):
        folder = topology / "nodes" / name
        gpu_id, properties = parse_figure(read(folder / "gpu_id")), read(folder / "properties")
        if not (name.isdecimal() and len(name) < 6 and isinstance(gpu_id, int) and isinstance(properties, bytes)):
            continue
        found = parse_node(int(name), gpu_id, parse_properties(properties), _read_banks(folder), known)
        nodes += [found] if found else []
    return tuple(sorted(nodes, key=lambda node: node.number))


def _read_banks(folder: Path) -> list[dict[str, int]]:
    read_banks = [read(folder / "mem_banks" / bank / "properties") for bank in list_names(folder / "mem_banks")]
    return [parse_properties(data) for data in read_banks if isinstance(data, bytes)]


def read_names(roots: Roots) -> Names:
    data = read(roots.rootfs / "usr/share/libdrm/amdgpu.ids", MAX_LIST_BYTES)
    return parse_ids(data) if isinstance(data, bytes) else {}


def read_card(
    device: Path,
    cards: tuple[str, ...],
    nodes: Sequence[KfdNode],
    partitions: Mapping[int, str],
    names: Names,
    release: tuple[int, ...],
) -> AmdCard:
    """Read the constant properties of one GPU. `device` is its folder under /sys/bus/pci."""
    mine = tuple(node for node in nodes if node.pci == device.name)
    minors = [node.render_minor for node in mine if isinstance(node.render_minor, int)]
    device_id, revision = parse_id(read(device / "device")), parse_id(read(device / "revision"))
    product = parse_text(read(device / "product_name"))
    minor = _render_minor(device)
    return AmdCard(
        pci=device.name,
        cards=(*cards, *(partitions[one] for one in minors if one in partitions)),
        render_node=Absent.NOT_SUPPORTED if minor is None else f"renderD{minor}",
        device_id=device_id,
        revision=revision,
        name=choose_name(product if isinstance(product, str) else None, device_id, revision, names),
        vram_bytes=parse_figure(read(device / "mem_info_vram_total")),
        visible_vram_bytes=parse_figure(read(device / "mem_info_vis_vram_total")),
        gtt_bytes=parse_figure(read(device / "mem_info_gtt_total")),
        release=release,
        vram_vendor=parse_text(read(device / "mem_info_vram_vendor")),
        unique_id=parse_text(read(device / "unique_id")),
        compute_partition=parse_text(read(device / "current_compute_partition")),
        memory_partition=parse_text(read(device / "current_memory_partition")),
        may_sleep=may_suspend(device),
        has_uma=os.path.isdir(device / "uma"),
        has_board_info=os.path.exists(device / "board_info"),
        nodes=mine,
    )


def read_metrics_format(device: Path) -> int | Absent:
    """Read the format of gpu_metrics. Call it only for a GPU that is awake.

    Reading it queries the GPU's firmware, and up to Linux 6.12 wakes a suspended GPU.
    """
    return parse_metrics_format(read(device / "gpu_metrics", 16))


# include/uapi/drm/amdgpu_drm.h of Linux 7.2: DRM_IOCTL_AMDGPU_INFO and AMDGPU_INFO_DEV_INFO.
INFO_IOCTL = 0x40206445
DEVICE_QUERY = 0x16
# Offset of ids_flags in struct drm_amdgpu_info_device, and AMDGPU_IDS_FLAGS_FUSION.
FLAGS_OFFSET, FUSION_FLAG = 136, 1
_REPLY_BYTES = 512

Open = Callable[[Path], int]
Ioctl = Callable[[int, int, bytes], object]


def open_node(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def call(file: int, request: int, argument: bytes) -> object:
    return fcntl.ioctl(file, request, argument)


def is_fused(
    render_node: Path, runtime_status: str | Absent, opener: Open = open_node, ioctl: Ioctl = call
) -> bool | Absent:
    """Return the FUSION flag of a GPU that is certainly awake. Any other GPU is not opened."""
    if not is_awake_status(runtime_status):
        return Absent.NOT_AVAILABLE
    try:
        file = opener(render_node)
    except OSError as error:
        return absent_reason(error)
    try:
        return parse_device(_device_info(file, ioctl))
    except OSError as error:
        return absent_reason(error)
    finally:
        with suppress(OSError):
            os.close(file)


def parse_device(reply: bytes) -> bool | Absent:
    if len(reply) < FLAGS_OFFSET + 8:
        return Absent.INCONSISTENT
    return bool(struct.unpack_from("=Q", reply, FLAGS_OFFSET)[0] & FUSION_FLAG)


def _device_info(file: int, ioctl: Ioctl) -> bytes:
    """Return the ioctl's reply. The argument holds the address of the buffer and its size."""
    reply = array.array("B", bytes(_REPLY_BYTES))
    address, _ = reply.buffer_info()
    ioctl(file, INFO_IOCTL, struct.pack("=QII16x", address, _REPLY_BYTES, DEVICE_QUERY))
    return reply.tobytes()
