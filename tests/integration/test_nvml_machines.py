"""The NVML binding reads each simulated NVIDIA machine as defined, and each machine fits its host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.collectors.meminfo import Collector as MemoryCollector
from memwatch.core.collectors.numa import Collector as NumaCollector
from memwatch.core.linux.files import Roots
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import MIB
from simulators.nvml_probe import Raised, probe
from simulators.nvml_state import Gpu, Holder, Machine, Memory, Mig
from simulators.sample_nvml import GH200_NUMA, H200_MIG, READY, WITH_MISSING_PIDS
from simulators.sample_nvml_integrated import GB10_AVAILABLE, GB10_RAM
from support.paths import MACHINES

NOT_SUPPORTED = Raised("NVMLError_NotSupported", 3)
NOT_FOUND = Raised("NVMLError_NotFound", 6)
UNDER_WINDOWS = {"wsl2", "wsl2-empty-lists", "n1x-carveout"}
# The GPU of an Orin is on no PCI bus: NVML returns NOT_SUPPORTED for its address.
ON_CHIP = {"jetson-orin-nano", "jetson-agx-orin-jp6", "jetson-agx-orin-jp7.2"}
HOSTS = sorted({machine.host for machine in READY.values() if machine.host})

Fact = tuple[str, Any]


def roots_of(host: str) -> Roots:
    return Roots(MACHINES / host / "proc", MACHINES / host / "sys", MACHINES / host / "root")


def listed(holders: tuple[Holder, ...]) -> list[list[int | None]]:
    no_instance = 0xFFFFFFFF
    return [
        [one.pid, one.used, no_instance if one.gi is None else one.gi, no_instance if one.ci is None else one.ci]
        for one in holders
    ]


def memory_facts(memory: Memory | None) -> Iterator[Fact]:
    both = memory and memory.facts()
    yield (
        "(lambda m: [m.total, m.reserved, m.used, m.free])(nvmlDeviceGetMemoryInfo({}, version=nvmlMemory_v2))",
        (both and list(both.values())),
    )
    yield (
        "(lambda m: [m.total, m.used, m.free])(nvmlDeviceGetMemoryInfo({}))",
        (both and [both["total"], both["used"] + both["reserved"], both["free"]]),
    )


def gpu_facts(gpu: Gpu) -> Iterator[Fact]:
    """Yield calls of the binding, with a place for the handle, and expected answers; None is NOT_SUPPORTED."""
    yield "nvmlDeviceGetName({})", gpu.name
    yield "nvmlDeviceGetUUID({})", gpu.uuid
    on_bus = "nvmlDeviceGetPciInfo_v3" not in gpu.troubles
    yield "nvmlDeviceGetPciInfo({}).busId", gpu.bus_id if on_bus else None
    yield "nvmlDeviceGetPciInfo({}).pciDeviceId", gpu.device_id if on_bus else None
    yield "nvmlDeviceGetPciInfo({}).pciSubSystemId", (gpu.subsystem_id or 0) if on_bus else None
    yield "nvmlDeviceGetBrand({})", gpu.brand
    yield "nvmlDeviceGetArchitecture({})", gpu.architecture
    yield "nvmlDeviceGetCudaComputeCapability({})", gpu.cuda and list(gpu.cuda)
    yield "nvmlDeviceGetPersistenceMode({})", gpu.persistence
    yield "nvmlDeviceGetVirtualizationMode({})", gpu.virtualization_mode
    yield "nvmlDeviceGetAddressingMode({})", gpu.addressing_mode
    yield "nvmlDeviceGetNumaNodeId({})", gpu.numa_node
    yield "nvmlDeviceGetC2cModeInfoV({}).isC2cEnabled", gpu.c2c
    yield "nvmlDeviceGetMinorNumber({})", gpu.minor_number
    yield "nvmlDeviceGetSupportedEventTypes({})", gpu.event_types
    yield "nvmlDeviceGetBAR1MemoryInfo({}).bar1Total", gpu.bar1 and gpu.bar1.total
    yield "nvmlDeviceGetBAR1MemoryInfo({}).bar1Used", gpu.bar1 and gpu.bar1.used
    yield "nvmlDeviceIsMigDeviceHandle({}).value", 0
    yield from memory_facts(gpu.memory)
    yield from health_facts(gpu)
    yield from list_facts(gpu)


def health_facts(gpu: Gpu) -> Iterator[Fact]:
    yield "nvmlDeviceGetEccMode({})", gpu.ecc and [gpu.ecc.current, gpu.ecc.pending]
    yield "nvmlDeviceGetTotalEccErrors({}, 1, 1)", gpu.ecc and gpu.ecc.aggregate_uncorrected
    yield "nvmlDeviceGetMemoryErrorCounter({}, 0, 0, 2)", gpu.ecc and gpu.ecc.volatile_corrected
    rows = gpu.remapped
    yield "nvmlDeviceGetRemappedRows({})", rows and [rows.corrected, rows.uncorrected, rows.pending, rows.failure]
    yield "nvmlDeviceGetRowRemapperHistogram({}).max", rows and rows.banks[0]
    yield "nvmlDeviceGetFieldValues({}, [230])[0].nvmlReturn", 3 if gpu.recovery_action is None else 0
    yield "nvmlDeviceGetFieldValues({}, [230])[0].value.uiVal", gpu.recovery_action or 0
    yield "nvmlDeviceGetMigMode({})", gpu.mig and [gpu.mig.current, gpu.mig.pending]


def list_facts(gpu: Gpu) -> Iterator[Fact]:
    for kind, holders in (("Compute", gpu.compute), ("Graphics", gpu.graphics), ("MPSCompute", gpu.mps)):
        row = "(p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId)"
        answer = None if holders is None else listed(holders)
        yield f"[{row} for p in nvmlDeviceGet{kind}RunningProcesses({{}})]", answer


def mig_facts(mig: Mig) -> Iterator[tuple[int, Fact]]:
    """Yield calls with the index of the MIG device or of the gap."""
    for index in range(mig.max if mig.current else 0):
        if index not in mig.devices:
            yield index, ("nvmlDeviceGetName({})", NOT_FOUND)
            continue
        device = mig.devices[index]
        instance = mig.instances[device.gi]
        yield index, ("nvmlDeviceGetName({})", device.name)
        yield index, ("nvmlDeviceGetUUID({})", device.uuid)
        yield index, ("nvmlDeviceGetGpuInstanceId({})", device.gi)
        yield index, ("nvmlDeviceGetComputeInstanceId({})", device.ci)
        yield index, ("nvmlDeviceGetAttributes({}).memorySizeMB", device.attributes["memory_mib"])
        yield index, ("nvmlDeviceGetAttributes({}).multiprocessorCount", device.attributes["multiprocessors"])
        yield index, ("nvmlDeviceGetBAR1MemoryInfo({}).bar1Total", instance.bar1 and instance.bar1.total)
        yield index, ("nvmlDeviceIsMigDeviceHandle({}).value", 1)
        yield index, ("nvmlDeviceGetMigMode({})", None)
        yield from ((index, fact) for fact in memory_facts(instance.memory))


def facts(machine: Machine) -> Iterator[Fact]:
    yield "nvmlSystemGetDriverVersion()", machine.driver
    yield "nvmlSystemGetNVMLVersion()", machine.nvml
    yield "nvmlSystemGetCudaDriverVersion_v2()", machine.cuda
    yield "nvmlDeviceGetCount()", len(machine.gpus)
    for slot, gpu in enumerate(machine.gpus):
        yield from ((call.format(f"gpu({slot})"), answer) for call, answer in gpu_facts(gpu))
        for index, (call, answer) in mig_facts(gpu.mig) if gpu.mig else ():
            yield call.format(f"mig({slot}, {index})"), answer


# Inside a partition, memory info is not that of the card.
@pytest.mark.parametrize("name", [name for name in READY if not name.endswith("-partition")])
def test_binding_reads_every_fact_as_defined(name: str, tmp_path: Path) -> None:
    """A fact that the machine does not have is NOT_SUPPORTED."""
    machine = READY[name]
    simulator = Simulator.of(tmp_path, machine)

    with probe(simulator.environ) as asked:
        assert asked.ask("nvmlInit()") is None
        for call, answer in facts(machine):
            assert asked.ask(call) == (NOT_SUPPORTED if answer is None else answer), call


def pids_of(machine: Machine) -> set[int]:
    return {
        holder.pid
        for gpu in machine.gpus
        for holders in (gpu.compute, gpu.graphics, gpu.mps)
        for holder in holders or ()
    }


@pytest.mark.parametrize("name", sorted(READY.keys() - WITH_MISSING_PIDS))
def test_host_has_every_process_that_uses_gpu_memory(name: str) -> None:
    """Every process that uses GPU memory is in that machine's /proc."""
    machine = READY[name]
    assert machine.host is not None
    proc = MACHINES / machine.host / "proc"

    assert {pid for pid in pids_of(machine) if not (proc / str(pid) / "stat").is_file()} == set()


