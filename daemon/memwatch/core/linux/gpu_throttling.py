"""Reasons for which AMD and Intel GPUs run at lower clocks now, by the names that their drivers use.

Each file is read like a sensor: it resumes a suspended GPU, so `hwmon` decides when to read it.

amdgpu: `gpu_metrics`. Some of its formats have a mask that means the same on all GPUs; the others have one that
differs by GPU (`throttle_status`) or counters of throttled time (3.0), and are not used. i915 and xe: one file for
each reason of a graphics unit (GT), and one that is 1 if any of them is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memwatch.core.linux.files import names_in
from memwatch.core.model import Absent

Reasons = tuple[str, ...] | Absent

_HEADER = struct.Struct("<HBB")
_MASK = struct.Struct("<Q")
# Offset of `indep_throttle_status` by format and content revision (kgd_pp_interface.h).
_OFFSETS = {(1, 3): 112, (2, 2): 120, (2, 3): 120, (2, 4): 120}
# Bits of the mask (SMU_THROTTLER_*_BIT of amdgpu_smu.h): power, current, temperature, other.
_NAMES: Mapping[int, str] = {
    **dict(enumerate(("ppt0", "ppt1", "ppt2", "ppt3", "spl", "fppt", "sppt", "sppt_apu"))),
    **dict(
        enumerate(("tdc_gfx", "tdc_soc", "tdc_mem", "tdc_vdd", "tdc_cvip", "edc_cpu", "edc_gfx", "apcc"), start=16)
    ),
    **dict(enumerate(("temp_gpu", "temp_core", "temp_mem", "temp_edge", "temp_hotspot", "temp_soc"), start=32)),
    **dict(enumerate(("temp_vr_gfx", "temp_vr_soc", "temp_vr_mem0", "temp_vr_mem1"), start=38)),
    **dict(enumerate(("temp_liquid0", "temp_liquid1", "vrhot0", "vrhot1", "prochot_cpu", "prochot_gfx"), start=42)),
    56: "ppm",
    57: "fit",
}
# A driver fills what its GPU does not report with ones.
_UNSUPPORTED = (1 << 64) - 1
# The status is 1, and no file has the reason.
UNNAMED = "unnamed"


class ReasonFiles(NamedTuple):
    """Files of one graphics unit of Intel: its status, and those of its reasons by name."""

    status: Path
    reasons: Mapping[str, Path]


class ThrottleReader:
    """The files of one GPU. `device` is its folder under /sys/devices. No file is read before `read`."""

    def __init__(self, device: Path) -> None:
        self._metrics = device / "gpu_metrics"
        self.units: tuple[ReasonFiles, ...] = tuple(find_reason_files(device))

    def read(self) -> Reasons:
        if self.units:
            return read_reasons(self.units)
        data = _read(self._metrics)
        return data if isinstance(data, Absent) else parse_metrics(data)


def find_reason_files(device: Path) -> Iterator[ReasonFiles]:
    """Yield the graphics units of i915 (drm/card0/gt/gt0) and xe (tile0/gt0/freq0/throttle)."""
    for card in names_in(device / "drm"):
        for unit in _numbered(device / "drm" / card / "gt", "gt"):
            yield from _reason_files(unit, "throttle_reason_", "throttle_reason_status")
    for tile in _numbered(device, "tile"):
        for unit in _numbered(tile, "gt"):
            yield from _reason_files(unit / "freq0/throttle", "reason_", "status")


def _numbered(folder: Path, prefix: str) -> Iterator[Path]:
    names = [name for name in names_in(folder) if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    return (folder / name for name in sorted(names))


def _reason_files(folder: Path, prefix: str, status: str) -> Iterator[ReasonFiles]:
    names = names_in(folder)
    if status in names:
        reasons = sorted(name for name in names if name.startswith(prefix) and name != status)
        yield ReasonFiles(folder / status, {name.removeprefix(prefix): folder / name for name in reasons})


def read_reasons(units: tuple[ReasonFiles, ...]) -> Reasons:
    """Return the reasons of all graphics units. Those of a unit are read only if its status has any."""
    found: dict[str, None] = {}
    for unit in units:
        status = _read(unit.status)
        if isinstance(status, Absent):
            return status
        if status.strip() not in (b"0", b"1"):
            return Absent.INCONSISTENT
        if status.strip() == b"1":
            named = [name for name, path in unit.reasons.items() if _is_set(path)]
            found |= dict.fromkeys(named or [UNNAMED])
    return tuple(found)


def _is_set(path: Path) -> bool:
    data = _read(path)
    return not isinstance(data, Absent) and data.strip() == b"1"


def parse_metrics(data: bytes) -> Reasons:
    """Parse the reasons in gpu_metrics of amdgpu."""
    if len(data) < _HEADER.size:
        return Absent.INCONSISTENT
    size, revision, content = _HEADER.unpack_from(data)
    offset = _OFFSETS.get((revision, content))
    if offset is None:
        return Absent.NOT_READ
    if min(size, len(data)) < offset + _MASK.size:
        return Absent.INCONSISTENT
    (mask,) = _MASK.unpack_from(data, offset)
    if mask == _UNSUPPORTED:
        return Absent.NOT_SUPPORTED
    return tuple(_NAMES.get(bit, f"bit_{bit}") for bit in range(64) if mask >> bit & 1)


def _read(path: Path) -> bytes | Absent:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return Absent.NOT_SUPPORTED
    except OSError:  # such as EPERM, which amdgpu returns for a GPU that has just been suspended
        return Absent.NOT_AVAILABLE
