"""Readings of NVML: values as the driver reported them, and a reason for each missing value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memwatch.core.drivers.nvml import records as reading
from memwatch.core.drivers.nvml.records import GpuMemory, GpuProcess, GpuReading, NvmlReading
from memwatch.core.model import Absent
from simulators.nvml_child import running_child
from simulators.nvml_machine import NOT_IN_OLD_DRIVERS, Simulator
from simulators.nvml_parts import GIB, MIB
from simulators.nvml_state import Bar1, Ecc, Holder, Machine, Memory, Remapped, Trouble
from simulators.sample_nvml import (
    CONTAINER_HIDDEN_PIDS,
    EIGHT_H100,
    GH200_CDMM,
    GH200_NUMA,
    RTX_4090,
    VGPU_GUEST_A40,
    WSL2,
    WSL2_EMPTY_LISTS,
)
from simulators.sample_nvml_integrated import GB10, GB10_RAM, GB10_SHIM, GB10_TOTAL_ZERO, N1X_CARVEOUT, THOR

UNKNOWN = Absent.NOT_AVAILABLE
UNSUPPORTED = Absent.NOT_SUPPORTED
LARGE = 24 << 30


def read(tmp_path: Path, machine: Machine, *options: str, hidden: frozenset[str] = frozenset()) -> NvmlReading:
    with running_child(Simulator.of(tmp_path, machine, hidden), *options) as child:
        return child.reading()


def gpu_of(tmp_path: Path, machine: Machine, *options: str, **more: Any) -> GpuReading:
    return read(tmp_path, machine, *options, **more).gpus[0]


def with_trouble(machine: Machine, code: int, *functions: str) -> Machine:
    return machine.with_gpu(0, troubles=dict.fromkeys(functions, Trouble(error=code)))


def test_discrete_gpu_has_every_figure(tmp_path: Path) -> None:
    """Identity, versions, version 2 of memory and processes; each PID once, however many lists it is in."""
    found = read(tmp_path, RTX_4090)

    gpu = found.gpus[0]
    assert (found.driver, found.cuda) == ("580.126.09", "13.0")
    assert (gpu.uuid, gpu.pci, gpu.name) == (RTX_4090.gpus[0].uuid, "00000000:01:00.0", "NVIDIA GeForce RTX 4090")
    assert gpu.memory == GpuMemory(2, 24564 * MIB, 13320 * MIB, (24564 - 13320 - 424) * MIB, 424 * MIB)
    assert gpu.bar1_bytes == 32768 * MIB
    assert gpu.processes == (
        GpuProcess(31337, 12610 * MIB),
        GpuProcess(2165, 25 * MIB),
        GpuProcess(2101, 412 * MIB),
        GpuProcess(2496, 201 * MIB),
    )
    assert (gpu.addressing_mode, gpu.virtualization_mode, gpu.numa_node) == ("hmm", "none", UNSUPPORTED)
    assert (gpu.mig_enabled, gpu.instances, gpu.recovery_action) == (UNSUPPORTED, (), "none")
    assert (found.rejected, found.missing, found.xids) == ({}, (), ())


@pytest.mark.parametrize("machine", [GB10, THOR])
def test_unified_gpu_has_processes_but_no_device_memory(tmp_path: Path, machine: Machine) -> None:
    """GB10 and Thor: memory and BAR1 are NOT_SUPPORTED, with their codes; process memory is there."""
    gpu = gpu_of(tmp_path, machine, f"--system-memory={GB10_RAM}")

    assert (gpu.state, gpu.memory, gpu.bar1_bytes) == ("ok", UNSUPPORTED, UNSUPPORTED)
    assert gpu.codes["memory_info_v2"] == gpu.codes["bar1"] == 3
    assert isinstance(gpu.processes, tuple)
    assert gpu.processes[0].used_bytes == machine.gpus[0].compute[0].used  # type: ignore[index]


def test_figures_of_a_shim_are_passed_on(tmp_path: Path) -> None:
    """GB10 with a shim that returns the host's memory. Another layer decides whether to trust it."""
    gpu = gpu_of(tmp_path, GB10_SHIM)

    assert isinstance(gpu.memory, GpuMemory)
    assert (gpu.memory.total_bytes, gpu.bar1_bytes) == (GB10_RAM, UNSUPPORTED)


