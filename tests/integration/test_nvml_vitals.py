"""Temperature, power, clocks, throttling and utilization that NVML reports, in the helper's readings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.drivers.nvml.fields import throttle_reasons
from memwatch.core.drivers.nvml.records import GpuReading
from memwatch.core.model import Absent, Vitals
from simulators.nvml_child import running_child
from simulators.nvml_machine import NOT_IN_OLD_DRIVERS, Simulator
from simulators.nvml_state import Machine, Sensors, Trouble
from simulators.sample_nvml import EIGHT_H100, H200_MIG, RTX_4090
from simulators.sample_nvml_integrated import GB10, GB10_TOTAL_ZERO
from support.waiting import wait_until

NOT_SUPPORTED = Absent.NOT_SUPPORTED
TWO = replace(EIGHT_H100, gpus=EIGHT_H100.gpus[:2])


def first_reading(folder: Path, machine: Machine, *hidden: str) -> GpuReading:
    simulator = Simulator.of(folder, machine, hidden)
    with running_child(simulator) as child:
        return child.gpu()


def with_sensors(machine: Machine = RTX_4090, **values: Any) -> Machine:
    sensors = machine.gpus[0].sensors
    assert sensors is not None
    return machine.with_gpu(0, sensors=replace(sensors, **values))


@pytest.mark.parametrize("hidden", [(), tuple(NOT_IN_OLD_DRIVERS)], ids=["new", "old"])
def test_first_reading_has_all_values(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    """Also with a driver that lacks the newer calls."""
    gpu = first_reading(tmp_path, RTX_4090, *hidden)

    assert gpu.vitals == Vitals(61, 287.4, {"sm": 2_715_000_000, "memory": 10_501_000_000}, ())
    assert (gpu.busy_ratio, gpu.memory_busy_ratio) == (0.93, 0.41)


@pytest.mark.parametrize("machine", [GB10, GB10_TOTAL_ZERO], ids=["not supported", "size 0"])
def test_gpu_without_framebuffer_has_no_memory_utilization(tmp_path: Path, machine: Machine) -> None:
    """GB10 reports 0 for a memory that it does not have, and no clock of it."""
    gpu = first_reading(tmp_path, machine)

    assert gpu.vitals == Vitals(67, 41.2, {"sm": 2_405_000_000}, ())
    assert (gpu.busy_ratio, gpu.memory_busy_ratio) == (0.96, NOT_SUPPORTED)


def test_unsupported_values_are_absent_and_asked_once(tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, sensors=None))

    with running_child(simulator, "--slow-seconds=0.0001") as child:
        gpu = child.gpu()
        for _ in range(20):
            child.reading()

    assert gpu.vitals == Vitals.absent(NOT_SUPPORTED)
    assert (gpu.busy_ratio, gpu.memory_busy_ratio) == (NOT_SUPPORTED, NOT_SUPPORTED)
    assert [call.function for call in simulator.calls()].count("nvmlDeviceGetPowerUsage") == 1


def test_value_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """No permission for one call, and an impossible answer to another, which is counted."""
    troubles = {"nvmlDeviceGetPowerUsage": Trouble(error=4)}
    machine = with_sensors(temperature=4_000).with_gpu(0, troubles=troubles)
    simulator = Simulator.of(tmp_path, machine)

    with running_child(simulator) as child:
        reading = child.reading()

    vitals = reading.gpus[0].vitals
    assert (vitals.temperature_celsius, vitals.power_watts) == (Absent.INCONSISTENT, Absent.NOT_PERMITTED)
    assert vitals.throttled == ()
    assert reading.rejected == {"temperature": 1}


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10 | 0x100, ()),
        (0x4, ("power_cap",)),
        (0x8, ("hw_slowdown",)),
        (0x8 | 0x40, ("hw_thermal",)),
        (0x4 | 0x8 | 0x20 | 0x80, ("power_cap", "thermal", "power_brake")),
        (0x8000, ()),
    ],
)
def test_throttle_reasons_leave_out_idle_and_chosen_clocks(mask: int, reasons: tuple[str, ...]) -> None:
    assert throttle_reasons(mask) == reasons


def test_values_change_together(tmp_path: Path) -> None:
    """Two GPUs, ten values: the answers differ from each other once a turn, not once a value."""
    simulator = Simulator.of(tmp_path, TWO)

    hot = Vitals(80, 400.0, {"sm": 1_500_000_000, "memory": 2_000_000_000}, ("hw_thermal",))
    with running_child(simulator, "--slow-seconds=0.9") as child:
        seen = [[gpu.vitals for gpu in child.reading().gpus]]
        hotter = Sensors(80, 400_000, 1500, 2000, throttle=0x40, busy=10, memory_busy=20)
        simulator.show(TWO.with_gpu(0, sensors=hotter).with_gpu(1, sensors=hotter))

        def is_hot() -> bool:
            seen.append([gpu.vitals for gpu in child.reading().gpus])
            return seen[-1] == [hot, hot]

        wait_until(is_hot)

    assert sum(one != other for one, other in itertools.pairwise(seen)) <= 2


def test_mig_leaves_the_gpus_temperature(tmp_path: Path) -> None:
    """Utilization is not supported under MIG."""
    gpu = first_reading(tmp_path, H200_MIG)

    assert gpu.vitals.temperature_celsius == 58
    assert gpu.vitals.throttled == ("power_cap",)
    assert gpu.busy_ratio is NOT_SUPPORTED


def test_lost_gpu_has_no_values(tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(TWO.with_gpu(0, down=15))
        lost, other = child.reading().gpus

    assert lost.vitals == Vitals.absent(Absent.NOT_AVAILABLE)
    assert (lost.busy_ratio, lost.memory_busy_ratio) == (Absent.NOT_AVAILABLE,) * 2
    assert other.vitals.power_watts == 642.3
