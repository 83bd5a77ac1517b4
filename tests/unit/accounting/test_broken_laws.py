"""Test machines that broke a law of the accounting once, found by `make machines`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading, Region
from memwatch.core.drivers.drm.records import DrmCard, DrmClient, DrmReading
from memwatch.core.drivers.nvml.records import CgroupLimit, GpuInstance, GpuMemory, GpuProcess, NvmlReading
from memwatch.core.drivers.nvml.validation import plausible_memory
from memwatch.core.drivers.tegra.records import NvMapClient, NvMapReading, TegraReading
from memwatch.core.findings import Findings
from memwatch.core.linux.dmem import DmemGroup, DmemReading, RegionUse
from memwatch.core.model import Absent, Architecture, Pool, Process, Quality, Share, ShareKind
from memwatch.core.snapshot import CHARGED, GPU_CHARGING, Machine, Node
from support.fakes import GIB, ram
from support.nvidia_accounting import NO, SPARK, accounts, gb10, gpu, memory

INCONSISTENT = Absent.INCONSISTENT
GPU_NODE = Node(1, 96 * GIB, 90 * GIB, 90 * GIB, has_cpus=False)
HOST_NODE = Node(0, 480 * GIB, 400 * GIB, 390 * GIB, has_cpus=True)
PROCESSES = tuple(Process(pid, 1.0, "app", GIB, GIB, "rss") for pid in (7, 8))


def compose(*others: Findings, host: Pool | None = None, machine: Machine = Machine("test")) -> Findings:  # noqa: B008
    return Composer().compose(
        [Findings(pools=(host or ram(20 * GIB),), machine=machine, processes=PROCESSES), *others]
    )


def nvml(*gpus: object) -> Findings:
    return Findings(nvml=NvmlReading("615.71", "13.4", gpus))  # type: ignore[arg-type]


def grace(index: int = 0) -> object:
    name = f"GPU-{index}"
    card = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 2, 96766), bar1_bytes=NO, numa_node=1)
    return replace(card, index=index, uuid=name, pci=f"0000:0{index + 1}:00.0")


def card_in(*groups: DmemGroup) -> Findings:
    """A card of 45 GiB with groups of the dmem controller."""
    return compose(
        nvml(gpu("NVIDIA L40S", memory=memory(46068, 608, 20000, 25460))), Findings(dmem=DmemReading(groups))
    )


def group(cgroup: str, used: int, limit: int, peak: int = 0) -> DmemGroup:
    return DmemGroup(cgroup, (RegionUse("nvidia/0000:01:00.0/vidmem", used, limit, peak),))


# Pools are disjoint.


def test_node_of_two_gpus_is_one_pool() -> None:
    """Both GPUs report NUMA node 1: its bytes are in the first one's pool, and the second one's are unknown."""
    found = compose(nvml(grace(), grace(1)), Findings(nodes=(HOST_NODE, GPU_NODE)), host=ram(90 * GIB, 576 * GIB))

    assert [(pool.id, pool.size_bytes) for pool in found.pools] == [("ram", 480 * GIB), ("gpu0", 96 * GIB)]
    assert found.devices[1].architecture is Architecture.UNKNOWN


@pytest.mark.parametrize("nodes", [(), (HOST_NODE, replace(GPU_NODE, has_cpus=Absent.NOT_AVAILABLE))])
def test_gpu_on_a_node_that_is_not_visible_is_no_further_pool(nodes: tuple[Node, ...]) -> None:
    """MemTotal contains its memory, but how much of it is unknown."""
    found = compose(nvml(grace()), Findings(nodes=nodes), host=ram(90 * GIB, 576 * GIB))

    assert [pool.id for pool in found.pools] == ["ram"]
    assert "NUMA node 1" in found.devices[0].evidence[0]


def test_gpu_nodes_above_memtotal_are_not_inside_it() -> None:
    """A MemTotal below the GPU's node is a container's. System RAM would have had 0 bytes."""
    found = compose(nvml(grace()), Findings(nodes=(HOST_NODE, GPU_NODE)), host=ram(2 * GIB, 16 * GIB))

    assert [pool.size_bytes for pool in found.pools] == [16 * GIB, 96 * GIB]


def test_free_memory_and_huge_pages_fit_beside_the_gpu_nodes() -> None:
    """MemFree and huge pages of the host may be larger than what is left of MemTotal."""
    host = replace(
        ram(90 * GIB, 100 * GIB), free_bytes=98 * GIB, set_aside_bytes=50 * GIB, set_aside_free_bytes=9 * GIB
    )
    pool = compose(nvml(grace()), Findings(nodes=(replace(GPU_NODE, free_bytes=0),)), host=host).pools[0]

    assert (pool.size_bytes, pool.free_bytes) == (4 * GIB, 4 * GIB)
    assert (pool.set_aside_bytes, pool.set_aside_free_bytes) == (4 * GIB, 4 * GIB)


# Parts are not larger than the whole.


def test_container_above_system_ram_is_inconsistent() -> None:
    """Also on a machine without a GPU. Its limit is not above its pool either."""
    share = Share("cgroup", ShareKind.CGROUP, "Container", "ram", GIB, "t", Quality.DERIVED, limit_bytes=99 * GIB)
    shares = [compose(Findings(shares=(replace(share, used_bytes=used),))).shares[0] for used in (GIB, 65 * GIB)]

    assert [(one.used_bytes, one.limit_bytes) for one in shares] == [
        (GIB, 64 * GIB),
        (INCONSISTENT, INCONSISTENT),
    ]


def test_mig_instance_above_its_card_is_inconsistent() -> None:
    instance = GpuInstance(1, ("MIG-a",), memory(90000, 0, 85000, 5000))
    card = gpu("NVIDIA H100", memory=memory(81559, 479, 20210, 60870), mig_enabled=True, instances=(instance,))

    (share,) = accounts(card).shares
    assert (share.used_bytes, share.limit_bytes) == (INCONSISTENT, INCONSISTENT)


def test_cgroup_above_its_card_is_inconsistent() -> None:
    """Its use and its peak, in the share and in the kernel's bytes of the owner."""
    found = card_in(group("/a.service", 50 * GIB, 8 * GIB, 60 * GIB))

    assert (found.shares[0].used_bytes, found.shares[0].peak_bytes) == (INCONSISTENT, INCONSISTENT)
    assert found.kernel_held[0].device_bytes == {"gpu0": INCONSISTENT}


