"""Test that a Tegra is one pool, one CUDA Pool inside it and one device, whichever driver reports its GPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.accounting.tegra import build_tegrastats
from memwatch.core.drivers.nvml.records import (
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    MissingGpu,
    NvmlReading,
)
from memwatch.core.drivers.tegra.records import Load, NvMapClient, NvMapReading, TegraReading, TegrastatsReading
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Architecture, Bytes, Content, Process, Vitals
from memwatch.core.snapshot import Machine, Tegrastats
from support.fakes import GIB, ram

NO = Absent.NOT_SUPPORTED
REFUSED = NvMapReading(Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "As root there would be more.")
LINE = TegrastatsReading(3 * GIB, 8 * GIB, 98, 4 << 20, gr3d=Load(busy_ratio=0.62), emc=Load(busy_ratio=0.1))


def orin(gpu_bytes: Bytes = 3 * GIB, **fields: Any) -> TegraReading:
    reading = TegraReading("tegra234", "Jetson Orin", "36.4.3", "6", gpu_bytes=gpu_bytes, free_bytes=0)
    return replace(reading, **fields)


def thor() -> TegraReading:
    return TegraReading("tegra264", "Jetson Thor", "38.2.0", "7")


def gpu(name: str, **fields: Any) -> GpuReading:
    """Return a reading of the integrated GPU as NVML reports it."""
    nothing: dict[str, Any] = {"memory": NO, "bar1_bytes": NO, "processes": NO}
    return GpuReading(0, "GPU-1", fields.pop("pci", NO), name, **(nothing | fields))


def plugged_in() -> GpuReading:
    memory = GpuMemory(2, 48 * GIB, 8 * GIB, 39 * GIB, 1 * GIB)
    return GpuReading(1, "GPU-2", "0000:01:00.0", "NVIDIA RTX 6000 Ada", memory=memory, processes=())


def nvmap(total: Bytes = 3 * GIB, **clients: int) -> NvMapReading:
    """Clients as `name_pid=bytes`."""
    rows = tuple(
        NvMapClient(int(key.rpartition("_")[2]), key.rpartition("_")[0], size) for key, size in clients.items()
    )
    return NvMapReading(total, rows)


def nvml(*gpus: GpuReading, missing: tuple[MissingGpu, ...] = ()) -> NvmlReading:
    return NvmlReading("540.4.0", "12.6", gpus, missing)


def machine(
    tegra: TegraReading,
    *stale: str,
    pids: tuple[int, ...] = (),
    host: Machine | None = None,
    set_aside: int = 0,
    **readings: Any,
) -> Findings:
    """A board of 8 GiB, 5 GiB of which are used and 4 GiB in no line of meminfo."""
    parts = (Content("anonymous", GIB), Content("unattributed", 4 * GIB), Content("free", 3 * GIB))
    pool = replace(ram(5 * GIB, 8 * GIB), unattributed_bytes=4 * GIB, contents=parts)
    if set_aside:
        pool = replace(pool, set_aside_bytes=set_aside, set_aside_free_bytes=set_aside // 2)
    processes = tuple(Process(pid, 1.0, "python", GIB, GIB, "rss") for pid in pids)
    board = Findings(pools=(pool,), machine=host or Machine("board"), processes=processes)
    return Composer().compose([board, Findings(tegra=tegra, stale=frozenset(stale), **readings)])


def test_cuda_pool_is_known_without_root() -> None:
    """NvMapMemUsed lies inside System RAM and is subtracted from unattributed memory, which keeps the rest."""
    found = machine(orin())

    (share,), (pool,), (device,) = found.shares, found.pools, found.devices
    assert (share.label, share.within, share.used_bytes) == ("CUDA Pool", "ram", 3 * GIB)
    assert share.source == "meminfo:NvMapMemUsed"
    assert pool.unattributed_bytes == GIB
    assert {part.kind: part.size_bytes for part in pool.contents}["devices"] == 3 * GIB
    assert (device.id, device.architecture) == ("gpu0", Architecture.UNIFIED)
    assert device.evidence == ("the chip is tegra234, whose GPU shares System RAM",)
    assert device.headroom_after_reclaim_bytes == pool.available_bytes
    assert found.machine is not None
    assert found.machine.explanation.startswith("GPU memory is part of System RAM on this board")
    assert found.machine.details == {"board": "Jetson Orin", "soc": "tegra234", "l4t": "36.4.3", "jetpack": "6"}


def test_nvml_stub_is_the_same_device() -> None:
    """A stub of NVML adds a uuid and a driver version, but neither a second GPU nor a zero."""
    without, with_stub = machine(orin()), machine(orin(), nvml=nvml(gpu("Orin (nvgpu)")))

    (device,) = with_stub.devices
    assert with_stub.shares == without.shares
    assert with_stub.pools == without.pools
    assert (device.id, device.name) == ("gpu0", without.devices[0].name)
    assert (device.uuid, device.driver) == ("GPU-1", "540.4.0")
    assert "the name matches an integrated GPU (Orin (nvgpu))" in device.evidence


def test_stale_nvml_stub_changes_no_value() -> None:
    """No value came from the stub."""
    found = machine(orin(), "nvml", nvml=nvml(gpu("Orin (nvgpu)")))

    assert found.shares[0].used_bytes == 3 * GIB
    assert found.devices[0].state == "ok"


def test_root_sees_memory_by_process() -> None:
    """By NvMap's clients: those of one process are added up, and the kernel's are left out."""
    clients = nvmap(python_7=GIB, Xorg_8=GIB // 2, kernel_0=GIB)
    again = replace(clients, clients=(*clients.clients, NvMapClient(7, "python", GIB // 4)))  # type: ignore[misc]

    found = machine(orin(), pids=(7, 8, 9), nvmap=again)

    held = {process.pid: dict(process.device_bytes) for process in found.processes}
    assert held == {7: {"cuda0": GIB + GIB // 4}, 8: {"cuda0": GIB // 2}, 9: {}}
    assert found.processes[0].footprint_bytes == 2 * GIB + GIB // 4
    assert found.devices[0].process_list == "complete"
    assert found.devices[0].notes == ()


def test_clients_that_share_buffers_add_a_note() -> None:
    """The total is exact; a note states that the sum of the clients is larger."""
    found = machine(orin(GIB), nvmap=nvmap(GIB, camera_7=GIB, inference_8=GIB))

    assert found.shares[0].used_bytes == GIB
    assert "count for each process" in found.devices[0].notes[0]


def test_without_root_the_pool_is_known_and_a_note_added() -> None:
    """NvMapMemUsed is readable by all users, the table of clients only by root."""
    found = machine(orin(), pids=(7,), nvmap=REFUSED)

    assert found.shares[0].used_bytes == 3 * GIB
    assert found.devices[0].process_list is Absent.NOT_PERMITTED
    assert found.devices[0].notes == ("As root there would be more.",)
    assert found.processes[0].device_bytes == {}


@pytest.mark.parametrize(
    ("table", "stale", "used", "source"),
    [
        (nvmap(2 * GIB), (), 2 * GIB, "nvmap:total"),
        (nvmap(2 * GIB), ("nvmap",), Absent.STALE, "nvmap:total"),
        (REFUSED, (), Absent.NOT_PERMITTED, "nvmap:total"),
        (None, (), Absent.NOT_AVAILABLE, "nvml:processes"),
    ],
)
def test_cuda_pool_without_nvmap_mem_used(
    table: NvMapReading | None, stale: tuple[str, ...], used: Bytes, source: str
) -> None:
    """The total of the table, readable by root, comes next; without it the use is unknown, never 0."""
    found = machine(orin(NO), *stale, nvmap=table)

    assert (found.shares[0].used_bytes, found.shares[0].source) == (used, source)
    assert found.pools[0].unattributed_bytes == (
        2 * GIB if used == 2 * GIB else Absent.STALE if used is Absent.STALE else 4 * GIB
    )


def test_stale_meminfo_makes_the_share_stale() -> None:
    """The last value is too old to repeat, both for the share and for unattributed memory."""
    found = machine(orin(), "tegra")

    assert found.shares[0].used_bytes is Absent.STALE
    assert found.pools[0].unattributed_bytes is Absent.STALE


def test_stale_nvmap_table_drops_only_the_values_of_processes() -> None:
    """Other values stay valid."""
    found = machine(orin(), "nvmap", pids=(7,), nvmap=nvmap(python_7=GIB))

    assert found.shares[0].used_bytes == 3 * GIB
    assert found.devices[0].process_list is Absent.STALE
    assert found.processes[0].device_bytes == {"cuda0": Absent.STALE}


def test_on_thor_nvml_lists_the_processes() -> None:
    """On Thor NvMap has no value, and the sum over NVML's process list is the CUDA Pool."""
    own = gpu("NVIDIA Thor", pci="0000:01:00.0", processes=(GpuProcess(7, 2 * GIB), GpuProcess(8, GIB)))

    found = machine(thor(), pids=(7, 8), nvml=nvml(own))

    (share,), (device,) = found.shares, found.devices
    assert (share.used_bytes, share.source) == (3 * GIB, "nvml:processes")
    assert (device.name, device.process_list) == ("NVIDIA Thor", "complete")
    assert found.processes[0].device_bytes == {"cuda0": 2 * GIB}
    assert found.pools[0].unattributed_bytes == GIB


