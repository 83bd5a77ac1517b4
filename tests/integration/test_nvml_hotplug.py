"""GPUs that are lost, reset, removed or added, and drivers that come and go, in one helper process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.drivers.nvml.records import GpuMemory, NvmlFailure, NvmlReading
from memwatch.core.model import Absent
from simulators.nvml_child import Child, Outcome, running_child
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Machine, Trouble
from simulators.sample_nvml import EIGHT_H100, RTX_4090
from simulators.sample_nvml_integrated import GB10
from support.budget import within
from support.waiting import MAX_WAIT_SECONDS, Stopwatch

TWO = replace(EIGHT_H100, gpus=EIGHT_H100.gpus[:2])
FIRST, SECOND = (gpu.uuid for gpu in TWO.gpus)
UNKNOWN = Absent.NOT_AVAILABLE


def fails(reason: str) -> Callable[[Outcome], bool]:
    return lambda found: isinstance(found, NvmlFailure) and found.reason == reason


def works(found: Outcome) -> bool:
    return isinstance(found, NvmlReading) and all(
        gpu.state == "ok" and gpu.memory is not UNKNOWN for gpu in found.gpus
    )


def openings(simulator: Simulator) -> int:
    return [call.function for call in simulator.calls()].count("nvmlInitWithFlags")


@pytest.mark.parametrize("code", [15, 28])
def test_lost_gpu_is_listed_as_lost_and_the_other_is_still_read(tmp_path: Path, code: int) -> None:
    """At once, the lost GPU has its identity and error code but no values; the other GPU is read as before."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator) as child:
        assert works(child.reading())
        simulator.show(TWO.with_gpu(0, down=code))
        lost, other = child.reading().gpus

    assert (lost.state, lost.uuid, lost.name, lost.pci) == (
        "lost",
        FIRST,
        "NVIDIA H100 80GB HBM3",
        "00000000:1B:00.0",
    )
    assert (lost.memory, lost.processes, lost.bar1_bytes, lost.mig_enabled) == (UNKNOWN,) * 4
    assert lost.ecc.corrected is UNKNOWN
    assert (lost.addressing_mode, lost.codes) == ("none", {"device": code})
    assert (other.state, other.uuid) == ("ok", SECOND)
    assert isinstance(other.memory, GpuMemory)


def test_lost_gpu_keeps_its_identity_after_nvml_is_reopened(tmp_path: Path) -> None:
    """A lost GPU does not report its UUID. It is the one listed before and missing now."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(TWO.with_gpu(0, down=15))
        child.until(lambda _: openings(simulator) >= 3)
        lost, other = child.reading().gpus

    assert (lost.state, lost.uuid, lost.memory) == ("lost", FIRST, UNKNOWN)
    assert (other.state, other.uuid) == ("ok", SECOND)


def test_recovered_gpu_is_read_again(tmp_path: Path) -> None:
    """NVML is reopened until the GPU responds."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(TWO.with_gpu(0, down=15))
        child.reading()
        simulator.show(TWO)
        found = child.until(works)

    assert isinstance(found, NvmlReading)
    assert [gpu.uuid for gpu in found.gpus] == [FIRST, SECOND]


def test_removed_gpu_is_listed_as_missing(tmp_path: Path) -> None:
    """After NVML is reopened, the other GPU has its index, and the removed one is listed by UUID."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator, "--slow-seconds=0.4") as child:
        child.reading()
        simulator.show(replace(TWO, visible=(1,)))
        found = child.until(lambda found: isinstance(found, NvmlReading) and len(found.gpus) == 1)
        simulator.show(TWO)
        back = child.until(lambda found: isinstance(found, NvmlReading) and len(found.gpus) == 2)

    assert isinstance(found, NvmlReading)
    assert isinstance(back, NvmlReading)
    assert (found.gpus[0].uuid, found.gpus[0].state) == (SECOND, "ok")
    assert [gpu.uuid for gpu in found.missing] == [FIRST]
    assert back.missing == ()


def test_losing_all_gpus_is_a_failure(tmp_path: Path) -> None:
    """The failure names the missing GPUs. Readings resume when they are back."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(replace(TWO, visible=()))
        failure = child.until(fails("no_device"))
        simulator.show(TWO)
        child.until(works)

    assert isinstance(failure, NvmlFailure)
    assert failure.text.endswith(f"missing: {FIRST}, {SECOND}")