@pytest.mark.parametrize("name", sorted(READY.keys() - UNDER_WINDOWS - ON_CHIP))
def test_host_has_the_gpu_on_its_pci_bus(name: str) -> None:
    """Addresses and IDs in sysfs equal those of NVML. Windows shows no PCI device to its guests."""
    machine = READY[name]
    assert machine.host is not None
    bus = MACHINES / machine.host / "sys/bus/pci/devices"

    for gpu in machine.gpus:
        # NVML writes the domain with eight digits, sysfs with four.
        device = bus / gpu.bus_id[4:].lower()
        assert (device / "vendor").read_text() == "0x10de\n"
        assert (device / "device").read_text() == f"0x{gpu.device_id >> 16:04x}\n"
        assert (device / "class").read_text().startswith("0x03")


@pytest.mark.parametrize("host", [host for host in HOSTS if host not in ON_CHIP])
def test_memory_of_the_host_adds_up(host: str) -> None:
    """Parts and NUMA nodes each add up to System RAM."""
    memory = MemoryCollector(roots_of(host), 4096).collect().pools[0]
    nodes = NumaCollector(roots_of(host)).collect().nodes

    assert sum(part.size_bytes for part in memory.contents) == memory.size_bytes
    assert sum(node.size_bytes for node in nodes if isinstance(node.size_bytes, int)) == memory.size_bytes


