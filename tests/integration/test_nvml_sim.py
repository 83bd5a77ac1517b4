"""The simulated libnvidia-ml.so.1 fails, hangs and changes like the real one, old drivers included."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from simulators.nvml_machine import NOT_IN_OLD_DRIVERS, Call, Simulator
from simulators.nvml_parts import GIB, MIB, mib, uuid
from simulators.nvml_probe import Raised, probe, ready
from simulators.nvml_state import Holder, Machine, Memory, Trouble
from simulators.nvml_state_file import FUNCTIONS, state_file
from simulators.sample_nvml import EIGHT_H100, H200_MIG, RTX_4090
from simulators.sample_nvml_integrated import GB10
from support.daemon_process import clean_environment
from support.waiting import MAX_WAIT_SECONDS, wait_readable

MEMORY = "nvmlDeviceGetMemoryInfo(gpu({}), version=nvmlMemory_v2).used"
COMPUTE = "[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(gpu(0))]"
LOST = Raised("NVMLError_GpuIsLost", 15)
TWO = replace(EIGHT_H100, gpus=EIGHT_H100.gpus[:2])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, "NVMLError_Uninitialized"),
        (3, "NVMLError_NotSupported"),
        (4, "NVMLError_NoPermission"),
        (6, "NVMLError_NotFound"),
        (7, "NVMLError_InsufficientSize"),
        (15, "NVMLError_GpuIsLost"),
        (16, "NVMLError_ResetRequired"),
        (17, "NVMLError_OperatingSystem"),
        (25, "NVMLError_ArgumentVersionMismatch"),
        (28, "NVMLError_GpuNotFound"),
        (999, "NVMLError_Unknown"),
        (4242, "NVMLError"),
    ],
)
def test_call_fails_with_the_injected_code(code: int, kind: str, tmp_path: Path) -> None:
    """A failure affects one function on one device: other devices and functions work."""
    trouble = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=code)}
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, troubles=trouble))

    with ready(simulator) as asked:
        assert asked.ask(MEMORY.format(0)) == Raised(kind, code)
        assert asked.ask("nvmlDeviceGetMemoryInfo(gpu(0)).total") == 81559 * MIB
        assert asked.ask(MEMORY.format(1)) == 70211 * MIB


def test_machine_failure_affects_every_device(tmp_path: Path) -> None:
    """A failure of the whole machine affects all GPUs, but a GPU's own failure takes precedence."""
    everywhere = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=999)}
    here = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=4)}
    simulator = Simulator.of(tmp_path, replace(TWO, troubles=everywhere).with_gpu(1, troubles=here))

    with ready(simulator) as asked:
        assert asked.ask(MEMORY.format(0)) == Raised("NVMLError_Unknown", 999)
        assert asked.ask(MEMORY.format(1)) == Raised("NVMLError_NoPermission", 4)


def test_failure_with_times_ends_after_that_number_of_calls(tmp_path: Path) -> None:
    trouble = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=999, times=2)}
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, troubles=trouble))

    with ready(simulator) as asked:
        answers = [asked.ask(MEMORY.format(0)) for _ in range(3)]

    assert answers == [Raised("NVMLError_Unknown", 999)] * 2 + [13320 * MIB]


@pytest.mark.parametrize(
    ("code", "kind"), [(9, "NVMLError_DriverNotLoaded"), (18, "NVMLError_LibRmVersionMismatch")]
)
def test_calls_need_a_successful_initialization(code: int, kind: str, tmp_path: Path) -> None:
    """After a failed init calls are UNINITIALIZED; without its cause, init succeeds."""
    simulator = Simulator.of(tmp_path, replace(GB10, init_error=code))

    with probe(simulator.environ) as asked:
        assert asked.ask("nvmlInit()") == Raised(kind, code)
        assert asked.ask("nvmlDeviceGetCount()") == Raised("NVMLError_Uninitialized", 1)
        simulator.show(GB10)
        assert asked.ask("nvmlInit()") is None
        assert asked.ask("nvmlDeviceGetCount()") == 1


