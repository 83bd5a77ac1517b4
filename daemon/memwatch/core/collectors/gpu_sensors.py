"""Figures of AMD and Intel GPUs that their firmware answers. It may be slow, so each collector has its thread.

Sensors are those that the drivers register with the kernel (hwmon). Reading one resumes a suspended GPU (amdgpu
before Linux 6.13, i915, xe), and restarts the time after which an idle GPU is suspended. A GPU that may be
suspended is therefore read only while it is active, and with pauses that let it be suspended in between.

Throttling of amdgpu: `gpu_metrics`. Some of its formats have a mask that means the same on all GPUs; the others
have one that differs by GPU (`throttle_status`) or counters of throttled time (3.0), and are not used. i915 and xe:
one file for each reason of a graphics unit (GT), and one that is 1 if any of them is.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.drivers.amd import amdgpu_cards as cards
from memwatch.core.drivers.amd.records import AmdSensors
from memwatch.core.drivers.amd.sysfs import parse_bad_pages, parse_errors, parse_ratio
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable, names_in, read_once
from memwatch.core.linux.pci import is_awake, is_card, may_suspend
from memwatch.core.model import Absent, Vitals

DRIVERS = frozenset({b"amdgpu", b"i915", b"xe"})
# Labels in order of preference: amdgpu's chip edge or, without one, its hottest point; xe's package.
_TEMPERATURES = (b"edge", b"pkg", b"junction")
_CLOCKS = {b"sclk": "graphics", b"mclk": "memory"}
_ENERGIES = (b"card", b"pkg")
# Delay in milliseconds before an idle GPU is suspended, if the kernel does not report it: the longest, of i915.
_SUSPEND_DELAY_MS = 10_000
_MARGIN_SECONDS = 1.0
# The files are numbered from 1; no driver has more.
_NUMBERS = range(1, 5)


class GpuSensors:
    """The sensors of one GPU. `device` is its folder under /sys/devices. `hwmon` may not exist."""

    def __init__(self, device: Path, hwmon: Path, throttling: ThrottleReader) -> None:
        self._device, self._hwmon, self._throttling = device, hwmon, throttling
        # Folders that differ after the driver is loaded again.
        self.files: tuple[Path, object] = hwmon, throttling.units
        self._temperature = _choose(hwmon, "temp", _TEMPERATURES)
        self._energy = _choose(hwmon, "energy", _ENERGIES)
        self._clocks = {
            _CLOCKS[label]: number for number in _NUMBERS if (label := _label(hwmon, "freq", number)) in _CLOCKS
        }
        self._read_at = float("-inf")
        self._joules: tuple[float, float] | None = None
        self._last = Vitals.absent(Absent.NOT_AVAILABLE)

    def read(self, now: float) -> Vitals:
        """Return the values, at most as old as the pause that lets the GPU be suspended. Asleep, it has none."""
        if not is_awake(self._device):
            self._joules = None
            self._last = Vitals.absent(Absent.SUSPENDED)
        elif now - self._read_at >= self._pause_seconds():
            self._last, self._read_at = self._read(now), now
        return self._last

    def _pause_seconds(self) -> float:
        if not may_suspend(self._device):
            return 0.0
        delay = _number(self._device / "power/autosuspend_delay_ms")
        return (_SUSPEND_DELAY_MS if isinstance(delay, Absent) else delay) / 1000 + _MARGIN_SECONDS

    def _read(self, now: float) -> Vitals:
        millidegrees = _number(self._hwmon / f"temp{self._temperature}_input")
        return Vitals(
            temperature_celsius=millidegrees if isinstance(millidegrees, Absent) else millidegrees / 1000,
            power_watts=self._power(now),
            clock_hertz=self._read_clocks(),
            throttled=self._throttling.read(),
        ).checked()

    def _power(self, now: float) -> float | Absent:
        for name in ("power1_average", "power1_input"):
            microwatts = _number(self._hwmon / name)
            if not isinstance(microwatts, Absent):
                return microwatts / 1e6
        return self._power_of_energy(now)

    def _power_of_energy(self, now: float) -> float | Absent:
        """Return the mean power since the last reading, from the energy counter of Intel's drivers."""
        microjoules = _number(self._hwmon / f"energy{self._energy}_input")
        before, self._joules = self._joules, None
        if isinstance(microjoules, Absent):
            return microjoules
        self._joules = now, microjoules / 1e6
        if before is None or now <= before[0] or self._joules[1] < before[1]:
            return Absent.NOT_AVAILABLE
        return (self._joules[1] - before[1]) / (now - before[0])

    def _read_clocks(self) -> Mapping[str, int] | Absent:
        read = {name: _number(self._hwmon / f"freq{number}_input") for name, number in self._clocks.items()}
        known = {name: hertz for name, hertz in read.items() if not isinstance(hertz, Absent)}
        return known or next(iter(read.values()), Absent.NOT_SUPPORTED)  # type: ignore[return-value]