def test_gb10_host_has_unattributed_memory_for_its_gpu_processes() -> None:
    """GPU memory of a DGX Spark is System RAM, outside the RSS of its processes."""
    memory = MemoryCollector(roots_of("gb10"), 4096).collect().pools[0]

    assert (memory.size_bytes, memory.available_bytes) == (GB10_RAM, GB10_AVAILABLE)
    assert isinstance(memory.unattributed_bytes, int)
    assert memory.unattributed_bytes > sum((63931, 18, 6)) * MIB


def test_gh200_host_has_hbm_as_a_numa_node_without_cpus() -> None:
    """HBM is node 1 and larger in NVML than in Linux; nodes 2 to 8 are empty and reserved for MIG."""
    nodes = {node.id: node for node in NumaCollector(roots_of("gh200-numa")).collect().nodes}
    hbm = GH200_NUMA.gpus[0].memory

    assert nodes[0].size_bytes == 502070656 << 10
    assert (nodes[1].size_bytes, nodes[1].has_cpus) == (97280 * MIB, False)
    assert [nodes[number].size_bytes for number in range(2, 9)] == [0] * 7
    assert hbm is not None
    assert 0 < hbm.total - 97280 * MIB < 0.01 * hbm.total


def test_memory_of_h200_mig_fits_the_gpu_only_by_instance() -> None:
    """Two MIG devices share one GPU instance: totals by device exceed the GPU, totals by instance do not."""
    parent = H200_MIG.gpus[0]
    assert parent.memory is not None
    assert parent.mig is not None
    by_device = [parent.mig.instances[device.gi].memory.total for device in parent.mig.devices.values()]
    by_instance = [instance.memory.total for instance in parent.mig.instances.values()]

    assert (sum(by_device), sum(by_instance)) == (208896 * MIB, 137472 * MIB)
    assert sum(by_instance) < parent.memory.total < sum(by_device)
