"""Period of the questions to NVML: longer while processes and bytes of a GPU that uses system RAM stay the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.nvml import PERIOD_SECONDS, STILL_ANSWERS, STILL_PERIOD_SECONDS, Pace
from memwatch.core.drivers.nvml.records import Asleep, GpuMemory, GpuProcess, GpuReading, NvmlReading
from memwatch.core.model import Absent

GIB = 1 << 30
NO = Absent.NOT_SUPPORTED
SERVER = GpuProcess(4711, 60 * GIB)
GB10 = GpuReading(0, "GPU-1", "000f:01:00.0", "NVIDIA GB10", memory=NO, processes=(SERVER,))
READING = NvmlReading(driver="580.95.05", cuda=NO, gpus=(GB10,))


def still() -> Pace:
    """Return the pace after answers without a change."""
    pace = Pace()
    periods = [pace.period_after(READING) for _ in range(STILL_ANSWERS + 1)]
    assert periods == [PERIOD_SECONDS] * STILL_ANSWERS + [STILL_PERIOD_SECONDS]
    return pace


def test_busy_gpu_is_asked_less_often_while_its_memory_stays() -> None:
    """Its load, clocks and temperature change all the time."""
    pace = still()

    busy = replace(READING, gpus=(replace(GB10, busy_ratio=0.9),))

    assert pace.period_after(busy) == STILL_PERIOD_SECONDS


@pytest.mark.parametrize(
    "gpu",
    [
        replace(GB10, processes=(replace(SERVER, used_bytes=61 * GIB),)),
        replace(GB10, processes=(SERVER, GpuProcess(4712, GIB))),
        replace(GB10, processes=()),
        replace(GB10, processes=NO),
        replace(GB10, state="lost"),
        replace(GB10, asleep=Asleep("suspended", Absent.NOT_AVAILABLE)),
        replace(GB10, memory=GpuMemory(2, 80 * GIB, 60 * GIB, 20 * GIB, 0)),
        replace(GB10, memory=Absent.NOT_AVAILABLE),
    ],
)
def test_change_ends_the_longer_period(gpu: GpuReading) -> None:
    pace = still()

    assert pace.period_after(replace(READING, gpus=(gpu,))) == PERIOD_SECONDS


@pytest.mark.parametrize("others", [(), (replace(GB10, memory=GpuMemory(2, 80 * GIB, 60 * GIB, 20 * GIB, 0)),)])
def test_machine_without_such_a_gpu_or_with_another_is_asked_every_second(others: tuple[GpuReading, ...]) -> None:
    reading = replace(READING, gpus=(GB10, *others) if others else ())
    pace = Pace()

    assert {pace.period_after(reading) for _ in range(3 * STILL_ANSWERS)} == {PERIOD_SECONDS}
