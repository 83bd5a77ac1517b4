"""Parsers of values that AMD's tools report (library amdsmi, amd-smi, rocm-smi), with fixes for known errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from memwatch.core.model import MAX_BYTES, Absent, Words

# amdsmi_vram_type_t of ROCm 7. The last three were added in ROCm 7.13.
_VRAM_TYPES = {
    1: "HBM",
    2: "HBM2",
    3: "HBM2E",
    4: "HBM3",
    10: "DDR2",
    11: "DDR3",
    12: "DDR4",
    17: "GDDR1",
    18: "GDDR2",
    19: "GDDR3",
    20: "GDDR4",
    21: "GDDR5",
    22: "GDDR6",
    23: "GDDR7",
    13: "DDR5",
    30: "LPDDR4",
    31: "LPDDR5",
}
_BDF = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_PAGE_BYTES, _PAGE_AS_THOUSANDS = 4096, 4000


class SmiProcess(Struct, frozen=True):
    """A process that holds GPU memory: VRAM, and System RAM through GTT."""

    pid: int
    vram_bytes: int
    gtt_bytes: int


class SmiGpu(Struct, frozen=True):
    """One GPU. `errors` counts by kind. `codes` holds the library's return code of each query that failed."""

    pci: str
    vram_type: Words = Absent.NOT_SUPPORTED
    errors: Mapping[str, int] = field(default_factory=dict)
    processes: tuple[SmiProcess, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)


class SmiReading(Struct, frozen=True):
    gpus: tuple[SmiGpu, ...]


class SmiFailure(Struct, frozen=True):
    """A failed reading. `reason`: no_library, no_driver or failed."""

    reason: str
    text: str


def rocm_folder(environ: Mapping[str, str]) -> str:
    """Return ROCM_PATH or its default. A relative path does not count: it would name a folder of any user."""
    named = environ.get("ROCM_PATH", "")
    return named if os.path.isabs(named) else "/opt/rocm"


def parse_pci(text: Any) -> str | None:  # noqa: ANN401  a tool's value of any type
    """Return a PCI address in the format of sysfs."""
    found = _BDF.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    return found[1] if found else None


def parse_count(answer: Any) -> int | None:  # noqa: ANN401
    """Return a count or a size, or None for anything else, such as "N/A"."""
    if isinstance(answer, str) and answer.isdecimal() and len(answer) <= 20:
        answer = int(answer)
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer <= MAX_BYTES:
        return None
    return answer


def parse_errors(answer: Any) -> dict[str, int]:  # noqa: ANN401
    """Parse the result of amdsmi_get_gpu_total_ecc_count."""
    keys = {"correctable_count": "ecc_corrected", "uncorrectable_count": "ecc_uncorrected"}
    keys["deferred_count"] = "ecc_deferred"
    counts = {name: parse_count(answer.get(key)) for key, name in keys.items()} if isinstance(answer, dict) else {}
    return {name: count for name, count in counts.items() if count is not None}


def parse_bad_pages(answer: Any) -> dict[str, int]:  # noqa: ANN401
    """Parse the result of amdsmi_get_gpu_bad_page_info: a list of pages, or a text that there are none."""
    if isinstance(answer, str):
        return {"pages_retired": 0} if "no bad pages" in answer.lower() else {}
    return {"pages_retired": len(answer)} if isinstance(answer, list) else {}


def parse_vram_type(answer: Any) -> Words:  # noqa: ANN401
    """Parse the result of amdsmi_get_gpu_vram_info: a number of the library's enumeration, or its name."""
    kind = answer.get("vram_type") if isinstance(answer, dict) else None
    if isinstance(kind, str):
        return kind[:32] if kind not in ("N/A", "UNKNOWN", "") else Absent.NOT_SUPPORTED
    number = parse_count(getattr(kind, "value", kind))
    return Absent.NOT_SUPPORTED if number is None else _VRAM_TYPES.get(number, Absent.NOT_SUPPORTED)


def parse_processes(answer: Any) -> tuple[SmiProcess, ...]:  # noqa: ANN401
    """Parse the result of amdsmi_get_gpu_process_list. Its `mem` is not the sum of its parts and is not used."""
    found = (parse_process(one) for one in (answer if isinstance(answer, list) else ()))
    return tuple(one for one in found if one is not None)


def parse_process(answer: Any) -> SmiProcess | None:  # noqa: ANN401
    if not isinstance(answer, dict) or not isinstance(answer.get("memory_usage"), dict):
        return None
    pid, parts = parse_count(answer.get("pid")), answer["memory_usage"]
    vram, gtt = (parse_count(parts.get(key)) for key in ("vram_mem", "gtt_mem"))
    if not pid or pid >= 1 << 22 or vram is None or gtt is None:
        return None
    return SmiProcess(pid, repair_size(vram), repair_size(gtt))


def repair_size(size: int) -> int:
    """Correct a size that was computed with 1 KiB = 1000 bytes, as up to ROCm 6.4.1.

    Memory is allocated in pages of 4096 bytes, so such a size is recognized: it is a multiple of 4000 instead.
    """
    if size % _PAGE_BYTES and not size % _PAGE_AS_THOUSANDS:
        return size // 1000 * 1024
    return size
