"""XIDs are counted by GPU and code, whatever befalls the GPUs meanwhile, and silence is no error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from memwatch.drivers.nvml.events import WAIT_SECONDS
from memwatch.drivers.nvml.records import NvmlReading, Xid
from support.nvml_child import Outcome, running_child, wait_until_listening
from support.nvml_machine import Simulator
from support.nvml_state import Event, Trouble
from support.sample_nvml import DOUBLE_BIT_ECC, EIGHT_H100, RTX_4090, WSL2, XID

FIRST, SECOND = (gpu.uuid for gpu in EIGHT_H100.gpus[:2])


def xids_are(expected: dict[tuple[str, int], int]) -> Callable[[Outcome], bool]:
    def are(found: Outcome) -> bool:
        return isinstance(found, NvmlReading) and expected == {
            (xid.gpu_uuid, xid.code): xid.count for xid in found.xids
        }

    return are


def test_xids_are_counted_by_gpu_and_code(tmp_path: Path) -> None:
    """Three events on two GPUs with two codes: three counters, with the time of the last one."""
    simulator = Simulator.of(tmp_path, EIGHT_H100)
    before = time.time()

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        simulator.show(
            EIGHT_H100.with_event(
                Event(0, XID, 79),
                Event(1, XID, 79),
                Event(1, XID, 31),
                Event(1, XID, 31),
                Event(0, DOUBLE_BIT_ECC, 1),
            )
        )
        found = child.until(xids_are({(FIRST, 79): 1, (SECOND, 79): 1, (SECOND, 31): 2}))

    assert isinstance(found, NvmlReading)
    assert all(before <= xid.last_seen_unix <= time.time() for xid in found.xids)


def test_a_counter_stays_and_is_never_repeated(tmp_path: Path) -> None:
    """An XID is counted once: rounds later its count and its time are the same."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        simulator.show(RTX_4090.with_event(Event(0, XID, 31)))
        child.until(xids_are({(RTX_4090.gpus[0].uuid, 31): 1}))
        first = child.reading().xids
        time.sleep(1.2)
        later = child.reading().xids

    assert first == later
    assert isinstance(first[0], Xid)


def test_quiet_waits_are_no_errors(tmp_path: Path) -> None:
    """Five seconds without events are a TIMEOUT: nothing is counted, nothing is logged, and it waits again."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        time.sleep(WAIT_SECONDS + 1.0)
        found = child.reading()
        waits = [call.function for call in simulator.calls()].count("nvmlEventSetWait_v2")

    assert (found.xids, found.gpus[0].codes.get("events")) == ((), None)
    assert waits == 2
    assert (simulator.folder / "stderr").read_text() == ""


def test_a_wait_that_fails_is_not_repeated_hotly(tmp_path: Path) -> None:
    """A wait that fails at once waits a second before the next one, then two."""
    simulator = Simulator.of(
        tmp_path, RTX_4090.__class__(gpus=RTX_4090.gpus, troubles={"nvmlEventSetWait_v2": Trouble(error=999)})
    )

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        time.sleep(1.5)
        child.reading()
        waits = [call.function for call in simulator.calls()].count("nvmlEventSetWait_v2")

    assert waits == 2


def test_without_events_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    """WSL2 has no events: readings go on, and no thread waits."""
    simulator = Simulator.of(tmp_path, WSL2)

    with running_child(simulator) as child:
        found = child.reading()
        time.sleep(0.2)
        threads = len(list(Path(f"/proc/{child.process.pid}/task").iterdir()))
        functions = {call.function for call in simulator.calls()}

    assert found.xids == ()
    assert threads == 1
    assert "nvmlEventSetWait_v2" not in functions


def test_counters_survive_a_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """XID 79, the GPU is lost, NVML is opened anew: the count stands, and a new XID of the other is heard."""
    machine = EIGHT_H100.__class__(gpus=EIGHT_H100.gpus[:2], host=EIGHT_H100.host)
    simulator = Simulator.of(tmp_path, machine)

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        machine = machine.with_event(Event(0, XID, 79))
        simulator.show(machine)
        child.until(xids_are({(FIRST, 79): 1}))
        machine = machine.with_gpu(0, down=15)
        simulator.show(machine)
        child.until(lambda _: [call.function for call in simulator.calls()].count("nvmlInitWithFlags") >= 2)
        simulator.clear_calls()
        wait_until_listening(simulator, child)
        simulator.show(machine.with_event(Event(1, XID, 31)))
        child.until(xids_are({(FIRST, 79): 1, (SECOND, 31): 1}))


def test_one_silent_round_does_not_end_listening(tmp_path: Path) -> None:
    """A GPU that answers nothing for one round has NVML opened anew, and its XIDs are heard after that."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    silent = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
    sick = RTX_4090.with_gpu(0, troubles=dict.fromkeys(silent, Trouble(error=999, times=1)))

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        time.sleep(0.25)
        simulator.show(sick)
        child.reading()
        child.until(lambda _: [call.function for call in simulator.calls()].count("nvmlInitWithFlags") == 2)
        simulator.clear_calls()
        wait_until_listening(simulator, child)
        simulator.show(sick.with_event(Event(0, XID, 31)))
        child.until(xids_are({(RTX_4090.gpus[0].uuid, 31): 1}))