def test_stale_nvml_on_thor_drops_its_values() -> None:
    """The device stays listed, without these values."""
    own = gpu("NVIDIA Thor", processes=(GpuProcess(7, GIB),))

    found = machine(thor(), "nvml", pids=(7,), nvml=nvml(own), tegrastats=LINE)

    assert found.shares[0].used_bytes is Absent.STALE
    assert found.devices[0].state == "stalled"
    assert found.devices[0].busy_ratio == 0.62
    assert found.processes[0].device_bytes == {"cuda0": Absent.STALE}


def test_thor_without_nvml_is_a_device_of_unknown_use() -> None:
    """Its memory is unknown: not 0, and not all of the unattributed memory."""
    found = machine(thor())

    assert found.shares[0].used_bytes is Absent.NOT_AVAILABLE
    assert found.pools[0].unattributed_bytes == 4 * GIB
    assert (found.devices[0].name, found.devices[0].process_list) == ("NVIDIA Thor", Absent.NOT_AVAILABLE)


def test_a_thor_in_mig_mode_has_no_memory_beside_system_ram() -> None:
    """MIG instances share the one pool as well, so none of them becomes another pool."""
    own = gpu("NVIDIA Thor", memory=Absent.NOT_PERMITTED, instances=(GpuInstance(1, (), NO),), processes=())

    found = machine(thor(), nvml=nvml(own))

    assert [pool.id for pool in found.pools] == ["ram"]
    assert found.devices[0].architecture is Architecture.UNIFIED
    assert found.devices[0].allocates_from == ("ram",)