def test_limit_is_not_above_a_limit_that_was_reduced() -> None:
    """The outer one exceeds the card and becomes its size, so the inner one does as well."""
    found = card_in(group("/a", GIB, 100 * GIB), group("/a/b", GIB, 90 * GIB))

    assert [share.limit_bytes for share in found.shares] == [46068 << 20] * 2


def test_drivers_limit_of_a_gpu_without_a_uuid_is_not_that_of_another() -> None:
    """Two GPUs whose driver does not report a UUID. The limit would have been the second one's."""
    limit = CgroupLimit("/a.service", 0, 8 * GIB, GIB)
    first = gpu("NVIDIA L40S", memory=memory(46068, 608, 20000, 25460), limits=(limit,))
    second = gpu("NVIDIA L4", memory=memory(23034, 608, 2000, 20426))
    cards = [replace(first, uuid=NO), replace(second, uuid=NO, pci="0000:02:00.0")]

    assert compose(nvml(*cards)).shares == ()


def test_process_with_more_than_its_gpu_is_inconsistent() -> None:
    """KFD reports 1 TiB on a card of 16 GiB. Without an upper bound, the history of growth failed at 8 EiB."""
    card = AmdCard("0000:03:00.0", ("card0",), "renderD128", "744c", "c8", "RX", 16 * GIB, 16 * GIB, GIB)
    region = Region(16 * GIB, GIB)
    reading = AmdReading((AmdGpu(card, region, region, Region(), "active", held={7: 1 << 40, 8: GIB}),), NO, NO)
    found = compose(Findings(amdgpu=reading, drm=DrmReading((), (), 2, 0)))

    assert [process.device_bytes for process in found.processes] == [{"gpu0": INCONSISTENT}, {"gpu0": GIB}]
    assert found.processes[0].footprint_bytes is INCONSISTENT
    assert found.pools[1].overlap


def test_processes_above_the_used_memory_are_marked_although_one_is_unknown() -> None:
    rows = (GpuProcess(7, 30 * GIB), GpuProcess(8, Absent.NOT_AVAILABLE))
    found = accounts(gpu("NVIDIA L40S", memory=memory(46068, 608, 20000, 25460), processes=rows))

    assert (found.pools[1].overlap, found.pools[1].unattributed_bytes) == (True, Absent.NOT_AVAILABLE)


def test_share_with_less_than_its_processes_has_a_note() -> None:
    """Two processes of an NPU share a client, which each of them counts."""
    npu = DrmCard("accel0", "intel_vpu", "0000:00:0b.0", "0000:00:0b.0", ("accel0",))
    client = DrmClient("intel_vpu", "0000:00:0b.0", "accel0", 1, (7, 8), "resident", {"memory": GIB})
    (share,) = compose(Findings(drm=DrmReading((), (client,), 2, 0, npus=(npu,)))).shares

    assert share.used_bytes == GIB
    assert "the sum of its processes exceeds it" in str(share.note)


def test_process_in_two_instances_holds_the_sum() -> None:
    """The instances are not listed, so both rows are in the GPU. Only the last one counted."""
    rows = (GpuProcess(7, 2 * GIB, 1), GpuProcess(7, 3 * GIB, 2))
    card = gpu("NVIDIA H100", memory=memory(81559, 479, 20210, 60870), mig_enabled=True, processes=rows)

    assert accounts(card, pids=(7,)).processes[0].device_bytes == {"gpu0": 5 * GIB}


# The certain headroom is not larger than the headroom.