def test_driver_can_be_loaded_and_unloaded(tmp_path: Path) -> None:
    """Without the driver init fails. After it is unloaded, calls fail and shutdown still works."""
    simulator = Simulator.of(tmp_path, GB10)
    simulator.unload_driver()

    with probe(simulator.environ) as asked:
        assert asked.ask("nvmlInit()") == Raised("NVMLError_DriverNotLoaded", 9)
        simulator.show(GB10)
        assert asked.ask("nvmlInit()") is None
        assert asked.ask("nvmlDeviceGetName(gpu(0))") == "NVIDIA GB10"
        simulator.unload_driver()
        assert asked.ask("nvmlDeviceGetCount()") == Raised("NVMLError_Unknown", 999)
        assert asked.ask("nvmlShutdown()") is None
        assert asked.ask("nvmlShutdown()") == Raised("NVMLError_Uninitialized", 1)


def test_initialization_is_counted_and_not_inherited(tmp_path: Path) -> None:
    """Two inits need two shutdowns, and a forked child needs its own init."""
    simulator = Simulator.of(tmp_path, GB10)
    in_child = """
import os, pynvml as n
n.nvmlInit()
if os.fork() == 0:
    try:
        n.nvmlDeviceGetCount()
    except n.NVMLError_Uninitialized:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""

    with ready(simulator) as asked:
        asked.ask("nvmlInit()")
        asked.ask("nvmlShutdown()")
        assert asked.ask("nvmlDeviceGetCount()") == 1
        asked.ask("nvmlShutdown()")
        assert asked.ask("nvmlDeviceGetCount()") == Raised("NVMLError_Uninitialized", 1)
    subprocess.run([sys.executable, "-c", in_child], env=clean_environment(**simulator.environ), check=True)


def test_changes_are_seen_at_the_next_call(tmp_path: Path) -> None:
    """Memory, processes and errors change between two calls of the same process, however fast they follow."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with ready(simulator) as asked:
        for used in range(100, 200):
            simulator.show(RTX_4090.with_gpu(0, memory=mib(24564, used), compute=(Holder(7, used),)))
            assert asked.ask(MEMORY.format(0)) == used * MIB
            assert asked.ask(COMPUTE) == [[7, used]]
        simulator.show(RTX_4090.with_gpu(0, memory=None))
        assert asked.ask(MEMORY.format(0)) == Raised("NVMLError_NotSupported", 3)


def test_lost_gpu_fails_every_call(tmp_path: Path) -> None:
    """Calls for its MIG devices fail too; other GPUs work."""
    machine = replace(H200_MIG, gpus=(*H200_MIG.gpus, *RTX_4090.gpus))
    simulator = Simulator.of(tmp_path, machine)

    with ready(simulator) as asked:
        asked.ask("globals().update(old=gpu(0), old_mig=mig(0, 1))")
        simulator.show(machine.with_gpu(0, down=15))
        for call in (
            "gpu(0)",
            "nvmlDeviceGetUUID(old)",
            "nvmlDeviceGetMemoryInfo(old)",
            "nvmlDeviceGetUUID(old_mig)",
        ):
            assert asked.ask(call) == LOST, call
        assert asked.ask("nvmlDeviceGetCount()") == 2
        assert asked.ask(MEMORY.format(1)) == 13320 * MIB


def test_removed_gpu_shifts_indices_but_not_handles(tmp_path: Path) -> None:
    """Handles stay with their GPU; the handle of the removed GPU is NOT_FOUND."""
    simulator = Simulator.of(tmp_path, TWO)

    with ready(simulator) as asked:
        asked.ask("globals().update(first=gpu(0), second=gpu(1))")
        simulator.show(replace(TWO, visible=(1,)))
        assert asked.ask("nvmlDeviceGetCount()") == 1
        assert asked.ask("nvmlDeviceGetUUID(gpu(0))") == TWO.gpus[1].uuid
        assert asked.ask("nvmlDeviceGetIndex(second)") == 0
        assert asked.ask("nvmlDeviceGetUUID(first)") == Raised("NVMLError_NotFound", 6)
        assert asked.ask("gpu(1)") == Raised("NVMLError_InvalidArgument", 2)
        simulator.show(replace(TWO, visible=()))
        assert asked.ask("nvmlDeviceGetCount()") == 0