def find_sensors(sysfs: Path) -> dict[str, GpuSensors]:
    """Return the GPUs with sensors of their own driver, by PCI address. No file of a sensor is read.

    Intel's integrated GPUs have no hwmon folder, and files for what throttles them.
    """
    found: dict[str, GpuSensors] = {}
    for card in filter(is_card, names_in(sysfs / "class/drm")):
        device = Path(os.path.realpath(sysfs / "class/drm" / card / "device"))
        hwmon, throttling = _find_hwmon(device), ThrottleReader(device)
        if hwmon is not None or throttling.units:
            found[device.name] = GpuSensors(device, hwmon or device / "hwmon", throttling)
    return found


def _find_hwmon(device: Path) -> Path | None:
    folders = [device / "hwmon" / name for name in names_in(device / "hwmon")]
    return next((one for one in folders if (read_once(one / "name") or b"").strip() in DRIVERS), None)


def _choose(hwmon: Path, kind: str, labels: tuple[bytes, ...]) -> int:
    """Return the number of the sensor with the best label; without labels, the first."""
    numbers = {_label(hwmon, kind, number): number for number in reversed(_NUMBERS)}
    return next((numbers[label] for label in labels if label in numbers), 1)


def _label(hwmon: Path, kind: str, number: int) -> bytes:
    return (read_once(hwmon / f"{kind}{number}_label") or b"").strip()


def _number(path: Path) -> int | Absent:
    data = _read(path)
    if isinstance(data, Absent):
        return data
    text = data.strip()
    return int(text) if text.lstrip(b"-").isdigit() and len(text) < 20 else Absent.INCONSISTENT


# Reasons for which AMD and Intel GPUs run at lower clocks now, by the names that their drivers use.

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


# Interval for added and removed GPUs.
RESCAN_SECONDS = 60.0


class HwmonCollector(BaseCollector):
    """Temperature, power, clocks and throttling of AMD and Intel GPUs. No suspended GPU wakes up.

    Reads in its own thread: the firmware of a busy GPU may take milliseconds to answer.
    """

    name = "hwmon"
    signs: tuple[str, ...] = ("sys/class/drm/",)
    period_seconds: float = 5.0
    may_block = True

    def __init__(self, roots: Roots, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(roots)
        self._monotonic = monotonic
        self._gpus: dict[str, GpuSensors] = {}
        self._rescan()

    def collect(self) -> Findings:
        now = self._monotonic()
        if now >= self._rescan_at or not self._gpus:
            self._rescan()
        return Findings(hwmon={pci: gpu.read(now) for pci, gpu in self._gpus.items()})

    def _rescan(self) -> None:
        self._rescan_at = self._monotonic() + RESCAN_SECONDS
        found = find_sensors(self._roots.sysfs)
        kept = {pci: gpu for pci, gpu in self._gpus.items() if pci in found and gpu.files == found[pci].files}
        self._gpus = found | kept
        if not found:
            raise SourceUnavailable("no AMD or Intel GPU with sensors found")


ERRORS_SECONDS = 60.0
# One page is a line of 35 characters; drivers stop at a few thousand pages.
_MAX_BAD_PAGES_BYTES = 1 << 18


class AmdgpuSensorsCollector(BaseCollector):
    """Utilization and memory errors of AMD GPUs, read from the GPU's firmware, which may be slow to answer.

    Reads only GPUs that never suspend: reading others would keep them from suspending (Linux 6.12, 7.2).
    """

    name = "amdgpu_sensors"
    signs: tuple[str, ...] = ("sys/class/drm/",)
    period_seconds: float = 2.0
    may_block = True

    def __init__(self, roots: Roots, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._drm, self._pci = roots.sysfs / "class/drm", roots.sysfs / "bus/pci/devices"
        self._monotonic = monotonic
        self._errors_at = 0.0
        self._errors: dict[str, dict[str, int]] = {}
        self._gpus: list[str] = []
        if not cards.find(self._drm).gpus:
            raise SourceUnavailable(f"{self._drm}: no card of the driver {cards.DRIVER}")

    def collect(self) -> Findings:
        if self._monotonic() >= self._errors_at:
            self._errors_at = self._monotonic() + ERRORS_SECONDS
            self._gpus = [pci for pci in cards.find(self._drm).gpus if stays_awake(self._pci / pci)]
            self._errors = {pci: read_errors(self._pci / pci / "ras") for pci in self._gpus}
        return Findings(amdgpu_sensors={pci: self._read_sensors(pci) for pci in self._gpus})

    def _read_sensors(self, pci: str) -> AmdSensors:
        device = self._pci / pci
        return AmdSensors(
            parse_ratio(cards.read(device / "gpu_busy_percent", 64)),
            parse_ratio(cards.read(device / "mem_busy_percent", 64)),
            self._errors[pci],
        )


def stays_awake(device: Path) -> bool:
    return is_awake(device) and not may_suspend(device)


def read_errors(ras: Path) -> dict[str, int]:
    """Read error counts of the memory controller since the driver was loaded, and retired pages."""
    counts, pages = cards.read(ras / "umc_err_count"), cards.read(ras / "gpu_vram_bad_pages", _MAX_BAD_PAGES_BYTES)
    found = {} if isinstance(counts, Absent) else parse_errors(counts)
    return found if isinstance(pages, Absent) else found | parse_bad_pages(pages)
