"""The vendor's tools: nvidia-smi, amd-smi and rocm-smi, and the kernel's /proc/meminfo."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from hardware.figures import parse_pci

MIB = 1 << 20
TIMEOUT_SECONDS = 20.0
# Names of sensors in the daemon, by field of nvidia-smi.
NVIDIA_SENSORS = {
    "temperature.gpu": "temperature",
    "power.draw": "power",
    "clocks.sm": "clock sm",
    "clocks.mem": "clock memory",
    "utilization.gpu": "utilization",
}
NVIDIA_MEMORY = ("memory.total", "memory.used", "memory.reserved")


class ToolReading(Struct, frozen=True):
    """Bytes of a GPU and of its processes. None: the tool has no such figure.

    `used` includes System RAM that the GPU uses (AMD's GTT), `used_on_card` does not.
    """

    total: int | None = None
    used: int | None = None
    used_on_card: int | None = None
    processes: Mapping[int, int | None] | None = None


class Tool(Protocol):
    """A vendor's tool for one GPU."""

    name: str

    def read(self) -> ToolReading: ...

    def sensors(self) -> Mapping[str, float]: ...


class NoTool:
    """Stands for a tool that is not installed."""

    name = "none"

    def read(self) -> ToolReading:
        return ToolReading()

    def sensors(self) -> Mapping[str, float]:
        return {}


class NvidiaSmi:
    """nvidia-smi; `used` includes reserved memory, as the driver's free memory does not contain it."""

    name = "nvidia-smi"

    def __init__(self, pci: str | None) -> None:
        self._gpu = ["-i", pci] if pci and any(parse_pci(pci)) else []

    def read(self) -> ToolReading:
        # Drivers before 510 reject memory.reserved, and count it in memory.used.
        values = self._gpu_fields(NVIDIA_MEMORY) or self._gpu_fields(NVIDIA_MEMORY[:2])
        total, used, reserved = (values.get(name) for name in NVIDIA_MEMORY)
        in_use = None if used is None else int(used + (reserved or 0)) * MIB
        apps = _add_by_pid(self._query("--query-compute-apps=pid,used_memory"))
        return ToolReading(None if total is None else int(total) * MIB, in_use, in_use, apps)

    def sensors(self) -> Mapping[str, float]:
        found = self._gpu_fields(tuple(NVIDIA_SENSORS))
        return {NVIDIA_SENSORS[field]: value for field, value in found.items() if value is not None}

    def _gpu_fields(self, fields: Sequence[str]) -> dict[str, float | None]:
        rows = self._query(f"--query-gpu={','.join(fields)}")
        if not rows or len(rows[0]) != len(fields):
            return {}
        return dict(zip(fields, map(_number, rows[0]), strict=True))

    def _query(self, query: str) -> list[list[str]] | None:
        output = run_tool(["nvidia-smi", *self._gpu, query, "--format=csv,noheader,nounits"])
        if output is None:
            return None
        return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]


def _add_by_pid(rows: Sequence[Sequence[str]] | None) -> dict[int, int | None] | None:
    """Add the rows of a process: one for each MIG instance."""
    if rows is None:
        return None
    found: dict[int, int | None] = {}
    for row in rows:
        if len(row) == 2 and row[0].isdigit():
            used = _number(row[1])
            before = found.get(int(row[0]), 0)
            found[int(row[0])] = None if used is None or before is None else before + int(used) * MIB
    return found


def _number(text: str) -> float | None:
    """Parse a cell; `[N/A]`, `[Not Supported]` and the like are None."""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


class RocmSmi(NoTool):
    """rocm-smi, whose figures are bytes as strings."""

    name = "rocm-smi"

    def __init__(self, pci: str | None) -> None:
        self._pci = pci

    def read(self) -> ToolReading:
        output = run_tool(["rocm-smi", "--showmeminfo", "vram", "gtt", "--showbus", "--json"])
        for name, card in _json_in(output, {}).items():
            cells = {key.lower(): value for key, value in card.items()} if name.startswith("card") else {}
            if self._pci and cells.get("pci bus") and parse_pci(cells["pci bus"]) != parse_pci(self._pci):
                continue
            vram, gtt = (_number(str(cells.get(f"{kind} total used memory (b)"))) for kind in ("vram", "gtt"))
            if vram is not None:
                return ToolReading(used=None if gtt is None else int(vram + gtt), used_on_card=int(vram))
        return ToolReading()


class AmdSmi(NoTool):
    """amd-smi, which prints MiB as MB."""

    name = "amd-smi"

    def __init__(self, pci: str | None) -> None:
        self._pci = pci

    def read(self) -> ToolReading:
        index = self._index()
        for gpu in _gpus(run_tool(["amd-smi", "metric", "--mem-usage", "--json"])):
            usage = gpu.get("mem_usage")
            if gpu.get("gpu") == index and isinstance(usage, dict):
                vram, gtt = (_size(usage.get(f"used_{kind}")) for kind in ("vram", "gtt"))
                return ToolReading(used=None if vram is None or gtt is None else vram + gtt, used_on_card=vram)
        return ToolReading()

    def _index(self) -> int:
        for gpu in _gpus(run_tool(["amd-smi", "list", "--json"])):
            if self._pci and isinstance(gpu.get("bdf"), str) and parse_pci(gpu["bdf"]) == parse_pci(self._pci):
                return int(gpu["gpu"])
        return 0


def _gpus(output: str | None) -> list[Any]:
    """Parse a list, or since ROCm 7.2 a list under `gpu_data`."""
    document = _json_in(output, [])
    found = document.get("gpu_data", []) if isinstance(document, dict) else document
    return [gpu for gpu in found if isinstance(gpu, dict)]


def _size(part: Any) -> int | None:
    units = {"B": 1, "KB": 1 << 10, "MB": MIB, "GB": 1 << 30}
    known = isinstance(part, dict) and isinstance(part.get("value"), int) and part.get("unit") in units
    return part["value"] * units[part["unit"]] if known else None


def _json_in(output: str | None, otherwise: Any) -> Any:
    """Parse the JSON in an output that may begin with warnings."""
    text = output or ""
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    try:
        return json.JSONDecoder().raw_decode(text[start.end() - 1 :])[0] if start else otherwise
    except ValueError:
        return otherwise


TOOLS: Mapping[str, Sequence[tuple[str, type[NvidiaSmi] | type[AmdSmi] | type[RocmSmi]]]] = {
    "NVIDIA": (("nvidia-smi", NvidiaSmi),),
    "AMD": (("amd-smi", AmdSmi), ("rocm-smi", RocmSmi)),
}


def find_tool(vendor: str, pci: str | None) -> Tool:
    """Return the first tool of this vendor that is installed."""
    for name, tool in TOOLS.get(vendor, ()):
        if shutil.which(name):
            return tool(pci)
    return NoTool()


def run_tool(command: Sequence[str]) -> str | None:
    """Return its output; None if it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_meminfo() -> dict[str, int]:
    """Return /proc/meminfo in bytes, of the host that the daemon watches."""
    text = Path(os.environ.get("MEMWATCHD_PROCFS", "/proc"), "meminfo").read_text()
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(size) << 10 for name, size in rows}