def test_thor_missing_in_nvml_is_one_device() -> None:
    """It is missing in NVML and still part of the board."""
    found = machine(thor(), nvml=nvml(missing=(MissingGpu("GPU-1", "0000:01:00.0", "NVIDIA Thor"),)))

    (device,) = found.devices
    assert device.state == "missing"
    assert found.shares[0].used_bytes is Absent.NOT_AVAILABLE


def test_headroom_of_a_thor_is_its_free_huge_pages() -> None:
    """DRIVE OS reserves them for the GPU: the free ones are its headroom."""
    found = machine(thor(), set_aside=2 * GIB, nvml=nvml(gpu("NVIDIA Thor", processes=())))

    assert found.devices[0].headroom_after_reclaim_bytes == GIB


@pytest.mark.parametrize("own", [(), (gpu("Orin (nvgpu)"),)])
def test_a_card_plugged_into_a_board_is_a_second_device(own: tuple[GpuReading, ...]) -> None:
    """The card has its own memory; the integrated GPU comes first, whether NVML lists it or not."""
    found = machine(orin(), nvml=nvml(plugged_in(), *own))

    assert [(device.id, device.architecture.value) for device in found.devices] == [
        ("gpu0", "unified"),
        ("gpu1", "discrete"),
    ]
    assert {pool.id: pool.size_bytes for pool in found.pools} == {"ram": 8 * GIB, "gpu1": 48 * GIB}
    assert found.shares[0].used_bytes == 3 * GIB


