"""Temperature, power and clocks of a Tegra's GPU, from a line of tegrastats. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from memwatch.core.drivers.tegra.records import Load, TegrastatsReading
from memwatch.core.model import MIN_CELSIUS, Absent, Vitals

# The GPU's sensor is missing while its rail is off (Thor); `tj` is the hottest place of the chip.
SENSORS = ("gpu", "tj")
# The GPU's own rail, then those that it shares with other parts of the chip. AGX Orin has one for GPU and SOC, Orin
# NX and Nano have one for CPU, GPU and CV.
RAILS = ("vdd_gpu", "gpu", "vdd_sys_gpu", "pom_5v_gpu", "vdd_gpu_soc", "vdd_cpu_gpu_cv")
_MILLIWATTS = 1000


def read_vitals(line: TegrastatsReading) -> Vitals:
    """Return what the line has. tegrastats prints no reasons for lower clocks."""
    return Vitals(
        temperature_celsius=_temperature(line.temperatures_celsius),
        power_watts=_power(line.rails_milliwatts),
        clock_hertz=_clocks(line),
    ).checked()


def find_rail(rails: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the rail that feeds the GPU, None if no rail is known to."""
    names = {name.lower(): name for name in rails}
    return next((names[rail] for rail in RAILS if rail in names), None)


def _temperature(sensors: Mapping[str, tuple[float, ...]]) -> float | Absent:
    by_name = {name.lower(): values[0] for name, values in sensors.items()}
    found = [by_name[name] for name in SENSORS if by_name.get(name, MIN_CELSIUS) > MIN_CELSIUS]
    return found[0] if found else Absent.NOT_AVAILABLE


def _power(rails: Mapping[str, tuple[int, ...]]) -> float | Absent:
    """Return the current power. A rail that is off may read below 0, which is no power."""
    rail = find_rail(rails)
    return Absent.NOT_AVAILABLE if rail is None else rails[rail][0] / _MILLIWATTS


def _clocks(line: TegrastatsReading) -> Mapping[str, int] | Absent:
    """Return the clock of the GPU's fastest part, and of the memory controller."""
    loads = {"graphics": line.gr3d, "memory": line.emc}
    known = {name: max(load.hertz) for name, load in loads.items() if isinstance(load, Load) and load.hertz}
    return known or Absent.NOT_AVAILABLE
