"""Parsers for NvMap, the allocator of a Tegra's GPU memory: two lines of meminfo, and a table in debugfs."""

from __future__ import annotations

import re
from typing import NamedTuple

from memwatch.core.drivers.tegra.records import NvMapClient
from memwatch.core.helper.codec import DecodeError
from memwatch.core.model import Absent, Bytes
from memwatch.core.printable import printable

_MEMINFO = re.compile(rb"^(MemTotal|NvMapMemUsed|NvMapMemFree): +(\d{1,19}) kB$", re.MULTILINE)
_SIZE = re.compile(r"([0-9]{1,19})([KMG]?)")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The kernel's own clients have this process id.
KERNEL_PID = 0


class NvMapMemory(NamedTuple):
    """Memory in use by the GPU, and free memory that NvMap keeps. Absent on a kernel without these lines."""

    used_bytes: Bytes
    free_bytes: Bytes


class NvMapTable(NamedTuple):
    """The table of clients. `total_bytes` counts a shared buffer once, the clients' sizes once per client.

    `rejected` counts lines that are not valid rows: a process name may contain anything, even a newline.
    """

    total_bytes: int
    clients: tuple[NvMapClient, ...]
    rejected: int


def parse_meminfo(data: bytes) -> NvMapMemory:
    if not data.endswith(b"\n"):
        raise DecodeError(f"meminfo is truncated: it ends with {data[-40:]!r}")
    kib = {name: int(figure) for name, figure in _MEMINFO.findall(data)}
    used, free = kib.get(b"NvMapMemUsed"), kib.get(b"NvMapMemFree")
    if (used or 0) + (free or 0) > kib.get(b"MemTotal", 0):
        raise DecodeError("meminfo: the sum of NvMapMemUsed and NvMapMemFree exceeds MemTotal")
    return NvMapMemory(_bytes_from_kib(used), _bytes_from_kib(free))


def _bytes_from_kib(kib: int | None) -> Bytes:
    return Absent.NOT_SUPPORTED if kib is None else kib << 10


def parse_clients(data: bytes) -> NvMapTable:
    """Parse the table of clients and its total. Some kernels add a column PSS, old ones print no unit K."""
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    columns = lines[0].split()
    if lines.pop() or columns[:3] != ["CLIENT", "PROCESS", "PID"] or "SIZE" not in columns[3:]:
        raise DecodeError(f"nvmap clients: {data[:60]!r} has no header CLIENT PROCESS PID … SIZE, or is truncated")
    sizes, at = len(columns) - 3, columns.index("SIZE") - 3
    word, *totals = lines[-1].split() or [""]
    total = _parse_bytes(totals[at]) if word == "total" and len(totals) == sizes else None
    if total is None:
        raise DecodeError(f"nvmap clients: the last line {lines[-1][:80]!r} is not the total")
    rows = [_client(line, sizes, at) for line in lines[1:-1] if line.strip()]
    clients = tuple(row for row in rows if row is not None)
    return NvMapTable(total, clients, len(rows) - len(clients))


def _client(line: str, sizes: int, at: int) -> NvMapClient | None:
    # Split from the right: process names may contain blanks and digits.
    words = line.rsplit(None, sizes + 1)
    if len(words) < sizes + 2 or not re.fullmatch(r"[0-9]{1,7}", words[1]):
        return None
    size = _parse_bytes(words[2 + at])
    client, *name = words[0].split(None, 1)
    return None if size is None else NvMapClient(int(words[1]), printable(name[0] if name else client), size)


def _parse_bytes(word: str) -> int | None:
    """Parse a size such as `4096K`. Old kernels print bytes without a unit."""
    found = _SIZE.fullmatch(word)
    return int(found[1]) * _UNITS.get(found[2], 1) if found else None