def test_device_is_found_by_uuid_and_pci_address(tmp_path: Path) -> None:
    """An unknown UUID or PCI address is NOT_FOUND; an invalid handle is INVALID_ARGUMENT."""
    simulator = Simulator.of(tmp_path, H200_MIG)
    of = "nvmlDeviceGetUUID(nvmlDeviceGetHandleBy{}({!r}))"

    with ready(simulator) as asked:
        for wanted in (uuid(0x2000), uuid(0x203, "MIG")):
            assert asked.ask(of.format("UUID", wanted)) == wanted
        assert asked.ask(of.format("PciBusId", "0000:83:00.0")) == uuid(0x2000)
        assert asked.ask(of.format("UUID", uuid(1))) == Raised("NVMLError_NotFound", 6)
        assert asked.ask(of.format("PciBusId", "0000:84:00.0")) == Raised("NVMLError_NotFound", 6)
        assert asked.ask("nvmlDeviceGetUUID(None)") == Raised("NVMLError_InvalidArgument", 2)
        assert asked.ask("nvmlDeviceGetUUID(cast(4096, c_nvmlDevice_t))") == Raised("NVMLError_InvalidArgument", 2)


def test_hanging_call_ignores_sigterm_and_dies_by_sigkill(tmp_path: Path) -> None:
    """Calls of other threads continue."""
    trouble = {"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=600_000)}
    simulator = Simulator.of(tmp_path, TWO.with_gpu(0, troubles=trouble))

    with ready(simulator) as asked:
        asked.ask("[__import__('signal').signal(15, lambda *_: None), None][1]")
        other = f"__import__('threading').Thread(target=lambda: {MEMORY.format(0)}, daemon=True).start()"
        assert asked.ask(other) is None
        simulator.wait_for_call("nvmlDeviceGetMemoryInfo_v2", "gpu.0")
        assert asked.ask(MEMORY.format(1)) == 70211 * MIB
        asked.begin(MEMORY.format(0))
        asked.process.send_signal(signal.SIGTERM)
        assert asked.process.stdout is not None
        assert not wait_readable(asked.process.stdout, 0.3)
        asked.process.kill()
        assert asked.process.wait(MAX_WAIT_SECONDS) == -signal.SIGKILL


def test_slow_call_returns_the_state_at_its_end(tmp_path: Path) -> None:
    """It takes as long as its latency_ms, and returns the state after that time."""
    slow = {"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=400)}
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, troubles=slow))

    with ready(simulator) as asked:
        started = time.monotonic()
        asked.begin(MEMORY.format(0))
        simulator.wait_for_call("nvmlDeviceGetMemoryInfo_v2", "gpu.0")
        simulator.show(RTX_4090.with_gpu(0, memory=mib(24564, 1)))

        assert asked.answer() == MIB
        assert time.monotonic() - started >= 0.4


def test_segfault_ends_the_process_by_sigsegv(tmp_path: Path) -> None:
    trouble = {"nvmlDeviceGetBAR1MemoryInfo": Trouble(segfault=True)}
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, troubles=trouble))

    with ready(simulator) as asked:
        asked.begin("nvmlDeviceGetBAR1MemoryInfo(gpu(0))")
        assert asked.process.wait(MAX_WAIT_SECONDS) == -signal.SIGSEGV


def test_old_driver_lacks_newer_functions(tmp_path: Path) -> None:
    """The binding raises FunctionNotFound or LibraryMismatch for missing symbols; other calls work."""
    simulator = Simulator.of(tmp_path, RTX_4090, hidden=NOT_IN_OLD_DRIVERS)
    missing = Raised("NVMLError_FunctionNotFound", 13)

    with ready(simulator) as asked:
        assert asked.ask(MEMORY.format(0)) == missing
        assert asked.ask("nvmlDeviceGetAddressingMode(gpu(0))") == missing
        assert asked.ask("nvmlDeviceGetNumaNodeId(gpu(0))") == missing
        assert asked.ask("nvmlDeviceGetComputeRunningProcesses_v3(gpu(0))") == missing
        assert asked.ask(COMPUTE) == Raised("NVMLLibraryMismatchError", None)
        assert asked.ask("nvmlDeviceGetMemoryInfo(gpu(0)).used") == (13320 + 424) * MIB