def test_successful_total_of_zero_is_passed_on(tmp_path: Path) -> None:
    """Processes are then checked against the memory of the machine."""
    gpu = gpu_of(tmp_path, GB10_TOTAL_ZERO, f"--system-memory={GB10_RAM}")

    assert gpu.memory == GpuMemory(2, 0, 0, 0, 0)
    assert len(gpu.processes) == 3  # type: ignore[arg-type]


def test_carveout_has_its_size_but_no_process_memory(tmp_path: Path) -> None:
    """N1X: 8128 MiB with success, no BAR1, and a process without a figure."""
    gpu = gpu_of(tmp_path, N1X_CARVEOUT)

    assert isinstance(gpu.memory, GpuMemory)
    assert (gpu.memory.total_bytes, gpu.bar1_bytes) == (8128 * MIB, UNSUPPORTED)
    assert gpu.processes == (GpuProcess(742, UNKNOWN),)


@pytest.mark.parametrize(("machine", "node"), [(GH200_NUMA, 1), (GH200_CDMM, UNSUPPORTED)])
def test_coherent_gpu_has_a_numa_node_only_in_numa_mode(
    tmp_path: Path, machine: Machine, node: int | Absent
) -> None:
    """GH200 in NUMA mode and in CDMM mode differ only in the node."""
    gpu = gpu_of(tmp_path, machine)

    assert (gpu.numa_node, gpu.addressing_mode) == (node, "ats")
    assert gpu.memory == GpuMemory(2, 97871 * MIB, 38912 * MIB, (97871 - 38912 - 1103) * MIB, 1103 * MIB)
    assert gpu.ecc == reading.Ecc(0, 0, 0, 1, False, False)


def test_negative_numa_node_is_not_supported(tmp_path: Path) -> None:
    """Some drivers return -1 for a GPU that is no NUMA node."""
    gpu = gpu_of(tmp_path, GH200_CDMM.with_gpu(0, numa_node=0xFFFFFFFF))

    assert gpu.numa_node is UNSUPPORTED


def test_wsl_processes_have_no_memory_figure(tmp_path: Path) -> None:
    """Windows reports PIDs without sizes: processes stay, and their memory is absent, not zero."""
    gpu = gpu_of(tmp_path, WSL2)

    assert gpu.processes == (GpuProcess(1431, UNKNOWN), GpuProcess(23, UNKNOWN))


def test_empty_process_list_is_not_absent(tmp_path: Path) -> None:
    """The driver reported that there is no process."""
    (tmp_path / "wsl").mkdir()
    (tmp_path / "container").mkdir()

    assert gpu_of(tmp_path / "wsl", WSL2_EMPTY_LISTS).processes == ()
    assert gpu_of(tmp_path / "container", CONTAINER_HIDDEN_PIDS).processes == ()


def test_vgpu_guest_is_marked_as_such(tmp_path: Path) -> None:
    """Its memory is the size of its profile; only the virtualization mode shows it."""
    assert gpu_of(tmp_path, VGPU_GUEST_A40).virtualization_mode == "vgpu_guest"


def test_old_driver_is_read_by_older_calls(tmp_path: Path) -> None:
    """Driver 450: version 1 of memory, whose `used` includes reserved; lists without MIG; no newer facts."""
    gpu = gpu_of(tmp_path, RTX_4090, hidden=NOT_IN_OLD_DRIVERS)

    assert gpu.memory == GpuMemory(1, 24564 * MIB, (13320 + 424) * MIB, (24564 - 13320 - 424) * MIB, UNSUPPORTED)
    assert isinstance(gpu.processes, tuple)
    assert {one.pid for one in gpu.processes} == {31337, 2165, 2101, 2496}
    assert gpu.codes["memory_info_v2"] == gpu.codes["compute_processes_v3"] == gpu.codes["addressing_mode"] == 13


