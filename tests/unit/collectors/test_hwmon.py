"""Temperature, power, clocks and throttling from the kernel's files, and GPUs that are left asleep."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.gpu_sensors import RESCAN_SECONDS, HwmonCollector
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.model import Absent, Vitals
from simulators.amd_machine import PCI, AmdMachine, discrete
from support.fakes import FakeClock

ASLEEP = Vitals.absent(Absent.SUSPENDED)
AMDGPU: dict[str, str | int] = {
    "name": "amdgpu",
    "temp1_label": "edge",
    "temp1_input": 61000,
    "temp2_label": "junction",
    "temp2_input": 74000,
    "power1_average": 287000000,
    "freq1_label": "sclk",
    "freq1_input": 2371000000,
    "freq2_label": "mclk",
    "freq2_input": 1249000000,
}
NAVI = Vitals(61.0, 287.0, {"graphics": 2_371_000_000, "memory": 1_249_000_000}, Absent.NOT_SUPPORTED)
XE: dict[str, str | int] = {
    "name": "xe",
    "temp2_label": "pkg",
    "temp2_input": 48000,
    "temp3_label": "vram",
    "temp3_input": 56000,
    "energy1_label": "card",
    "energy1_input": 1_000_000_000,
}


def gpu_metrics(revision: int, content: int, mask: int, size: int = 168) -> bytes:
    """Build the file of amdgpu: a header, and the mask of throttlers at the offset of that format."""
    offset = {1: 112, 2: 120}.get(revision, 120)
    data = bytearray(max(size, offset + 8))
    data[:4] = struct.pack("<HBB", size, revision, content)
    data[offset : offset + 8] = struct.pack("<Q", mask)
    return bytes(data[:size])


class Machine:
    """One GPU with sensors, and the collector that reads it."""

    def __init__(self, folder: Path, files: Mapping[str, str | int], **power: str | int) -> None:
        self.machine = AmdMachine(folder)
        self.machine.gpu({**discrete(), **{f"power/{name}": text for name, text in power.items()}})
        self.clock = FakeClock()
        for name, text in files.items():
            self.write(f"hwmon/hwmon3/{name}", text)
        self.collector = HwmonCollector(self.machine.roots, self.clock.monotonic)

    def write(self, name: str, text: str | int | bytes) -> None:
        self.machine.write(f"sys/devices/pci0000:00/{PCI}/{name}", text)

    def remove(self, name: str) -> None:
        (self.machine.device() / name).unlink()

    def read(self) -> Vitals:
        found = self.collector.collect().hwmon
        assert found is not None
        return found[PCI]


def test_amd_card_has_edge_temperature_board_power_and_two_clocks(tmp_path: Path) -> None:
    assert Machine(tmp_path, AMDGPU).read() == NAVI


def test_card_without_edge_sensor_has_the_hottest_point(tmp_path: Path) -> None:
    """As MI300X: no edge sensor, and power only as the current one."""
    files = {name: text for name, text in AMDGPU.items() if not name.startswith(("temp1", "power"))}
    found = Machine(tmp_path, {**files, "power1_input": 540000000}).read()

    assert (found.temperature_celsius, found.power_watts) == (74.0, 540.0)


def test_intel_power_is_the_energy_between_two_readings(tmp_path: Path) -> None:
    machine = Machine(tmp_path, XE)
    first = machine.read()
    machine.write("hwmon/hwmon3/energy1_input", 1_400_000_000)
    machine.clock.now += 5
    second = machine.read()
    machine.write("hwmon/hwmon3/energy1_input", 1_000)
    machine.clock.now += 5

    assert first == Vitals(48.0, Absent.NOT_AVAILABLE, Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED)
    assert second.power_watts == 80.0
    assert machine.read().power_watts is Absent.NOT_AVAILABLE  # the counter started over


def test_sleeping_gpu_is_not_read(tmp_path: Path) -> None:
    """Its files would wake it: here they are missing, and nothing but the power state is looked at."""
    machine = Machine(tmp_path, AMDGPU, control="auto", runtime_status="suspended")
    machine.remove("hwmon/hwmon3/temp1_input")

    assert machine.read() == ASLEEP


def test_gpu_that_may_sleep_is_read_with_pauses_that_let_it(tmp_path: Path) -> None:
    """Every reading restarts the delay before the kernel suspends the GPU: the next comes after that delay."""
    machine = Machine(tmp_path, AMDGPU, control="auto", runtime_status="active", autosuspend_delay_ms=5000)
    assert machine.read() == NAVI
    machine.write("hwmon/hwmon3/temp1_input", 70000)
    machine.clock.now += 5
    early = machine.read()
    machine.clock.now += 2
    late = machine.read()
    machine.write("power/runtime_status", "suspended")
    asleep = machine.read()

    assert (early, late.temperature_celsius, asleep) == (NAVI, 70.0, ASLEEP)


@pytest.mark.parametrize("text", ["N/A", "", "12 34"])
def test_garbled_file_is_inconsistent_and_costs_only_its_value(tmp_path: Path, text: str) -> None:
    found = Machine(tmp_path, {**AMDGPU, "temp1_input": text}).read()

    assert (found.temperature_celsius, found.power_watts) == (Absent.INCONSISTENT, 287.0)


@pytest.mark.parametrize("name", ["nvme", "amdgpu_other"])
def test_machine_without_gpu_sensors_is_unavailable(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceUnavailable, match="no AMD or Intel GPU with sensors"):
        Machine(tmp_path, {**AMDGPU, "name": name})


def test_sensors_of_a_driver_that_is_loaded_again_are_found(tmp_path: Path) -> None:
    """The kernel gives its folder the next free number."""
    machine = Machine(tmp_path, AMDGPU)
    device = machine.machine.device()
    (device / "hwmon/hwmon3").rename(device / "hwmon/hwmon5")
    machine.clock.now += RESCAN_SECONDS

    assert machine.read() == NAVI


def test_added_and_removed_gpus_are_found(tmp_path: Path) -> None:
    machine = Machine(tmp_path, AMDGPU)
    other = "0000:2b:00.0"
    machine.machine.gpu(discrete(), other, card=2)
    machine.machine.write(f"sys/devices/pci0000:00/{other}/hwmon/hwmon4/name", "amdgpu")
    machine.machine.unplug(1)
    machine.clock.now += RESCAN_SECONDS

    assert machine.collector.collect().hwmon == {
        other: Vitals(*[Absent.NOT_SUPPORTED] * 4)  # no file but the name
    }


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (gpu_metrics(1, 3, 1 << 0 | 1 << 35 | 1 << 47, size=120), ("ppt0", "temp_edge", "prochot_gfx")),
        (gpu_metrics(2, 2, 1 << 5, size=128), ("fppt",)),
        (gpu_metrics(2, 4, 1 << 41 | 1 << 57), ("temp_vr_mem1", "fit")),
        (gpu_metrics(1, 3, 0, size=120), ()),
        (gpu_metrics(1, 3, 1 << 60, size=120), ("bit_60",)),  # of a newer driver
        (gpu_metrics(1, 3, (1 << 64) - 1, size=120), Absent.NOT_SUPPORTED),
        (gpu_metrics(1, 2, 1, size=104), Absent.NOT_READ),  # a mask that differs by GPU
        (gpu_metrics(2, 1, 1, size=120), Absent.NOT_READ),
        (gpu_metrics(3, 0, 1, size=264), Absent.NOT_READ),  # counters of time
        (gpu_metrics(1, 3, 1, size=112), Absent.INCONSISTENT),
        (b"x", Absent.INCONSISTENT),
    ],
)
def test_amd_reasons_are_the_bits_that_mean_the_same_on_all_gpus(
    tmp_path: Path, metrics: bytes, expected: tuple[str, ...] | Absent
) -> None:
    machine = Machine(tmp_path, AMDGPU)
    machine.write("gpu_metrics", metrics)

    assert machine.read().throttled == expected


@pytest.mark.parametrize(
    ("first", "second", "prefix", "status"),
    [
        ("drm/card0/gt/gt0", "drm/card0/gt/gt1", "throttle_reason_", "throttle_reason_status"),
        ("tile0/gt0/freq0/throttle", "tile1/gt2/freq0/throttle", "reason_", "status"),
    ],
    ids=["i915", "xe"],
)
def test_intel_reasons_are_those_of_all_graphics_units(
    tmp_path: Path, first: str, second: str, prefix: str, status: str
) -> None:
    """An integrated GPU has these files and no hwmon folder. Reasons of a unit with status 0 are not read."""
    machine = Machine(tmp_path, {**XE})
    for folder in (first, second):
        for name in ("pl1", "thermal", "prochot"):
            machine.write(f"{folder}/{prefix}{name}", 0)
        machine.write(f"{folder}/{status}", 0)
    for name in XE:
        machine.remove(f"hwmon/hwmon3/{name}")
    machine.clock.now += RESCAN_SECONDS
    calm = machine.read()
    machine.write(f"{first}/{prefix}thermal", 1)
    stale = machine.read()
    machine.write(f"{first}/{status}", 1)
    machine.write(f"{second}/{status}", 1)
    machine.write(f"{second}/{prefix}pl1", 1)
    hot = machine.read()
    machine.write(f"{first}/{prefix}thermal", 0)
    machine.write(f"{second}/{prefix}pl1", 0)
    unnamed = machine.read()
    machine.write(f"{first}/{status}", "?")

    assert (calm.throttled, stale.throttled) == ((), ())
    assert (hot.throttled, unnamed.throttled) == (("thermal", "pl1"), ("unnamed",))
    assert machine.read().throttled is Absent.INCONSISTENT


def test_throttling_of_a_sleeping_gpu_is_not_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, AMDGPU, control="auto", runtime_status="suspended")
    machine.write("gpu_metrics", gpu_metrics(1, 3, 1, size=120))
    (machine.machine.device() / "gpu_metrics").chmod(0)

    assert machine.read() == ASLEEP


@pytest.mark.parametrize(
    ("name", "text", "figure"),
    [
        ("temp1_input", 511_000, "temperature_celsius"),  # amdgpu, lm-sensors/lm-sensors#289
        ("temp1_input", 65_261_850, "temperature_celsius"),
        ("temp1_input", -273_150, "temperature_celsius"),
        ("power1_average", 4_294_967_295_000, "power_watts"),
        ("power1_average", -1, "power_watts"),
    ],
)
def test_value_of_a_sensor_that_no_gpu_has_is_inconsistent(
    name: str, text: int, figure: str, tmp_path: Path
) -> None:
    vitals = Machine(tmp_path, {**AMDGPU, name: text}).read()
    assert vitals == replace(NAVI, **{figure: Absent.INCONSISTENT})
