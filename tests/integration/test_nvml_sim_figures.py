"""Memory, processes, MIG and memory errors of the simulated libnvidia-ml.so.1, unusual answers included."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulators.nvml_machine import Simulator
from simulators.nvml_parts import GIB, MIB, mib, uuid
from simulators.nvml_probe import Raised, ready
from simulators.nvml_state import Bar1, Gpu, Holder, Limit, Machine, Memory, Remapped, Retired, Trouble
from simulators.sample_nvml import EIGHT_H100, H200_MIG, RTX_4090, WSL2
from simulators.sample_nvml_integrated import GB10

MEMORY = "nvmlDeviceGetMemoryInfo(gpu({}), version=nvmlMemory_v2).used"
COMPUTE = "[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(gpu(0))]"


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_process_lists_have_every_kind_of_answer(kind: str, version: str, tmp_path: Path) -> None:
    """Unknown memory is None, an empty list is empty, and an unsupported list is an error."""
    field = {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}[kind]
    call = f"[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGet{kind}RunningProcesses{version}(gpu(0))]"
    simulator = Simulator.of(tmp_path, WSL2.with_gpu(0, **{field: (Holder(1431, None), Holder(8, 5 * GIB))}))

    with ready(simulator) as asked:
        assert asked.ask(call) == [[1431, None], [8, 5 * GIB]]
        simulator.show(WSL2.with_gpu(0, **{field: ()}))
        assert asked.ask(call) == []
        simulator.show(WSL2.with_gpu(0, **{field: None}))
        assert asked.ask(call) == Raised("NVMLError_NotSupported", 3)


def test_unversioned_calls_fill_records_of_16_bytes(tmp_path: Path) -> None:
    """The binding no longer makes these calls."""
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, compute=(Holder(31, 7), Holder(32, 8))))
    call = (
        "[list(room) for room, n in [((c_ulonglong * 8)(), c_uint(4))]"
        " if pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses(gpu(0), byref(n), room) == 0 and n.value == 2]"
    )

    with ready(simulator) as asked:
        assert asked.ask(call) == [[31, 7, 32, 8, 0, 0, 0, 0]]


def test_process_list_that_outgrew_its_size_is_an_error(tmp_path: Path) -> None:
    """The binding reads the size first. If the list has grown since then, the call returns INSUFFICIENT_SIZE."""
    many = tuple(Holder(100 + number, MIB) for number in range(40))
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, compute=many, announced={"compute": 1}))

    with ready(simulator) as asked:
        assert asked.ask(COMPUTE) == Raised("NVMLError_InsufficientSize", 7)
        simulator.show(RTX_4090.with_gpu(0, compute=many))
        assert len(asked.ask(COMPUTE)) == 40


def test_process_list_of_driver_535_is_scrambled(tmp_path: Path) -> None:
    """Drivers 535.54 to 535.98 write longer records than the binding reads: only the first is correct."""
    holders = tuple(Holder(4000 + number, GIB) for number in range(4))
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, compute=holders, process_layout="r535"))

    with ready(simulator) as asked:
        rows = asked.ask(COMPUTE)

    assert rows[0] == [4000, GIB]
    assert {pid for pid, _ in rows} & {0, 0xFFFFFFFF}
    assert len(rows) == 4


def test_detail_list_needs_every_figure_and_a_known_version(tmp_path: Path) -> None:
    """The binding cannot store None in its own structure, so an unknown figure is a TypeError."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    call = "[p.pid for p in nvmlDeviceGetRunningProcessDetailList(gpu(0), {}, {})]"

    with ready(simulator) as asked:
        assert asked.ask(call.format("nvmlProcessDetailList_v1", 3)) == Raised("TypeError", None)
        assert asked.ask(call.format(0x2000018, 0)) == Raised("NVMLError_ArgumentVersionMismatch", 25)


