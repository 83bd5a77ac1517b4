"""What `rocm-smi --json` and `amd-smi --json` print: shapes that changed with every release. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from memwatch.drivers.amd.records import Region
from memwatch.drivers.amd.smi import SmiProcess, count_of, pci_of, process_of
from memwatch.drivers.amd.sysfs import region_of
from memwatch.model import Absent, Bytes, Words

_CARD = re.compile(r"card\d{1,5}")
# What these tools call MB is a number of bytes divided by 1048576 and cut off.
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_PARTS = ("total", "used")


class NoAnswer(Exception):
    """The tool ran and said nothing that could be read: no driver, most often. In a sentence."""


class SmiMemory(Struct, frozen=True):
    """One GPU's memory as a tool tells it. `index` is the tool's own number, and nobody else's."""

    index: int
    pci: str | None
    name: Words
    vram: Region
    visible_vram: Region
    gtt: Region


def document_of(output: bytes, tool: str) -> Any:  # noqa: ANN401  any JSON
    """The JSON in what a tool printed. Sentences may stand before it, and without a driver nothing stands there."""
    text = output.decode("utf-8", "replace")
    if not text.strip():
        raise NoAnswer(f"{tool} says nothing, as it does without a driver")
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    try:
        if start is None:
            raise ValueError
        return json.JSONDecoder().raw_decode(text[start.end() - 1 :])[0]
    except (ValueError, RecursionError):
        raise NoAnswer(f"{tool} says something that is no JSON") from None


def rocm_smi_memory(document: Any) -> list[SmiMemory]:  # noqa: ANN401
    """`--showmeminfo all --showbus --showproductname --json`: cards by name, figures as text, cases at will."""
    found = []
    for name, value in _items(document):
        if _CARD.fullmatch(name) and isinstance(value, Mapping):
            said = {str(key).lower(): one for key, one in value.items()}
            series = said.get("card series") or said.get("card model")
            found.append(
                SmiMemory(
                    int(name[4:]),
                    pci_of(said.get("pci bus")),
                    series[:80] if isinstance(series, str) and series != "N/A" else Absent.NOT_AVAILABLE,
                    _rocm_region(said, "vram"),
                    _rocm_region(said, "vis_vram"),
                    _rocm_region(said, "gtt"),
                )
            )
    return found


def _rocm_region(said: Mapping[str, Any], kind: str) -> Region:
    total, used = said.get(f"{kind} total memory (b)"), said.get(f"{kind} total used memory (b)")
    return region_of(_bytes_of(total), _bytes_of(used))


def amd_smi_memory(document: Any, addresses: Mapping[int, str]) -> list[SmiMemory]:  # noqa: ANN401
    """`metric --mem-usage --json`: a list, or since ROCm 7.2 a list under `gpu_data`."""
    found = []
    for gpu in _gpus(document):
        index, usage = count_of(gpu.get("gpu")), gpu.get("mem_usage")
        if index is not None and isinstance(usage, Mapping):
            regions = [_amd_region(usage, kind) for kind in ("vram", "visible_vram", "gtt")]
            found.append(SmiMemory(index, addresses.get(index), Absent.NOT_AVAILABLE, *regions))
    return found


def _amd_region(usage: Mapping[str, Any], kind: str) -> Region:
    total, used = (_size_of(usage.get(f"{part}_{kind}")) for part in _PARTS)
    return region_of(total, used)


def amd_smi_addresses(document: Any) -> dict[int, str]:  # noqa: ANN401
    """`list --json`: PCI addresses by the tool's own numbers."""
    found = {count_of(gpu.get("gpu")): pci_of(gpu.get("bdf")) for gpu in _gpus(document)}
    return {index: pci for index, pci in found.items() if index is not None and pci is not None}


def amd_smi_processes(document: Any) -> dict[int, tuple[SmiProcess, ...]]:  # noqa: ANN401
    """`process --json`. Where nobody uses a GPU, a sentence stands in the place of a process."""
    found: dict[int, tuple[SmiProcess, ...]] = {}
    for gpu in _gpus(document):
        index, listed = count_of(gpu.get("gpu")), gpu.get("process_list")
        if index is not None:
            processes = [_listed(one) for one in (listed if isinstance(listed, list) else ())]
            found[index] = tuple(one for one in processes if one is not None)
    return found


def _listed(entry: Any) -> SmiProcess | None:  # noqa: ANN401
    info = entry.get("process_info", entry) if isinstance(entry, Mapping) else None
    parts = info.get("memory_usage") if isinstance(info, Mapping) else None
    if not isinstance(info, Mapping) or not isinstance(parts, Mapping):
        return None
    sizes = {key: size for key, one in parts.items() if isinstance(size := _size_of(one), int)}
    return process_of({"pid": info.get("pid"), "memory_usage": sizes})


def _gpus(document: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    listed = document.get("gpu_data") if isinstance(document, Mapping) else document
    return (gpu for gpu in (listed if isinstance(listed, list) else ()) if isinstance(gpu, Mapping))


def _items(document: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    return [(str(name), value) for name, value in document.items()] if isinstance(document, Mapping) else []


def _size_of(said: Any) -> Bytes:  # noqa: ANN401
    """`{"value": 8176, "unit": "MB"}`; a field that cannot be read is the text "N/A" instead."""
    if not isinstance(said, Mapping):
        return Absent.NOT_SUPPORTED if said in (None, "N/A") else Absent.INCONSISTENT
    count, unit = _bytes_of(said.get("value")), _UNITS.get(str(said.get("unit")).upper())
    return count * unit if isinstance(count, int) and unit else Absent.INCONSISTENT


def _bytes_of(said: Any) -> Bytes:  # noqa: ANN401
    if said in (None, "N/A"):
        return Absent.NOT_SUPPORTED
    count = count_of(said)
    return Absent.INCONSISTENT if count is None else count