def test_rejected_structure_version_falls_back_to_an_older_one(tmp_path: Path) -> None:
    """ARGUMENT_VERSION_MISMATCH is handled like a missing function."""
    gpu = gpu_of(
        tmp_path,
        with_trouble(
            RTX_4090,
            25,
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetUUID",
        ),
    )

    assert isinstance(gpu.memory, GpuMemory)
    assert gpu.memory.version == 1
    assert isinstance(gpu.processes, tuple)
    assert gpu.uuid is UNSUPPORTED


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, UNSUPPORTED),
        (4, Absent.NOT_PERMITTED),
        (17, Absent.NOT_PERMITTED),
        (10, UNKNOWN),
        (20, UNKNOWN),
        (999, UNKNOWN),
    ],
)
def test_failed_call_affects_only_its_figure(tmp_path: Path, code: int, reason: Absent) -> None:
    """The error is that figure's reason, with its code; all others are read."""
    gpu = gpu_of(tmp_path, with_trouble(RTX_4090, code, "nvmlDeviceGetMemoryInfo_v2"))

    assert (gpu.memory, gpu.codes["memory_info_v2"], gpu.state) == (reason, code, "ok")
    assert len(gpu.processes) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [4, 999])
def test_failed_process_list_makes_the_processes_unknown(tmp_path: Path, code: int) -> None:
    """An incomplete list would look like a complete one."""
    gpu = gpu_of(tmp_path, with_trouble(RTX_4090, code, "nvmlDeviceGetGraphicsRunningProcesses_v3"))

    assert gpu.processes is (Absent.NOT_PERMITTED if code == 4 else UNKNOWN)
    assert gpu.codes["graphics_processes_v3"] == code


def test_unsupported_process_list_is_ignored(tmp_path: Path) -> None:
    """A compute GPU has no graphics list: its compute list is complete."""
    gpu = gpu_of(tmp_path, RTX_4090.with_gpu(0, graphics=None, mps=None))

    assert gpu.processes == (GpuProcess(31337, 12610 * MIB), GpuProcess(2165, 25 * MIB))


@pytest.mark.parametrize(
    "bad",
    [Holder(0, MIB), Holder(4294967295, MIB), Holder(4194305, MIB), Holder(77, 24565 * MIB)],
)
def test_process_list_with_an_impossible_record_is_rejected_and_counted(tmp_path: Path, bad: Holder) -> None:
    """The round has no processes, and the rejection counts once. The next round is not affected."""
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, compute=(Holder(31337, GIB), bad)))

    with running_child(simulator) as child:
        rejected = child.reading()
        simulator.show(RTX_4090)
        accepted = child.reading()

    assert (rejected.gpus[0].processes, rejected.rejected) == (Absent.INCONSISTENT, {"process_list": 1})
    assert (len(accepted.gpus[0].processes), accepted.rejected) == (4, {})  # type: ignore[arg-type]


def test_shifted_records_of_driver_535_are_rejected(tmp_path: Path) -> None:
    """Drivers 535.54 to 535.98 write wider records: no crash, whatever their number, and no invented figures."""
    many = tuple(Holder(1000 + number, 10 * MIB) for number in range(120))
    machine = RTX_4090.with_gpu(0, process_layout="r535", compute=many)

    found = read(tmp_path, machine)

    assert (found.gpus[0].processes, found.rejected) == (Absent.INCONSISTENT, {"process_list": 1})


def test_unified_gpu_process_larger_than_memtotal_is_rejected(tmp_path: Path) -> None:
    machine = GB10.with_gpu(0, compute=(Holder(3921, GB10_RAM + 1),))

    found = read(tmp_path, machine, f"--system-memory={GB10_RAM}")

    assert (found.gpus[0].processes, found.rejected) == (Absent.INCONSISTENT, {"process_list": 1})


@pytest.mark.parametrize("memory", [Memory(LARGE, 2 * LARGE, free=GIB), Memory(LARGE, LARGE - GIB, free=2 * LARGE)])
def test_contradictory_memory_is_estimated_and_counted(tmp_path: Path, memory: Memory) -> None:
    """Used or free above the total: it is what the other leaves. Processes keep their own figures."""
    found = read(tmp_path, RTX_4090.with_gpu(0, memory=memory))

    estimated = GpuMemory(2, LARGE, LARGE - GIB, GIB, 0, is_estimated=True)
    assert (found.gpus[0].memory, found.rejected) == (estimated, {"memory": 1})
    assert len(found.gpus[0].processes) == 4  # type: ignore[arg-type]