def test_added_gpu_is_found_by_the_device_count(tmp_path: Path) -> None:
    """The count is a slow fact: within its period NVML is reopened and the new GPU is listed."""
    simulator = Simulator.of(tmp_path, replace(TWO, visible=(1,)))

    with running_child(simulator, "--slow-seconds=0.4") as child:
        assert len(child.reading().gpus) == 1
        simulator.show(TWO)
        child.until(lambda found: isinstance(found, NvmlReading) and len(found.gpus) == 2)


def test_reordered_gpus_are_identified_by_uuid(tmp_path: Path) -> None:
    """Indices are not identities: after a change, UUIDs are read again."""
    simulator = Simulator.of(tmp_path, EIGHT_H100)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(replace(EIGHT_H100, visible=(7, 3)))
        found = child.until(lambda found: isinstance(found, NvmlReading) and len(found.gpus) == 2)

    assert isinstance(found, NvmlReading)
    assert [gpu.uuid for gpu in found.gpus] == [EIGHT_H100.gpus[7].uuid, EIGHT_H100.gpus[3].uuid]
    assert len(found.missing) == 6


def test_gpu_that_needs_a_reset_is_released(tmp_path: Path) -> None:
    """RESET_REQUIRED: NVML is reopened without touching the GPU, so that it can be reset. Then it is read again."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator, "--retry-seconds=1.5") as child:
        child.reading()
        simulator.show(TWO.with_gpu(0, down=16))
        state = child.gpu(0).state
        child.until(lambda _: openings(simulator) == 2)
        simulator.clear_calls()
        released, other = child.reading().gpus
        touched = {call.device for call in simulator.calls()}
        simulator.show(TWO)
        child.until(works)

    assert state == "needs_reset"
    assert (released.state, released.uuid, released.memory) == ("needs_reset", FIRST, UNKNOWN)
    assert other.state == "ok"
    assert "gpu.0" not in touched


def test_nvml_is_not_reopened_before_the_retry_interval(tmp_path: Path) -> None:
    """A lost GPU costs one opening of NVML per interval, however many rounds there are."""
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, down=15))

    with running_child(simulator, "--retry-seconds=30") as child:
        for _ in range(200):
            child.reading()

    assert openings(simulator) == 1
    assert "gpu.0" not in {
        call.device for call in simulator.calls() if call.function.startswith("nvmlDeviceGetMem")
    }


def test_failed_opening_for_a_reset_is_retried_with_backoff(tmp_path: Path) -> None:
    """Releasing a GPU takes one opening of NVML. If that fails, it is retried like any other failure."""
    simulator = Simulator.of(tmp_path, TWO)

    with running_child(simulator, "--retry-seconds=30") as child:
        child.reading()
        simulator.show(replace(TWO.with_gpu(0, down=16), init_error=999))
        child.until(fails("failed"))
        again = {child.failure() for _ in range(50)}

    assert {failure.code for failure in again} == {999}
    assert openings(simulator) == 2


@pytest.mark.parametrize("code", [4, 17])
def test_inaccessible_gpu_is_not_permitted_and_not_lost(tmp_path: Path, code: int) -> None:
    """A container that may use one GPU of two."""
    down = {"nvmlDeviceGetHandleByIndex_v2": Trouble(error=code)}
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, troubles=down))

    with running_child(simulator) as child:
        first, second = child.reading().gpus

    assert (first.state, first.uuid, first.memory) == ("ok", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED)
    assert first.codes == {"device": code}
    assert second.uuid == SECOND


@pytest.mark.parametrize("code", [15, 999, 11, 8])
def test_gpu_that_gives_no_handle_is_lost_and_costs_no_other(code: int, tmp_path: Path) -> None:
    """nvidia-smi: "Unable to determine the device handle for GPU …: Unknown Error" (dcgm-exporter#604)."""
    down = {"nvmlDeviceGetHandleByIndex_v2": Trouble(error=code)}
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, troubles=down))

    with running_child(simulator) as child:
        first, second = child.reading().gpus

    assert (first.state, first.memory) == ("lost", Absent.NOT_AVAILABLE)
    assert (second.state, second.uuid) == ("ok", SECOND)


