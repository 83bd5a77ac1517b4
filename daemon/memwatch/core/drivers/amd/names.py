"""GPU names: from the board, from libdrm's amdgpu.ids, or from a short built-in list."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
