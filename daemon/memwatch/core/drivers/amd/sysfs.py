"""Parsers of amdgpu's files in sysfs, and of the compute driver's (KFD) under /sys/class/kfd. Pure functions.

A function returns a value or why it is absent. KFD lists GPU nodes and the GPU memory of each process.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable, Mapping

from memwatch.core.drivers.amd.records import KfdNode, Region
from memwatch.core.linux.files import is_shortage
from memwatch.core.model import MAX_BYTES, Absent, Bytes, Words
from memwatch.core.printable import decode

# Maximum length of a line of text from the firmware.
_MAX_TEXT_LENGTH = 128

_FIGURE = re.compile(rb"\d{1,20}")
_PERCENT = re.compile(rb"\d{1,3}")
_HEX = re.compile(rb"(?:0x)?([0-9a-fA-F]{1,8})")
_ERRORS = re.compile(rb"^(ue|ce|de): (\d{1,20})$", re.MULTILINE)
_BAD_PAGE = re.compile(rb"^0x[0-9a-fA-F]{1,16} ?: ?0x[0-9a-fA-F]{1,16} ?: ?([RPF])\s*$", re.MULTILINE)
_RELEASE = re.compile(rb"(\d{1,4})\.(\d{1,4})")

_REASONS = {
    errno.ENOENT: Absent.NOT_SUPPORTED,
    errno.EOPNOTSUPP: Absent.NOT_SUPPORTED,
    errno.EACCES: Absent.NOT_PERMITTED,
    errno.EPERM: Absent.NOT_PERMITTED,
}
_KINDS = {b"ue": "ecc_uncorrected", b"ce": "ecc_corrected", b"de": "ecc_deferred"}


def absent_reason(error: OSError) -> Absent:
    """Return why a file of a loaded driver cannot be read. A temporary shortage of resources is raised again."""
    if is_shortage(error):
        raise error
    return _REASONS.get(error.errno or 0, Absent.NOT_AVAILABLE)


def parse_figure(data: bytes | Absent) -> Bytes:
    if isinstance(data, Absent):
        return data
    text = data.strip()
    if text == b"N/A":
        return Absent.NOT_SUPPORTED
    if not _FIGURE.fullmatch(text) or int(text) > MAX_BYTES:
        return Absent.INCONSISTENT
    return int(text)


def parse_ratio(data: bytes | Absent) -> float | Absent:
    """Parse a percentage as a ratio, 0 to 1."""
    if isinstance(data, Absent):
        return data
    text = data.strip()
    if text == b"N/A":
        return Absent.NOT_SUPPORTED
    if not _PERCENT.fullmatch(text) or int(text) > 100:
        return Absent.INCONSISTENT
    return int(text) / 100


def parse_text(data: bytes | Absent) -> Words:
    """Parse a word or a name. Invalid UTF-8 and control characters are escaped."""
    if isinstance(data, Absent):
        return data
    text = data.split(b"\0")[0].strip()
    if not text or text in (b"N/A", b"unknown"):
        return Absent.NOT_SUPPORTED
    return decode(text[:_MAX_TEXT_LENGTH].replace(b"\n", b" "))


def parse_id(data: bytes | Absent) -> str:
    """Parse hexadecimal digits as in `0x744c`, in lower case. Empty if there are none."""
    found = _HEX.fullmatch(data.strip()) if isinstance(data, bytes) else None
    return found[1].decode().lower() if found else ""


def parse_release(data: bytes | Absent) -> tuple[int, ...]:
    """Parse the first two numbers of a version, for comparisons. Empty if there are none."""
    found = _RELEASE.match(data) if isinstance(data, bytes) else None
    return (int(found[1]), int(found[2])) if found else ()


def parse_metrics_format(data: bytes | Absent) -> int | Absent:
    """Parse the format revision of gpu_metrics, its third byte. 2 and 3 are formats of APUs."""
    if isinstance(data, Absent):
        return data
    return data[2] if len(data) >= 4 else Absent.INCONSISTENT


def parse_errors(data: bytes) -> dict[str, int]:
    """Parse memory error counts by kind. A GPU in reset reports "Query currently inaccessible", without counts."""
    return {_KINDS[kind]: int(count) for kind, count in _ERRORS.findall(data)}


def parse_bad_pages(data: bytes) -> dict[str, int]:
    """Count memory pages that are retired (R), pending retirement (P) or could not be retired (F)."""
    found = _BAD_PAGE.findall(data)
    kinds = {b"R": "pages_retired", b"P": "pages_pending", b"F": "pages_unretirable"}
    return {name: found.count(flag) for flag, name in kinds.items()}


def build_region(total: Bytes, used: Bytes) -> Region:
    """Build a region. A use that exceeds the total is inconsistent and left out, and so is a total of 0 in use."""
    if total == 0 and isinstance(used, int) and used:
        return Region(Absent.INCONSISTENT, used)
    if isinstance(total, int) and isinstance(used, int) and used > total:
        return Region(total, Absent.INCONSISTENT)
    return Region(total, used)


_PROPERTY = re.compile(rb"^([a-z0-9_]{1,40}) (\d{1,20})$", re.MULTILINE)
_HELD = re.compile(r"vram_(\d{1,10})")
_STATISTICS = re.compile(r"stats_(\d{1,10})")
# Heap types of a memory bank: 0 is System RAM, 1 and 2 are the frame buffer, CPU-visible or not.
_FRAME_BUFFER = (1, 2)


def parse_properties(data: bytes) -> dict[str, int]:
    """Parse lines such as `simd_count 80`. Other lines are ignored."""
    return {key.decode(): int(value) for key, value in _PROPERTY.findall(data)}


def format_gfx(version: int) -> Words:
    """Return the name of a version: 110501 is gfx1151, 90010 is gfx90a (the last two digits are the stepping)."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor}{step:x}" if major else Absent.NOT_SUPPORTED


