"""Sensors that graphics drivers register with the kernel (hwmon), and throttling, for GPUs that are awake.

Reading one resumes a suspended GPU (amdgpu before Linux 6.13, i915, xe), and restarts the time after which an idle
GPU is suspended. A GPU that may be suspended is therefore read only while it is active, and with pauses that let it
be suspended in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from memwatch.core.linux.files import names_in, read_once
from memwatch.core.linux.gpu_throttling import ThrottleReader
from memwatch.core.linux.pci import is_awake, may_suspend
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
    for card in names_in(sysfs / "class/drm"):
        if not card.startswith("card") or not card[4:].isdecimal():
            continue
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
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError:
        return Absent.NOT_SUPPORTED
    except PermissionError:
        return Absent.NOT_AVAILABLE  # what amdgpu answers for a GPU that has just been suspended
    except OSError:
        return Absent.NOT_AVAILABLE
    return int(text) if text.lstrip(b"-").isdigit() and len(text) < 20 else Absent.INCONSISTENT