def test_memory_info_has_two_versions(tmp_path: Path) -> None:
    """Version 1 counts reserved memory as used and may work without version 2; an unknown version is refused."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    v1 = "(lambda m: [m.total, m.used, m.free])(nvmlDeviceGetMemoryInfo(gpu(0)))"

    with ready(simulator) as asked:
        assert asked.ask(v1) == [24564 * MIB, (13320 + 424) * MIB, (24564 - 13320 - 424) * MIB]
        assert asked.ask("nvmlDeviceGetMemoryInfo(gpu(0), version=0x03000030)") == Raised(
            "NVMLError_ArgumentVersionMismatch", 25
        )
        simulator.show(RTX_4090.with_gpu(0, memory=None, memory_v1=mib(24564, 500)))
        assert asked.ask(v1) == [24564 * MIB, 500 * MIB, 24064 * MIB]
        assert asked.ask(MEMORY.format(0)) == Raised("NVMLError_NotSupported", 3)


def test_contradictory_state_is_returned_unchanged(tmp_path: Path) -> None:
    """Free above total, and a negative NUMA node."""
    memory = Memory(total=GIB, used=0, free=2 * GIB)
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, memory=memory, numa_node=-1, bar1=Bar1(GIB, GIB)))

    with ready(simulator) as asked:
        assert asked.ask("nvmlDeviceGetMemoryInfo(gpu(0), version=nvmlMemory_v2).free") == 2 * GIB
        assert asked.ask("nvmlDeviceGetNumaNodeId(gpu(0))") == -1


LIMITS = (
    "(lambda limits: [nvmlDeviceGetMemoryLimits_v1(gpu(0), limits), limits.softLimit, limits.hardLimit,"
    " limits.currentUsed][1:])(pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace={!r}))"
)


def test_memory_limits_are_those_of_the_nearest_limited_cgroup(tmp_path: Path) -> None:
    """Drivers since R615 have them. A cgroup that does not exist, MIG, and a driver without them are errors."""
    tree = tmp_path / "sys/fs/cgroup"
    (tree / "a/b").mkdir(parents=True)
    (tree / "free").mkdir()
    limited = RTX_4090.with_gpu(0, limits=(Limit("/a", soft=1, hard=2, used=3),))
    simulator = Simulator.of(tmp_path, limited)

    with ready(simulator) as asked:
        assert asked.ask(LIMITS.format(str(tree / "a").encode())) == [1, 2, 3]
        assert asked.ask(LIMITS.format(str(tree / "a/b").encode())) == [1, 2, 3]
        assert asked.ask(LIMITS.format(str(tree / "free").encode())) == [0, 2**64 - 1, 0]
        assert asked.ask(LIMITS.format(str(tree / "ab").encode())) == Raised("NVMLError_NotFound", 6)
        simulator.show(RTX_4090)
        assert asked.ask(LIMITS.format(str(tree / "a").encode())) == Raised("NVMLError_NotSupported", 3)
        simulator.show(H200_MIG.with_gpu(0, limits=limited.gpus[0].limits))
        assert asked.ask(LIMITS.format(str(tree / "a").encode())) == Raised("NVMLError_NotSupported", 3)


def test_memory_info_inside_a_partition_has_the_limit_as_total(tmp_path: Path) -> None:
    """Version 2 is adjusted; use is that of the partition."""
    limit = Limit("/a", soft=GIB, hard=8 * GIB, used=3 * GIB)
    simulator = Simulator.of(tmp_path, RTX_4090.with_gpu(0, limits=(limit,), partition="/a"))

    with ready(simulator) as asked:
        call = "(lambda m: [m.total, m.used, m.free])(nvmlDeviceGetMemoryInfo(gpu(0), version=nvmlMemory_v2))"
        assert asked.ask(call) == [8 * GIB, 3 * GIB, 5 * GIB]


def test_memory_errors_are_returned(tmp_path: Path) -> None:
    """Remapped rows, retired pages and field values; each field fails separately."""
    gpu = EIGHT_H100.with_gpu(
        0,
        remapped=Remapped(corrected=3, uncorrected=2, pending=True),
        retired=Retired(corrected=(0x1000, 0x2000), uncorrected=(0x3000,), pending=True),
        recovery_action=2,
        unrepairable=True,
        field_errors={143: 4},
    )
    simulator = Simulator.of(tmp_path, gpu)

    with ready(simulator) as asked:
        assert asked.ask("nvmlDeviceGetRemappedRows(gpu(0))") == [3, 2, 1, 0]
        assert asked.ask("nvmlDeviceGetRetiredPages(gpu(0), 0)") == [0x1000, 0x2000]
        assert asked.ask("[page['address'] for page in nvmlDeviceGetRetiredPages_v2(gpu(0), 1)]") == [0x3000]
        assert asked.ask("nvmlDeviceGetRetiredPagesPendingStatus(gpu(0))") == 1
        numbers = "nvmlDeviceGetFieldValues(gpu(0), [142, 143, 230, 82])"
        fields = asked.ask(f"[[f.fieldId, f.nvmlReturn, f.value.uiVal] for f in {numbers}]")
        assert fields == [[142, 0, 3], [143, 4, 0], [230, 0, 2], [82, 3, 0]]


def test_unprivileged_mig_reading_has_device_memory_only(tmp_path: Path) -> None:
    """Memory of the parent is NO_PERMISSION; memory of its MIG devices is readable."""
    rejected = {"nvmlDeviceGetMemoryInfo_v2": Trouble(error=4)}
    simulator = Simulator.of(tmp_path, H200_MIG.with_gpu(0, troubles=rejected))

    with ready(simulator) as asked:
        assert asked.ask(MEMORY.format(0)) == Raised("NVMLError_NoPermission", 4)
        assert asked.ask("nvmlDeviceGetMemoryInfo(mig(0, 0), version=nvmlMemory_v2).used") == 16925 * MIB


def test_mig_device_has_its_parent_and_its_own_processes(tmp_path: Path) -> None:
    """It lists only the processes in its compute instance."""
    simulator = Simulator.of(tmp_path, H200_MIG)
    parent = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
    of_device = "[p.pid for p in nvmlDeviceGetComputeRunningProcesses(mig(0, {}))]"

    with ready(simulator) as asked:
        assert asked.ask(f"nvmlDeviceGetUUID({parent}(mig(0, 4)))") == uuid(0x2000)
        assert asked.ask(f"{parent}(gpu(0))") == Raised("NVMLError_InvalidArgument", 2)
        assert asked.ask("nvmlDeviceGetMaxMigDeviceCount(gpu(0))") == 7
        assert asked.ask("mig(0, 7)") == Raised("NVMLError_InvalidArgument", 2)
        assert asked.ask(of_device.format(0)) == []
        assert asked.ask(of_device.format(1)) == [12249, 12250, 12267]


def test_reconfiguration_invalidates_mig_handles(tmp_path: Path) -> None:
    """With MIG off there are no MIG devices."""
    parent = H200_MIG.gpus[0]
    assert parent.mig is not None
    simulator = Simulator.of(tmp_path, H200_MIG)

    with ready(simulator) as asked:
        asked.ask("globals().update(old=mig(0, 2))")
        simulator.show(H200_MIG.with_gpu(0, mig=replace(parent.mig, generation=1)))
        assert asked.ask("nvmlDeviceGetUUID(old)") == Raised("NVMLError_NotFound", 6)
        assert asked.ask("nvmlDeviceGetUUID(mig(0, 2))") == uuid(0x202, "MIG")
        simulator.show(H200_MIG.with_gpu(0, mig=replace(parent.mig, current=False)))
        assert asked.ask("mig(0, 2)") == Raised("NVMLError_NotSupported", 3)


def test_facts_missing_in_the_state_are_not_supported(tmp_path: Path) -> None:
    silent = Gpu("?", uuid(1), "00000000:01:00.0", 0x10DE, persistence=None, compute=None, graphics=None, mps=None)
    simulator = Simulator.of(tmp_path, Machine(gpus=(silent,)))
    plain = ("Brand", "Architecture", "MinorNumber", "PersistenceMode", "MigMode", "EccMode", "Serial")

    with ready(simulator) as asked:
        for fact in plain:
            assert asked.ask(f"nvmlDeviceGet{fact}(gpu(0))") == Raised("NVMLError_NotSupported", 3), fact


def test_names_may_be_any_bytes(tmp_path: Path) -> None:
    """Invalid UTF-8 makes the binding raise; blanks or `hex:` in a name survive the state file."""
    simulator = Simulator.of(tmp_path, GB10.with_gpu(0, name=b"GB\xff10"))

    with ready(simulator) as asked:
        assert asked.ask("nvmlDeviceGetName(gpu(0))") == Raised("UnicodeDecodeError", None)
        for name in (" NVIDIA = GB10 # ", "hex:41", "ĞB10", ""):
            simulator.show(GB10.with_gpu(0, name=name))
            assert asked.ask("nvmlDeviceGetName(gpu(0))") == name
