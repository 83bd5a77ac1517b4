"""Temperature, power and clocks of a Jetson's GPU, from lines that its tegrastats printed."""

from __future__ import annotations

import pytest

from memwatch.core.drivers.tegra.tegrastats import find_rail, parse_line, read_vitals
from memwatch.core.model import Absent, Vitals
from support.paths import MACHINES

MHZ = 1_000_000


def vitals_of(text: str) -> Vitals:
    return read_vitals(parse_line(f"RAM 100/4000MB (lfb 1x4MB) {text}\n".encode()))


@pytest.mark.parametrize(
    ("machine", "celsius", "watts", "rail", "clocks"),
    [
        ("jetson-nano-jp4", 36.0, 1.402, "POM_5V_GPU", {"graphics": 921, "memory": 1600}),
        ("jetson-tx2", 41.0, 0.152, "VDD_SYS_GPU", {"graphics": 114, "memory": 1866}),
        ("jetson-xavier-nx", 42.0, 0.738, "VDD_CPU_GPU_CV", {"graphics": 306, "memory": 1600}),
        ("jetson-orin-nano", 48.343, 4.667, "VDD_CPU_GPU_CV", {"graphics": 621, "memory": 2133}),
        ("jetson-agx-orin-jp7.2", 50.125, 5.139, "VDD_GPU_SOC", {"graphics": 1300, "memory": 3199}),
        ("jetson-agx-orin-jp6", 51.5, 24.94, "VDD_GPU_SOC", None),
        ("thor", 39.906, 3.561, "VDD_GPU", None),
    ],
)
def test_printed_line_has_the_gpus_values(
    machine: str, celsius: float, watts: float, rail: str, clocks: dict[str, int] | None
) -> None:
    """AGX Orin's and Thor's lines have no clocks for a user without root."""
    line = parse_line((MACHINES / machine / "tegrastats").read_bytes())
    hertz = {name: mhz * MHZ for name, mhz in clocks.items()} if clocks else Absent.NOT_AVAILABLE

    assert read_vitals(line) == Vitals(celsius, watts, hertz, Absent.NOT_READ)
    assert find_rail(line.rails_milliwatts) == rail


def test_fastest_part_of_the_gpu_is_its_clock() -> None:
    assert vitals_of("GR3D_FREQ 87%@[1574,306,1500]").clock_hertz == {"graphics": 1574 * MHZ}


def test_gpu_that_is_off_has_the_chips_temperature() -> None:
    """Thor prints no sensor of the GPU while its rail is off; others print -256 °C."""
    assert vitals_of("cpu@30C tj@31.218C").temperature_celsius == 31.218
    assert vitals_of("GPU@-256C tj@31C").temperature_celsius == 31.0
    assert vitals_of("CPU@30C").temperature_celsius is Absent.NOT_AVAILABLE


def test_power_below_zero_is_inconsistent() -> None:
    assert vitals_of("VDD_GPU -392mW/-392mW").power_watts is Absent.INCONSISTENT
    assert vitals_of("VDD_GPU 0mW/0mW").power_watts == 0.0


def test_rail_that_does_not_feed_the_gpu_is_not_its_power() -> None:
    assert vitals_of("VDD_SOC 1424mW/1424mW").power_watts is Absent.NOT_AVAILABLE