def test_nvmap_pids_are_ignored_in_a_container() -> None:
    """They are pids of the host: process 7 here is another one."""
    host = Machine("board", in_container=True, sees_all_processes=False)

    found = machine(orin(), pids=(7,), host=host, nvmap=nvmap(python_7=GIB))

    assert found.processes[0].device_bytes == {}
    assert found.devices[0].process_list == "partial"
    assert "host's PIDs" in found.devices[0].notes[-1]


@pytest.mark.parametrize(
    ("line", "stale", "busy", "memory_busy", "blocks"),
    [
        (LINE, (), 0.62, 0.1, Tegrastats(98, 4 << 20)),
        (LINE, ("tegrastats",), Absent.STALE, Absent.STALE, Absent.STALE),
        (None, (), Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, None),
        (
            TegrastatsReading(1, 2, 1, 512 << 10),
            (),
            Absent.NOT_AVAILABLE,
            Absent.NOT_AVAILABLE,
            Tegrastats(1, 512 << 10),
        ),
    ],
)
def test_tegrastats_adds_loads_and_free_blocks(
    line: TegrastatsReading | None, stale: tuple[str, ...], busy: Any, memory_busy: Any, blocks: Any
) -> None:
    """Loads and free blocks; a line without GR3D or EMC is not an idle GPU."""
    found = machine(orin(), *stale, tegrastats=line)

    assert (found.devices[0].busy_ratio, found.devices[0].memory_busy_ratio) == (busy, memory_busy)
    assert build_tegrastats(found) == blocks


def test_sensors_come_from_tegrastats_and_otherwise_from_nvml() -> None:
    """Thor: tegrastats has temperature and rail, NVML the clock and the reasons for a lower one."""
    line = TegrastatsReading(
        1, 2, 1, 4 << 20, temperatures_celsius={"gpu": (39.9,)}, rails_milliwatts={"VDD_GPU": (3561, 3500)}
    )
    by_nvml = Vitals(41.0, 9.0, {"sm": 1_575_000_000}, ("thermal",))
    thor_gpu = gpu("NVIDIA Thor", memory=NO, processes=(), vitals=by_nvml, busy_ratio=0.5)
    both = machine(thor(), nvml=nvml(thor_gpu), tegrastats=line).devices[0]
    stale = machine(thor(), "tegrastats", nvml=nvml(thor_gpu), tegrastats=line).devices[0]
    neither = machine(orin()).devices[0]

    assert both.vitals == Vitals(39.9, 3.561, {"sm": 1_575_000_000}, ("thermal",))
    assert (both.busy_ratio, both.details["power_rail"]) == (0.5, "VDD_GPU")
    assert stale.vitals == by_nvml
    assert "power_rail" not in stale.details
    unknown = Absent.NOT_AVAILABLE
    assert neither.vitals == Vitals(unknown, unknown, unknown, Absent.NOT_READ)


def test_unknown_tegra_is_named_by_its_chip() -> None:
    """The name is the chip's, not an invented one."""
    found = machine(replace(orin(), soc="tegra999"))

    assert found.devices[0].name == "NVIDIA tegra999"