def test_process_list_larger_than_its_buffer_is_read_again(tmp_path: Path) -> None:
    """300 processes: one additional call in the first round, and none afterwards."""
    many = tuple(Holder(1000 + number, MIB) for number in range(300))
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, compute=many, graphics=()))

    with running_child(simulator) as child:
        first, calls = child.reading(), len(simulator.calls())
        second = child.reading()
        calls_made = [call.function for call in simulator.calls()[calls:]]

    assert [len(found.gpus[0].processes) for found in (first, second)] == [300, 300]  # type: ignore[arg-type]
    assert calls_made.count("nvmlDeviceGetComputeRunningProcesses_v3") == 1


def test_process_list_that_never_fits_is_given_up(tmp_path: Path) -> None:
    """INSUFFICIENT_SIZE twice: no processes in this round, with the code."""
    gpu = gpu_of(tmp_path, with_trouble(RTX_4090, 7, "nvmlDeviceGetComputeRunningProcesses_v3"))

    assert (gpu.processes, gpu.codes["compute_processes_v3"]) == (UNKNOWN, 7)


def test_invalid_utf8_in_a_name_is_replaced(tmp_path: Path) -> None:
    """The GPU is read as usual."""
    gpu = gpu_of(tmp_path, RTX_4090.with_gpu(0, name=b"NVIDIA \xff 4090"))

    assert (gpu.name, gpu.state) == ("NVIDIA \N{REPLACEMENT CHARACTER} 4090", "ok")


def test_slow_facts_are_read(tmp_path: Path) -> None:
    """ECC errors, remapped rows and the recovery action, each under its own name."""
    machine = EIGHT_H100.with_gpu(
        0,
        ecc=Ecc(volatile_corrected=3, volatile_uncorrected=1, aggregate_corrected=99),
        remapped=Remapped(corrected=2, uncorrected=1, pending=True, failure=False),
        recovery_action=4,
    )

    first, second = read(tmp_path, machine).gpus[:2]

    assert first.ecc == reading.Ecc(3, 1, 2, 1, True, False)
    assert (first.recovery_action, second.recovery_action) == ("drain_and_reset", "none")


def test_slow_facts_are_read_again_within_their_period(tmp_path: Path) -> None:
    """One call per round reads one slow fact."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator, "--slow-seconds=0.4") as child:
        child.reading()
        simulator.show(RTX_4090.with_gpu(0, recovery_action=1, bar1=Bar1(256 * MIB, 0)))
        outcome = child.until(
            lambda found: (
                isinstance(found, NvmlReading)
                and (found.gpus[0].recovery_action, found.gpus[0].bar1_bytes) == ("gpu_reset", 256 * MIB)
            )
        )

    assert isinstance(outcome, NvmlReading)


def test_unknown_enum_values_are_not_guessed(tmp_path: Path) -> None:
    """A mode without a name here is unknown; an action is reported as its number."""
    gpu = gpu_of(tmp_path, RTX_4090.with_gpu(0, addressing_mode=9, virtualization_mode=9, recovery_action=42))

    assert (gpu.addressing_mode, gpu.virtualization_mode) == (UNKNOWN, UNKNOWN)
    assert gpu.recovery_action == "action_42"


def test_mps_list_is_read_every_round_while_it_has_clients(tmp_path: Path) -> None:
    """An MPS client is a process, also if only the MPS list has it."""
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, mps=(Holder(31337, 12610 * MIB), Holder(555, MIB))))

    with running_child(simulator) as child:
        first = child.gpu().processes
        simulator.show(RTX_4090.with_gpu(0, mps=(Holder(555, 2 * MIB),)))
        second = child.gpu().processes
        simulator.show(RTX_4090)
        child.gpu()
        simulator.clear_calls()
        child.gpu()
        calls_made = [call.function for call in simulator.calls()]

    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert {GpuProcess(31337, 12610 * MIB), GpuProcess(555, MIB)} <= set(first)
    assert GpuProcess(555, 2 * MIB) in second
    assert "nvmlDeviceGetMPSComputeRunningProcesses_v3" not in calls_made


def test_failing_gpu_does_not_affect_the_others(tmp_path: Path) -> None:
    """Calls of one of eight GPUs fail; seven are complete."""
    functions = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMigMode",
    )
    found = read(tmp_path, with_trouble(EIGHT_H100, 999, *functions))

    assert found.gpus[0].memory is UNKNOWN
    assert [type(gpu.memory) for gpu in found.gpus[1:]] == [GpuMemory] * 7
    assert [gpu.uuid for gpu in found.gpus[1:]] == [gpu.uuid for gpu in EIGHT_H100.gpus[1:]]
