"""Parsers of `rocm-smi --json` and `amd-smi --json`, whose format changed with every release. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from memwatch.core.drivers.amd.records import Region
from memwatch.core.drivers.amd.smi import SmiProcess, parse_count, parse_pci, parse_process
from memwatch.core.drivers.amd.sysfs import build_region
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import printable

_CARD = re.compile(r"card\d{1,5}")
# These tools print MiB as MB: bytes divided by 1048576, rounded down.
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_PARTS = ("total", "used")
# Characters of a line that stands where JSON should.
_REASON_LENGTH = 160


class NoOutputError(Exception):
    """The tool ran and printed no usable output, usually because the driver is not loaded."""


class SmiMemory(Struct, frozen=True):
    """One GPU's memory as reported by a tool. `index` is the tool's own number of the GPU."""

    index: int
    pci: str | None
    name: Words
    vram: Region
    visible_vram: Region
    gtt: Region


def parse_document(output: bytes, tool: str) -> Any:  # noqa: ANN401  any JSON
    """Parse the JSON in a tool's output. Text may precede it. Without a driver the output is empty.

    That of ROCm 7.0 is as well for a user who is not in the groups `render` and `video` (ROCm/amdsmi#125, #184).
    Other text is a reason.
    """
    text = output.decode("utf-8", "replace")
    if not text.strip():
        raise NoOutputError(
            f"{tool} printed nothing, as it does without a driver, or without a right to use the GPU"
        )
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    try:
        if start is None:
            raise ValueError
        return json.JSONDecoder().raw_decode(text[start.end() - 1 :])[0]
    except (ValueError, RecursionError):
        first = printable(text.strip().partition("\n")[0][:_REASON_LENGTH])
        raise NoOutputError(f"{tool} printed no valid JSON: {first}") from None


def rocm_smi_memory(document: Any) -> list[SmiMemory]:  # noqa: ANN401
    """Parse `--showmeminfo all --showbus --showproductname --json`: an object of cards by name.

    Numbers are strings, and the case of keys varies.
    """
    found = []
    for name, value in _items(document):
        if _CARD.fullmatch(name) and isinstance(value, Mapping):
            card = {str(key).lower(): one for key, one in value.items()}
            series = card.get("card series") or card.get("card model")
            found.append(
                SmiMemory(
                    int(name[4:]),
                    parse_pci(card.get("pci bus")),
                    printable(series[:80]) if isinstance(series, str) and series != "N/A" else Absent.NOT_AVAILABLE,
                    _rocm_region(card, "vram"),
                    _rocm_region(card, "vis_vram"),
                    _rocm_region(card, "gtt"),
                )
            )
    return found


def _rocm_region(card: Mapping[str, Any], kind: str) -> Region:
    total, used = card.get(f"{kind} total memory (b)"), card.get(f"{kind} total used memory (b)")
    return build_region(_parse_bytes(total), _parse_bytes(used))


def amd_smi_memory(document: Any, addresses: Mapping[int, str]) -> list[SmiMemory]:  # noqa: ANN401
    """Parse `metric --mem-usage --json`: a list, or since ROCm 7.2 a list under `gpu_data`."""
    found = []
    for gpu in _gpus(document):
        index, usage = parse_count(gpu.get("gpu")), gpu.get("mem_usage")
        if index is not None and isinstance(usage, Mapping):
            regions = [_amd_region(usage, kind) for kind in ("vram", "visible_vram", "gtt")]
            found.append(SmiMemory(index, addresses.get(index), Absent.NOT_AVAILABLE, *regions))
    return found


def _amd_region(usage: Mapping[str, Any], kind: str) -> Region:
    total, used = (_parse_size(usage.get(f"{part}_{kind}")) for part in _PARTS)
    return build_region(total, used)


def amd_smi_addresses(document: Any) -> dict[int, str]:  # noqa: ANN401
    """Parse `list --json`: PCI addresses by the tool's own GPU numbers."""
    found = {parse_count(gpu.get("gpu")): parse_pci(gpu.get("bdf")) for gpu in _gpus(document)}
    return {index: pci for index, pci in found.items() if index is not None and pci is not None}


def amd_smi_processes(document: Any) -> dict[int, tuple[SmiProcess, ...]]:  # noqa: ANN401
    """Parse `process --json`. For a GPU without processes the list contains a text instead of a process."""
    found: dict[int, tuple[SmiProcess, ...]] = {}
    for gpu in _gpus(document):
        index, listed = parse_count(gpu.get("gpu")), gpu.get("process_list")
        if index is not None:
            processes = [_parse_process(one) for one in (listed if isinstance(listed, list) else ())]
            found[index] = tuple(one for one in processes if one is not None)
    return found


def _parse_process(entry: Any) -> SmiProcess | None:  # noqa: ANN401
    info = entry.get("process_info", entry) if isinstance(entry, Mapping) else None
    parts = info.get("memory_usage") if isinstance(info, Mapping) else None
    if not isinstance(info, Mapping) or not isinstance(parts, Mapping):
        return None
    sizes = {key: size for key, one in parts.items() if isinstance(size := _parse_size(one), int)}
    return parse_process({"pid": info.get("pid"), "memory_usage": sizes})


def _gpus(document: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    listed = document.get("gpu_data") if isinstance(document, Mapping) else document
    return (gpu for gpu in (listed if isinstance(listed, list) else ()) if isinstance(gpu, Mapping))


def _items(document: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    return [(str(name), value) for name, value in document.items()] if isinstance(document, Mapping) else []


def _parse_size(field: Any) -> Bytes:  # noqa: ANN401
    """Parse `{"value": 8176, "unit": "MB"}`. An unavailable field is the text "N/A" instead."""
    if not isinstance(field, Mapping):
        return Absent.NOT_SUPPORTED if field in (None, "N/A") else Absent.INCONSISTENT
    count, unit = _parse_bytes(field.get("value")), _UNITS.get(str(field.get("unit")).upper())
    return count * unit if isinstance(count, int) and unit else Absent.INCONSISTENT


def _parse_bytes(value: Any) -> Bytes:  # noqa: ANN401
    if value in (None, "N/A"):
        return Absent.NOT_SUPPORTED
    count = parse_count(value)
    return Absent.INCONSISTENT if count is None else count
