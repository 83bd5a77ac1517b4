"""Temperature, power and clocks from the kernel's sensors, for the devices that they belong to. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Device, Vitals


def with_sensors(devices: Sequence[Device], found: Findings) -> tuple[Device, ...]:
    """Return the devices with the values of the sensors at their PCI address."""
    sensors = found.hwmon
    if not sensors:
        return tuple(devices)
    if "hwmon" in found.stale:
        sensors = dict.fromkeys(sensors, Vitals.absent(Absent.STALE))
    return tuple(
        device.with_vitals(sensors[str(device.pci)])
        if str(device.pci) in sensors and device.state == "ok"
        else device
        for device in devices
    )