def test_limit_of_the_own_container_bounds_the_certain_headroom() -> None:
    """VRAM is certain: both bounds are what the limit leaves."""
    reading = gpu("NVIDIA L40S", memory=memory(46068, 608, 20000, 25460))
    dmem = DmemReading((group("/a", GIB, 8 * GIB),), own="/a", capacity_bytes={})
    capacity = {"nvidia/0000:01:00.0/vidmem": 46068 << 20}
    found = compose(
        nvml(reading),
        Findings(dmem=replace(dmem, capacity_bytes=capacity)),
        machine=Machine("test", in_container=True),
    )

    (device,) = found.devices
    assert (device.headroom_after_reclaim_bytes, device.headroom_bytes) == (7 * GIB, 7 * GIB)


def test_charged_container_bounds_the_certain_headroom() -> None:
    """An APU may use 30 GiB of free System RAM, and its container 2 GiB."""
    limit = Share(
        "cgroup", ShareKind.CGROUP, "Container", "ram", 6 * GIB, "t", Quality.DERIVED, limit_bytes=8 * GIB
    )
    card = AmdCard("0000:03:00.0", (), NO, "1586", "00", "Radeon 8060S", NO, NO, 60 * GIB, has_uma=True)
    gtt = Region(60 * GIB, GIB)
    reading = AmdReading((AmdGpu(card, Region(), Region(), gtt, "active"),), NO, NO)
    machine = Machine("test", in_container=True, details={GPU_CHARGING: CHARGED})
    (device,) = compose(Findings(amdgpu=reading, shares=(limit,)), machine=machine).devices

    assert (device.headroom_after_reclaim_bytes, device.headroom_bytes) == (2 * GIB, 2 * GIB)


# Places exist, and nothing unknown is 0.


def test_instances_of_unknown_size_are_no_pool_of_0_bytes() -> None:
    """The sum of the known ones would be too small as well. The instances are within their device."""
    refused = Absent.NOT_SUPPORTED
    instances = (GpuInstance(1, ("MIG-a",), refused), GpuInstance(2, ("MIG-b",), memory(20000, 0, 2000, 18000)))
    rows = (GpuProcess(7, GIB, 2), GpuProcess(8, GIB, 9))
    card = gpu("NVIDIA H100", memory=refused, mig_enabled=True, bar1_bytes=GIB, instances=instances, processes=rows)
    machine = Machine("test", in_container=True)
    found = accounts(card, machine=machine, pids=(7, 8))

    assert [pool.id for pool in found.pools] == ["ram"]
    assert {share.within for share in found.shares} == {"gpu0"}
    assert [process.device_bytes for process in found.processes] == [{"gpu0.mig2": GIB}, {}]
    assert found.devices[0].headroom_after_reclaim_bytes == 18000 << 20


def test_process_on_a_card_of_which_nothing_is_used_does_not_hold_0_bytes() -> None:
    """The card's free memory is all of it, and the driver says that a process has 16 GiB there."""
    empty = gpu(
        "NVIDIA RTX 4090", memory=GpuMemory(2, 24 * GIB, 1, 24 * GIB, 1), processes=(GpuProcess(7, 16 * GIB),)
    )

    assert compose(nvml(empty)).processes[0].device_bytes == {"gpu0": INCONSISTENT}


def test_use_that_contradictory_figures_leave_is_not_0() -> None:
    """The driver's "used" is above the total, and free and reserved memory leave nothing of it."""
    wrong = plausible_memory(GpuMemory(2, 20 * GIB, 1 << 63, 20 * GIB, GIB))
    card = gpu("NVIDIA H100", mig_enabled=True, instances=(GpuInstance(1, ("MIG-a",), wrong),))

    (share,) = accounts(card).shares
    assert (share.used_bytes, share.limit_bytes, share.quality) == (INCONSISTENT, 20 * GIB, Quality.ESTIMATED)


def test_tegra_without_meminfo_has_no_processes_in_a_missing_pool() -> None:
    """NvMap lists its clients, and System RAM is unknown: the CUDA Pool would be within nothing."""
    reading = NvMapReading(GIB, (NvMapClient(7, "app", GIB),))
    found = Composer().compose(
        [Findings(processes=PROCESSES), Findings(tegra=TegraReading("tegra234"), nvmap=reading)]
    )

    assert (found.shares, found.processes[0].device_bytes) == ((), {})


def test_buffers_of_processes_that_cannot_be_read_are_not_0() -> None:
    """Without root, no client is visible: that says nothing about those of other users."""
    card = DrmCard("card0", "xe", "0000:00:02.0", "0000:00:02.0", ("card0", "renderD128"), "8086", "64a0")
    (share,) = compose(Findings(drm=DrmReading((card,), (), 10, unreadable=3))).shares

    assert share.used_bytes is Absent.NOT_PERMITTED


def test_unified_gpu_keeps_its_figures() -> None:
    """The checks above leave a GB10 as it is: a CUDA Pool in System RAM, with its processes."""
    found = accounts(gb10(GpuProcess(7, GIB)), host=ram(30 * GIB, SPARK), pids=(7,))

    assert [(share.used_bytes, share.note) for share in found.shares] == [
        (GIB, "excludes managed memory and driver overhead")
    ]
    assert found.processes[0].device_bytes == {"cuda0": GIB}
