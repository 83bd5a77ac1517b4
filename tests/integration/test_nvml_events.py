"""XIDs are counted by GPU and code, also across lost GPUs, and a wait without events is no error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from memwatch.core.drivers.nvml.driver import WAIT_SECONDS
from memwatch.core.drivers.nvml.records import NvmlReading, Xid
from simulators.nvml_child import Outcome, running_child, wait_until_listening
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import DOUBLE_BIT_ECC, XID
from simulators.nvml_state import Event, Trouble
from simulators.sample_nvml import EIGHT_H100, RTX_4090, WSL2
from support.waiting import wait_until

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


def test_xid_is_counted_once(tmp_path: Path) -> None:
    """Rounds later, its count and its time are the same."""
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


def test_wait_without_events_is_not_an_error(tmp_path: Path) -> None:
    """Five seconds without events are a TIMEOUT: nothing is counted or logged, and the wait is repeated."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    began = time.monotonic()
    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        wait_until(lambda: count_waits(simulator) >= 2)
        took = time.monotonic() - began
        found = child.reading()

    assert (found.xids, found.gpus[0].codes.get("events")) == ((), None)
    assert took >= WAIT_SECONDS
    assert (simulator.folder / "stderr").read_text() == ""


def test_failed_wait_is_repeated_with_backoff(tmp_path: Path) -> None:
    """After a wait that fails at once, the next starts a second later, then two."""
    simulator = Simulator.of(
        tmp_path, RTX_4090.__class__(gpus=RTX_4090.gpus, troubles={"nvmlEventSetWait_v2": Trouble(error=999)})
    )

    began = time.monotonic()
    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        wait_until(lambda: count_waits(simulator) >= 3)
        took = time.monotonic() - began
        child.reading()

    assert took >= 1.0 + 2.0


def count_waits(simulator: Simulator) -> int:
    return [call.function for call in simulator.calls()].count("nvmlEventSetWait_v2")


def test_machine_without_events_has_no_waiting_thread(tmp_path: Path) -> None:
    """WSL2 has no events: readings continue without an event thread."""
    simulator = Simulator.of(tmp_path, WSL2)

    with running_child(simulator) as child:
        found = child.reading()
        time.sleep(0.2)
        threads = len(list(Path(f"/proc/{child.process.pid}/task").iterdir()))
        functions = {call.function for call in simulator.calls()}

    assert found.xids == ()
    assert threads == 1
    assert "nvmlEventSetWait_v2" not in functions


def test_xid_counts_survive_a_lost_gpu(tmp_path: Path) -> None:
    """After XID 79 the GPU is lost and NVML is reopened: its count stays, and XIDs of the other GPU are counted."""
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


def test_xids_are_counted_after_a_round_without_answers(tmp_path: Path) -> None:
    """A GPU that fails for one round has NVML reopened, and its later XIDs are counted."""
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