def find_pci(domain: int, location: int, known: Collection[str]) -> str | None:
    """Return the PCI address in `known` that a node belongs to.

    A partition's number is in the lowest bits of its location (Linux 6.4) or in the highest four (6.10). If no GPU
    has the node's PCI function, the node is a partition of function 0.
    """
    if domain >> 32 or location >> 32:
        return None
    slot = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    exact = f"{slot}.{location & 7}"
    return next((address for address in (exact, f"{slot}.0") if address in known), None)


def select_bank_bytes(banks: Iterable[Mapping[str, int]]) -> Bytes:
    """Return the frame buffer size in bytes. Of an APU it is the limit on System RAM or the carve-out.

    A bank without a size is unknown, not empty, and so is the sum.
    """
    sizes = [bank.get("size_in_bytes") for bank in banks if bank.get("heap_type") in _FRAME_BUFFER]
    if not sizes:
        return Absent.NOT_SUPPORTED
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return Absent.NOT_AVAILABLE
    return sum(known) if sum(known) <= MAX_BYTES else Absent.INCONSISTENT


def parse_node(
    number: int,
    gpu_id: int,
    properties: Mapping[str, int],
    banks: Iterable[Mapping[str, int]],
    known: Collection[str],
) -> KfdNode | None:
    """Build a node. None for a CPU node, and for a GPU that is not in `known`."""
    pci = find_pci(properties.get("domain", 0), properties.get("location_id", 0), known) if gpu_id else None
    if pci is None:
        return None
    minor = properties.get("drm_render_minor", 0)
    return KfdNode(
        number,
        gpu_id,
        pci,
        format_gfx(properties.get("gfx_target_version", 0)),
        select_bank_bytes(banks),
        minor if 128 <= minor < 1 << 20 else Absent.NOT_AVAILABLE,
    )


def parse_gpu_id(file_name: str) -> int | None:
    """Return the GPU id in a process's file name such as `vram_12345`."""
    found = _HELD.fullmatch(file_name)
    return int(found[1]) if found else None


def held_by_gpu(
    figures: Iterable[tuple[int, int, Bytes]], nodes: Iterable[KfdNode]
) -> tuple[dict[str, dict[int, int]], int]:
    """Sum (process id, GPU id, bytes) by PCI address and process id, and count the implausible values.

    A process with several contexts or several partitions of a GPU has several values, which are added.
    """
    pci_of_node = {node.gpu_id: node.pci for node in nodes}
    held: dict[str, dict[int, int]] = {}
    rejected = 0
    for pid, gpu_id, figure in figures:
        if not isinstance(figure, int):
            rejected += figure is Absent.INCONSISTENT
        elif gpu_id in pci_of_node:
            of_gpu = held.setdefault(pci_of_node[gpu_id], {})
            of_gpu[pid] = of_gpu.get(pid, 0) + figure
    return held, rejected


def parse_statistics_gpu_id(folder_name: str) -> int | None:
    """Return the GPU id in the name of a process's folder such as `stats_12345`."""
    found = _STATISTICS.fullmatch(folder_name)
    return int(found[1]) if found else None


class EvictedTime:
    """Total time that queues of each GPU were evicted.

    The driver counts milliseconds in `stats_<gpu id>/evicted_ms` of each process. A process that ends takes its
    counter with it, so rises are added up.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], int] = {}
        self._total: dict[int, int] = {}

    def add(self, figures: Iterable[tuple[int, int, Bytes]], nodes: Iterable[KfdNode]) -> dict[str, float]:
        """Add a reading of (process id, GPU id, milliseconds). Return the seconds by PCI address so far.

        What a process had at its first reading counts as 0: it may be long past.
        """
        now = {(pid, gpu_id): value for pid, gpu_id, value in figures if isinstance(value, int)}
        for key, value in now.items():
            self._total[key[1]] = self._total.get(key[1], 0) + max(0, value - self._before.get(key, value))
        self._before = now
        seconds: dict[str, float] = {}
        for node in nodes:
            if node.gpu_id in self._total:
                seconds[node.pci] = seconds.get(node.pci, 0.0) + self._total[node.gpu_id] / 1000
        return seconds