def test_library_can_be_installed_and_replaced(tmp_path: Path) -> None:
    """Without a library init fails. After a replacement, a running process keeps the old library."""
    simulator = Simulator.of(tmp_path, GB10)
    simulator.uninstall()
    addressing = "nvmlDeviceGetAddressingMode(gpu(0))"

    with probe(simulator.environ) as asked:
        assert asked.ask("nvmlInit()") == Raised("NVMLError_LibraryNotFound", 12)
        simulator.install()
        assert asked.ask("nvmlInit()") is None
        simulator.install(hidden=NOT_IN_OLD_DRIVERS)
        assert asked.ask(addressing) == 2
        with ready(simulator) as fresh:
            assert fresh.ask(addressing) == Raised("NVMLError_FunctionNotFound", 13)


def test_every_call_is_logged(tmp_path: Path) -> None:
    """One line per call with function, device and process. The binding makes two calls to list processes."""
    simulator = Simulator.of(tmp_path, H200_MIG)

    with ready(simulator) as asked:
        asked.ask("nvmlDeviceGetMemoryInfo(mig(0, 1))")
        asked.ask(COMPUTE)
        pid = asked.process.pid

    by_index, listed = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetComputeRunningProcesses_v3"
    assert simulator.calls() == [
        Call(by_index, "-", pid),
        Call("nvmlDeviceGetMigDeviceHandleByIndex", "gpu.0", pid),
        Call("nvmlDeviceGetMemoryInfo", "gpu.0.mig.1", pid),
        Call(by_index, "-", pid),
        Call(listed, "gpu.0", pid),
        Call(listed, "gpu.0", pid),
    ]


MANY_THREADS = """
import pynvml as n, sys, threading
n.nvmlInit()
gpu, wrong, stop, rounds = n.nvmlDeviceGetHandleByIndex(0), [], threading.Event(), [0] * 8
def look(number):
    while not stop.is_set():
        memory = n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
        processes = n.nvmlDeviceGetComputeRunningProcesses(gpu)
        if memory.used + memory.free != memory.total or len({p.usedGpuMemory for p in processes}) != 1:
            wrong.append((memory.used, memory.free, processes))
        rounds[number] += 1
threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
print("started", flush=True)
sys.stdin.readline()
stop.set()
[thread.join() for thread in threads]
print(len(wrong), min(rounds), flush=True)
"""


def test_threads_never_see_a_mixed_state(tmp_path: Path) -> None:
    """Eight threads read while the state is replaced 300 times."""

    def at(used: int) -> Machine:
        holders = tuple(Holder(number, used) for number in range(1, 11))
        return RTX_4090.with_gpu(0, memory=Memory(GIB, used), compute=holders)

    simulator = Simulator.of(tmp_path, at(1))
    command = [sys.executable, "-c", MANY_THREADS]
    environ = clean_environment(**simulator.environ)
    pipe = subprocess.PIPE

    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        for used in range(1, 300):
            simulator.show(at(used))
        wrong, rounds = process.communicate("\n", timeout=MAX_WAIT_SECONDS)[0].split()

    assert wrong == "0"
    assert int(rounds) > 0


@pytest.mark.parametrize("line", ["gpu.0.memory.total = many", "gpu.0.memory.total", "gpu 0 = 1", "devices = 0 99"])
def test_invalid_state_file_aborts_the_process(line: str, tmp_path: Path) -> None:
    """A mistake in a test must not look like a failing GPU: the process names the line and aborts."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    with (simulator.folder / "state").open("a") as state:
        state.write(line + "\n")
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(**simulator.environ),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == -signal.SIGABRT
    assert done.stderr.startswith("nvml_sim: ")
    assert re.split(" = |$", line)[0].split()[0] in done.stderr


def test_failure_of_an_unknown_function_is_refused() -> None:
    """A misspelled function is rejected when the state is written, with a valid name as an example."""
    misspelled = RTX_4090.with_gpu(0, troubles={"nvmlDeviceGetNUMANodeId": Trouble(error=3)})

    with pytest.raises(ValueError, match=r"nvmlDeviceGetNUMANodeId is not simulated; nvmlDevice\w+ is"):
        state_file(misspelled)
    assert {"nvmlInitWithFlags", "nvmlDeviceGetNumaNodeId"} <= FUNCTIONS
    assert NOT_IN_OLD_DRIVERS < FUNCTIONS
