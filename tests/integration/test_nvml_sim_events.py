"""Event sets of the simulated libnvidia-ml.so.1: waits end in time, and each event arrives once."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from simulators.nvml_machine import Simulator
from simulators.nvml_parts import MIG_CHANGE, SINGLE_BIT_ECC, XID
from simulators.nvml_probe import Raised, ready
from simulators.nvml_state import Event
from simulators.sample_nvml import EIGHT_H100, H200_MIG

TWO = replace(EIGHT_H100, gpus=EIGHT_H100.gpus[:2])


EVENT = (
    "(lambda e: [nvmlDeviceGetIndex(e.device), e.eventType, e.eventData, e.gpuInstanceId])"
    "(nvmlEventSetWait_v2(s, {}))"
)
NO_INSTANCE = 0xFFFFFFFF


def test_wait_without_events_times_out(tmp_path: Path) -> None:
    """Not before its timeout."""
    simulator = Simulator.of(tmp_path, EIGHT_H100)

    with ready(simulator) as asked:
        asked.ask("globals().update(s=nvmlEventSetCreate())")
        asked.ask("nvmlDeviceRegisterEvents(gpu(0), nvmlEventTypeXidCriticalError, s)")
        started = time.monotonic()
        answer = asked.ask("nvmlEventSetWait_v2(s, 300)")
        took = time.monotonic() - started

    assert answer == Raised("NVMLError_Timeout", 10)
    assert took >= 0.3


def test_events_arrive_once_and_in_order(tmp_path: Path) -> None:
    """Only registered events after the set was created arrive. A waiting call wakes up."""
    machine = EIGHT_H100.with_event(Event(0, XID, 13))
    simulator = Simulator.of(tmp_path, machine)

    with ready(simulator) as asked:
        asked.ask("globals().update(s=nvmlEventSetCreate())")
        asked.ask(f"nvmlDeviceRegisterEvents(gpu(0), {XID | MIG_CHANGE}, s)")
        asked.ask(f"nvmlDeviceRegisterEvents(gpu(2), {XID}, s)")
        asked.begin(EVENT.format(600_000))
        simulator.wait_for_call("nvmlEventSetWait_v2", "-")
        simulator.show(
            machine.with_event(
                Event(1, XID, 31), Event(0, SINGLE_BIT_ECC, 0), Event(2, XID, 79), Event(0, MIG_CHANGE, 0, gi=2)
            )
        )

        assert asked.answer() == [2, XID, 79, NO_INSTANCE]
        assert asked.ask(EVENT.format(0)) == [0, MIG_CHANGE, 0, 2]
        assert asked.ask(EVENT.format(0)) == Raised("NVMLError_Timeout", 10)


def test_unsupported_event_registrations_are_refused(tmp_path: Path) -> None:
    """Unsupported event types, MIG devices and freed sets."""
    simulator = Simulator.of(tmp_path, H200_MIG)

    with ready(simulator) as asked:
        asked.ask("globals().update(s=nvmlEventSetCreate())")
        assert asked.ask("nvmlDeviceRegisterEvents(gpu(0), nvmlEventTypeClock, s)") == Raised(
            "NVMLError_NotSupported", 3
        )
        assert asked.ask(f"nvmlDeviceRegisterEvents(mig(0, 0), {XID}, s)") == Raised("NVMLError_NotSupported", 3)
        assert asked.ask("nvmlEventSetFree(s)") is None
        assert asked.ask("nvmlEventSetWait_v2(s, 10)") == Raised("NVMLError_InvalidArgument", 2)


def test_wait_ends_when_a_registered_gpu_is_lost(tmp_path: Path) -> None:
    """A wait in progress returns GPU_IS_LOST, for a registered GPU only."""
    simulator = Simulator.of(tmp_path, TWO)

    with ready(simulator) as asked:
        asked.ask("globals().update(s=nvmlEventSetCreate())")
        asked.ask(f"nvmlDeviceRegisterEvents(gpu(1), {XID}, s)")
        asked.begin("nvmlEventSetWait_v2(s, 30000)")
        simulator.wait_for_call("nvmlEventSetWait_v2", "-")
        simulator.show(TWO.with_gpu(0, down=15))
        simulator.show(TWO.with_gpu(1, down=15))
        assert asked.answer() == Raised("NVMLError_GpuIsLost", 15)
