"""MIG: each GPU instance counts once, also without privilege and after a reconfiguration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory, GpuProcess, GpuReading, NvmlReading
from memwatch.core.model import Absent
from simulators.nvml_child import Outcome, running_child, wait_until_listening
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import MIB, MIG_CHANGE, MIG_OFF, mig_device, uuid
from simulators.nvml_state import Event, Holder, Machine, Memory, Mig, Trouble
from simulators.nvml_state import GpuInstance as SimulatedInstance
from simulators.sample_nvml import H100_MIG, H200_MIG

H200 = H200_MIG.gpus[0]
CUT: Mig = H200.mig  # type: ignore[assignment]
# Only privileged users may read the GPU as a whole; its MIG devices need no privilege.
UNPRIVILEGED = H200_MIG.with_gpu(
    0,
    troubles={
        name: Trouble(error=4)
        for name in (
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
        )
    },
)
# One instance of another size, in place of four.
RECUT = replace(
    CUT,
    generation=1,
    instances={5: SimulatedInstance(Memory(35840 * MIB, used=100 * MIB))},
    devices={2: mig_device(5, 0, 0x300, "NVIDIA H200 MIG 2g.35gb", 35840, 32)},
)


def gpu_of(tmp_path: Path, machine: Machine) -> GpuReading:
    with running_child(Simulator.of(tmp_path, machine)) as child:
        return child.gpu()


def used(gpu: GpuReading) -> dict[int, int | Absent]:
    return {
        one.id: one.memory if isinstance(one.memory, Absent) else one.memory.used_bytes // MIB
        for one in gpu.instances
    }


def test_compute_instances_share_the_memory_of_their_gpu_instance(tmp_path: Path) -> None:
    """H200: MIG devices 0 and 1 are GPU instance 2, so its 16925 MiB count once and all totals fit the GPU."""
    gpu = gpu_of(tmp_path, H200_MIG)

    assert gpu.mig_enabled is True
    assert used(gpu) == {2: 16925, 3: 17, 9: 9, 10: 9}
    assert gpu.instances[0].uuids == (uuid(0x200, "MIG"), uuid(0x201, "MIG"))
    totals = sum(one.memory.total_bytes for one in gpu.instances if isinstance(one.memory, GpuMemory))
    assert isinstance(gpu.memory, GpuMemory)
    assert totals == 137472 * MIB <= gpu.memory.total_bytes


def test_processes_are_assigned_to_their_gpu_instance(tmp_path: Path) -> None:
    gpu = gpu_of(tmp_path, H100_MIG)

    assert gpu.processes == (
        GpuProcess(21180, 2296 * MIB, 2),
        GpuProcess(21181, 1272 * MIB, 2),
        GpuProcess(21198, 7484 * MIB, 2),
    )


def test_unprivileged_reading_has_the_instances_but_not_the_gpu(tmp_path: Path) -> None:
    """NO_PERMISSION for the GPU is not_permitted, never 0. Its instances and their processes are read as before."""
    gpu = gpu_of(tmp_path, UNPRIVILEGED)

    assert gpu.memory is Absent.NOT_PERMITTED
    assert gpu.codes["memory_info_v2"] == gpu.codes["compute_processes_v3"] == 4
    assert used(gpu) == {2: 16925, 3: 17, 9: 9, 10: 9}
    assert gpu.processes == (
        GpuProcess(12249, 2194 * MIB, 2),
        GpuProcess(12250, 1170 * MIB, 2),
        GpuProcess(12267, 13526 * MIB, 2),
    )


def test_process_without_instance_id_belongs_to_the_queried_instance(tmp_path: Path) -> None:
    """Lists of one MIG device may omit its id."""
    functions = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
    devices = {
        index: replace(device, troubles=dict.fromkeys(functions, Trouble(error=13)))
        for index, device in CUT.devices.items()
    }
    gpu = gpu_of(tmp_path, UNPRIVILEGED.with_gpu(0, mig=replace(CUT, devices=devices)))

    assert isinstance(gpu.processes, tuple)
    assert {one.instance for one in gpu.processes} == {2}


def test_gap_in_mig_indices_does_not_end_the_list(tmp_path: Path) -> None:
    """Index 1 is NOT_FOUND: devices with a higher index are still read."""
    devices = {index: device for index, device in CUT.devices.items() if index != 1}

    gpu = gpu_of(tmp_path, UNPRIVILEGED.with_gpu(0, mig=replace(CUT, devices=devices)))

    assert used(gpu) == {2: 16925, 3: 17, 9: 9, 10: 9}
    assert gpu.instances[0].uuids == (uuid(0x200, "MIG"),)


def test_failing_mig_device_does_not_affect_the_others(tmp_path: Path) -> None:
    """Its memory is unknown, with the error code."""
    sick = replace(CUT.devices[3], troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(error=999)})

    gpu = gpu_of(tmp_path, H200_MIG.with_gpu(0, mig=replace(CUT, devices={**CUT.devices, 3: sick})))

    assert used(gpu) == {2: 16925, 3: 17, 9: Absent.NOT_AVAILABLE, 10: 9}
    assert gpu.codes["mig.9.memory_info_v2"] == 999


def test_contradictory_use_of_an_instance_is_estimated(tmp_path: Path) -> None:
    """More used than total: the use is what the free memory leaves, and the rejection is counted."""
    instances = {**CUT.instances, 9: SimulatedInstance(Memory(MIB, used=2 * MIB, free=0))}
    with running_child(
        Simulator.of(tmp_path, H200_MIG.with_gpu(0, mig=replace(CUT, instances=instances)))
    ) as child:
        found = child.reading()

    assert used(found.gpus[0]) == {2: 16925, 3: 17, 9: 1, 10: 9}
    assert found.rejected == {"memory": 1}


def test_process_larger_than_all_instances_is_rejected(tmp_path: Path) -> None:
    """If the size of the GPU is not readable, the sum of its instances is the limit."""
    machine = UNPRIVILEGED.with_gpu(0, compute=(Holder(7, 137473 * MIB, gi=2, ci=0),))
    with running_child(Simulator.of(tmp_path, machine)) as child:
        found = child.reading()

    assert (found.gpus[0].processes, found.rejected) == (Absent.INCONSISTENT, {"process_list": 1})


@pytest.mark.parametrize("events", [(), (Event(0, MIG_CHANGE, 0),)])
def test_mig_reconfiguration_is_read_in_the_next_round(tmp_path: Path, events: tuple[Event, ...]) -> None:
    """Old handles become invalid, which shows the change even without an event."""
    simulator = Simulator.of(tmp_path, H200_MIG)

    with running_child(simulator) as child:
        child.reading()
        simulator.show(H200_MIG.with_gpu(0, mig=RECUT, compute=()).with_event(*events))
        gpu = child.gpu()

    assert gpu.state == "ok"
    assert gpu.instances == (
        GpuInstance(5, (uuid(0x300, "MIG"),), GpuMemory(2, 35840 * MIB, 100 * MIB, 35740 * MIB, 0)),
    )


def test_added_instance_is_read_after_its_event(tmp_path: Path) -> None:
    """Old handles stay valid, so only the event shows the change."""
    few = replace(CUT, devices={0: CUT.devices[0]})
    simulator = Simulator.of(tmp_path, H200_MIG.with_gpu(0, mig=few))

    with running_child(simulator) as child:
        wait_until_listening(simulator, child)
        assert list(used(child.gpu())) == [2]
        simulator.show(H200_MIG.with_event(Event(0, MIG_CHANGE, 0)))
        child.until(instances_are(2, 3, 9, 10))


def test_mig_switched_off_and_on_is_read(tmp_path: Path) -> None:
    """The mode is a slow fact: instances follow it within its period."""
    simulator = Simulator.of(tmp_path, H200_MIG)

    with running_child(simulator, "--slow-seconds=0.4") as child:
        child.until(instances_are(2, 3, 9, 10))
        simulator.show(H200_MIG.with_gpu(0, mig=MIG_OFF))
        child.until(lambda found: isinstance(found, NvmlReading) and found.gpus[0].mig_enabled is False)
        assert child.gpu().instances == ()
        simulator.show(H200_MIG.with_gpu(0, mig=replace(CUT, generation=2)))
        child.until(instances_are(2, 3, 9, 10))


def instances_are(*ids: int) -> Callable[[Outcome], bool]:
    def are(found: Outcome) -> bool:
        return isinstance(found, NvmlReading) and tuple(one.id for one in found.gpus[0].instances) == ids

    return are