def test_uninitialized_nvml_is_initialized_again(tmp_path: Path) -> None:
    """UNINITIALIZED within a round is one failure; then NVML is reopened."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        child.reading()
        child.reading()  # a whole round of the driver as it was: the trouble begins within a later one
        troubles = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=1, times=1)}
        simulator.show(RTX_4090.with_gpu(0, troubles=troubles))
        failure = child.failure()
        child.until(works)

    assert (failure.reason, failure.code) == ("failed", 1)


def test_an_unloaded_driver_is_a_failure_until_it_is_loaded(tmp_path: Path) -> None:
    """From readings to no_driver and back in one process."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        child.reading()
        simulator.unload_driver()
        failure = child.until(fails("no_driver"))
        simulator.show(RTX_4090)
        child.until(works)

    assert isinstance(failure, NvmlFailure)
    assert failure.code == 9
    assert "modprobe nvidia" in failure.text


def test_driver_loaded_later_is_found(tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, GB10)
    simulator.unload_driver()

    with running_child(simulator) as child:
        assert child.failure().reason == "no_driver"
        simulator.show(GB10)
        child.until(works)


def test_library_installed_later_is_found(tmp_path: Path) -> None:
    """Until then the failure is no_library and names the file."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    simulator.uninstall()

    with running_child(simulator) as child:
        failure = child.failure()
        simulator.install()
        child.until(works)

    assert (failure.reason, failure.code) == ("no_library", 12)
    assert "libnvidia-ml.so.1" in failure.text


def test_reopen_does_not_wait_for_the_next_attempt(tmp_path: Path) -> None:
    """The caller saw the driver's files change. An open driver is not opened again."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    simulator.uninstall()

    with running_child(simulator, "--retry-seconds=30") as child:
        missing = child.failure()
        simulator.install()
        too_early, found = child.failure(), child.ask("reopen")
        child.ask("reopen")

    assert missing == too_early
    assert works(found)
    assert openings(simulator) == 1


def test_missing_library_is_not_searched_in_every_round(tmp_path: Path) -> None:
    """The same failure is returned until the retry interval has passed."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    simulator.uninstall()

    with running_child(simulator, "--retry-seconds=30") as child:
        first = child.failure()
        simulator.install()
        again = [child.failure() for _ in range(50)]

    assert set(again) == {first}


@pytest.mark.parametrize(
    "machine",
    [
        replace(RTX_4090, init_error=18),
        RTX_4090.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(error=18)}),
    ],
)
def test_upgraded_driver_ends_the_process(tmp_path: Path, machine: Machine) -> None:
    """LIB_RM_VERSION_MISMATCH (18), at opening or later: the helper reports needs_new_process and exits with 75."""
    simulator = Simulator.of(tmp_path, machine)

    with running_child(simulator) as child:
        failure = child.failure()
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert (failure.reason, failure.code, code) == ("needs_new_process", 18, 75)


def test_stuck_event_wait_ends_the_process(tmp_path: Path) -> None:
    """NVML cannot be closed while a thread is in it: after five seconds the helper asks for a new process."""
    simulator = Simulator.of(
        tmp_path, replace(TWO, troubles={"nvmlEventSetWait_v2": Trouble(latency_ms=60_000)}).with_gpu(0, down=15)
    )

    with running_child(simulator) as child:
        found = child.until(fails("needs_new_process"))
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert isinstance(found, NvmlFailure)
    assert "stuck" in found.text
    assert code == 75


def test_crash_in_the_library_ends_the_helper(tmp_path: Path) -> None:
    """A segfault closes the pipe without an answer."""
    simulator = Simulator.of(
        tmp_path, RTX_4090.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(segfault=True)})
    )

    with running_child(simulator) as child:
        child.send("read")
        assert child.process.stdout is not None
        line = child.process.stdout.readline()
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert line == b""
    assert code == -11


@pytest.mark.measure
def test_rounds_after_a_failure_are_answered_at_once(tmp_path: Path) -> None:
    """A failed call never sleeps: each of 100 rounds with a lost GPU takes less than 0.5 s."""
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, down=15))

    with running_child(simulator) as child:
        longest = max(timed(child) for _ in range(100))

    within("round after a failure", longest, 0.5, "s")


def timed(child: Child) -> float:
    watch = Stopwatch(child.process.pid)
    child.ask()
    return watch.seconds
