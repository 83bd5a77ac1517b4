"""Test containment on NVIDIA machines: pools add up to the machine's memory and to nothing more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.nvml.records import (
    Asleep,
    Code,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    MissingGpu,
    NvmlReading,
)
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Architecture, Content, PoolKind, ShareKind
from memwatch.core.snapshot import Machine, Node
from memwatch.reporting.answers import Check, Verdict
from memwatch.reporting.doctor.checks import run_checks
from support.fakes import GIB, ram
from support.nvidia_accounting import NO, SPARK, Accounts, accounts, gb10, gpu, memory
from support.sample_snapshots import calm_workstation

KIB, MIB = 1 << 10, 1 << 20
NEVER = Absent.SUSPENDED


def test_idle_gb10_is_one_pool_with_zero_cuda_memory() -> None:
    """NOT_SUPPORTED means unified, not "no GPU" and not "the host's memory is the GPU's"."""
    host = ram(30 * GIB, SPARK)

    found = accounts(gb10(), host=host)

    assert [pool.id for pool in found.pools] == ["ram"]
    assert found.pools[0].size_bytes == 130663165952
    assert found.shares[0].label == "CUDA Pool"
    assert found.shares[0].within == "ram"
    assert found.shares[0].used_bytes == 0
    assert found.devices[0].architecture is Architecture.UNIFIED
    assert found.devices[0].headroom_after_reclaim_bytes == host.available_bytes
    assert found.machine.architecture == "unified"


def test_cuda_memory_is_inside_system_ram_and_not_unattributed() -> None:
    """63,931 MiB in two processes: a share of RAM, subtracted from unattributed memory, added to nothing."""
    used = SPARK - 40 * GIB
    parts = (Content("anonymous", 10 * GIB), Content("unattributed", used - 10 * GIB), Content("free", 40 * GIB))
    host = replace(ram(used, SPARK), unattributed_bytes=used - 10 * GIB, contents=parts)

    found = accounts(gb10(GpuProcess(5, 60000 * MIB), GpuProcess(6, 3931 * MIB)), host=host)

    assert found.shares[0].used_bytes == 63931 * MIB
    assert found.pools[0].used_bytes == used
    assert found.pools[0].unattributed_bytes == used - 10 * GIB - 63931 * MIB
    assert {part.kind: part.size_bytes for part in found.pools[0].contents}["devices"] == 63931 * MIB


def test_cuda_memory_beyond_the_remainder_is_an_overlap() -> None:
    """Pinned host memory counts twice: the remainder is 0 with overlap set, never negative."""
    host = replace(ram(20 * GIB, SPARK), unattributed_bytes=GIB)

    found = accounts(gb10(GpuProcess(5, 3 * GIB)), host=host)

    assert found.pools[0].unattributed_bytes == 0
    assert found.pools[0].overlap


@pytest.mark.parametrize("answer", [GpuMemory(2, 0, 0, 0, 0), GpuMemory(2, SPARK - GIB, 30 * GIB, 90 * GIB, 0)])
def test_zero_and_shimmed_totals_of_a_gb10_are_one_pool(answer: GpuMemory) -> None:
    """Success with a total of 0, and a shim that returns the machine's memory."""
    shim = gpu("NVIDIA GB10", memory=answer, bar1_bytes=NO, processes=(GpuProcess(5, GIB),))

    found = accounts(shim, host=ram(30 * GIB, SPARK))

    assert [pool.id for pool in found.pools] == ["ram"]
    assert found.devices[0].architecture is Architecture.UNIFIED
    assert found.shares[0].used_bytes == GIB


def test_process_without_a_value_makes_the_sum_unknown() -> None:
    """None is not 0: the share carries the reason."""
    found = accounts(gb10(GpuProcess(5, GIB), GpuProcess(6, Absent.NOT_AVAILABLE)), host=ram(30 * GIB, SPARK))

    assert found.shares[0].used_bytes is Absent.NOT_AVAILABLE


def test_gb10_allocates_from_free_huge_pages() -> None:
    """With huge pages configured, CUDA allocates from the free ones; swap never counts."""
    host = replace(ram(60 * GIB, SPARK), set_aside_bytes=40 * GIB, set_aside_free_bytes=16 * GIB)

    assert accounts(gb10(), host=host).devices[0].headroom_after_reclaim_bytes == 16 * GIB


def test_a_small_carve_out_is_not_the_gpus_capacity() -> None:
    """8,128 MiB on a 46 GiB machine, with success: a carve-out, and reported as one."""
    found = accounts(gpu("NVIDIA RTX Spark N1X", memory=memory(8128, 0, 1000, 7128)), host=ram(20 * GIB, 46 * GIB))

    assert found.devices[0].architecture is Architecture.CARVEOUT
    assert found.pools[1].kind is PoolKind.CARVEOUT
    assert found.pools[1].size_bytes == 8128 * MIB
    assert found.devices[0].allocates_from == ("gpu0", "ram")
    assert found.devices[0].headroom_after_reclaim_bytes is NO
    assert "driver does not report" in found.devices[0].notes[0]


def test_gh200_in_numa_mode_counts_its_hbm_once() -> None:
    """MemTotal 601,685,376 kB contains node 1's 97,280 MB: two pools that add up to MemTotal."""
    size, hbm = 601685376 * KIB, 97280 * MIB
    nodes = (
        Node(0, size - hbm, 300 * GIB, 250 * GIB, has_cpus=True),
        Node(1, hbm, 60 * GIB, 55 * GIB, has_cpus=False),
        *(Node(number, 0, 0, 0, has_cpus=False) for number in range(2, 9)),
    )
    gh200 = gpu(
        "NVIDIA GH200 480GB",
        memory=memory(97871, 1103, 2, 96767),
        bar1_bytes=NO,
        addressing_mode="ats",
        numa_node=1,
    )

    found = accounts(gh200, host=ram(size - 360 * GIB, size), nodes=nodes)

    system, gpu0 = found.pools
    assert system.size_bytes == 502070656 * KIB
    assert (gpu0.kind, gpu0.size_bytes, gpu0.available_bytes) == (PoolKind.HBM, hbm, 60 * GIB)
    assert system.size_bytes + gpu0.size_bytes == size
    assert system.available_bytes == 300 * GIB
    assert (found.shares[0].kind, found.shares[0].within) == (ShareKind.NVML_USED, "gpu0")
    assert found.shares[0].used_bytes == 2 * MIB
    assert found.devices[0].architecture is Architecture.COHERENT


def test_gh200_contents_are_split_by_node() -> None:
    """Per node: pages on HBM are subtracted from System RAM's parts; the driver's part is listed; all adds up."""
    size, hbm = 600 * GIB, 96 * GIB
    on_gpu = (Content("anonymous", 2 * GIB), Content("shared_memory", GIB), Content("kernel", GIB))
    node = Node(1, hbm, 40 * GIB, 30 * GIB, has_cpus=False, contents=on_gpu)
    parts = {
        "anonymous": 50,
        "shared_memory": 3,
        "huge_pages": 0,
        "kernel": 9,
        "unattributed": 78,
        "page_cache": 60,
    }
    contents = tuple(Content(kind, part * GIB) for kind, part in (parts | {"free": 400}).items())
    host = replace(ram(140 * GIB, size), free_bytes=400 * GIB, contents=contents, unattributed_bytes=78 * GIB)
    gh200 = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 48 * 1024, 48719), bar1_bytes=NO, numa_node=1)

    system, gpu0 = accounts(gh200, host=host, nodes=(node,)).pools

    assert {part.kind: part.size_bytes // GIB for part in gpu0.contents} == {
        "anonymous": 2,
        "shared_memory": 1,
        "kernel": 1,
        "devices": 48,
        "unattributed": 4,
        "page_cache": 10,
        "free": 30,
    }
    assert {part.kind: part.size_bytes // GIB for part in system.contents} == {
        "anonymous": 48,
        "shared_memory": 2,
        "huge_pages": 0,
        "kernel": 8,
        "unattributed": 26,
        "page_cache": 50,
        "free": 370,
    }
    assert (gpu0.unattributed_bytes, system.unattributed_bytes) == (4 * GIB, 26 * GIB)


def test_gh200_in_cdmm_mode_keeps_memtotal_whole() -> None:
    """No GPU node: nothing is subtracted, whatever the addressing mode is."""
    gh200 = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 2, 96766), bar1_bytes=NO, addressing_mode="ats")
    host = ram(100 * GIB, 480 * GIB)

    found = accounts(gh200, host=host, nodes=(Node(0, 480 * GIB, 380 * GIB, 370 * GIB, has_cpus=True),))

    assert found.pools[0] == host
    assert found.pools[1].size_bytes == 97871 * MIB
    assert found.devices[0].architecture is Architecture.DISCRETE


@pytest.mark.parametrize(
    ("number", "hidden", "shown"),
    [
        (-1, Architecture.DISCRETE, Architecture.DISCRETE),
        (0, Architecture.UNKNOWN, Architecture.COHERENT),
        (1, Architecture.UNKNOWN, Architecture.COHERENT),
    ],
)
def test_each_node_from_0_on_may_be_that_of_a_gpu(number: int, hidden: Architecture, shown: Architecture) -> None:
    """A container may hide the nodes: MemTotal then contains the GPU's memory or not. A negative one is no node."""
    card = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 2, 96767), numa_node=number)
    nodes = (Node(number, 8 * GIB, 4 * GIB, 4 * GIB, has_cpus=False),)

    assert accounts(card).devices[0].architecture is hidden
    assert accounts(card, nodes=nodes).devices[0].architecture is shown


def test_a_node_without_processors_is_no_gpu() -> None:
    """CXL memory has its own node; unless NVML names that node, it stays in System RAM."""
    found = accounts(
        gpu("NVIDIA H100", memory=memory(81559, 479, 0, 81080)),
        nodes=(Node(1, 64 * GIB, 60 * GIB, 60 * GIB, has_cpus=False),),
    )

    assert found.pools[0].size_bytes == 64 * GIB
    assert found.devices[0].architecture is Architecture.DISCRETE


def test_memory_reserved_by_the_driver_is_used_and_attributed() -> None:
    """H200 idle: 614 MiB reserved are used, belong to no application, and are not unattributed."""
    found = accounts(gpu("NVIDIA H200", memory=memory(143771, 613, 0, 143158)))

    vram = found.pools[1]
    assert vram.used_bytes == vram.reserved_bytes == 613 * MIB
    assert vram.unattributed_bytes == 0
    assert found.devices[0].headroom_after_reclaim_bytes == 143158 * MIB


def test_managed_memory_is_unattributed() -> None:
    """60 GiB used, 5 GiB in the process list: the gap is shown as unattributed and assigned to no process."""
    big = gpu("NVIDIA H100", memory=memory(81559, 479, 61440, 19640), processes=(GpuProcess(7, 5 * GIB),))

    assert accounts(big).pools[1].unattributed_bytes == 55 * GIB


def test_mig_instances_are_shares_of_their_gpu_once_each() -> None:
    """Two compute instances of one GPU instance share its memory: 16,925 MiB are counted once."""
    instances = (
        GpuInstance(2, ("MIG-a", "MIG-b"), memory(71424, 0, 16925, 54499)),
        GpuInstance(3, ("MIG-c",), memory(66048, 0, 100, 65948)),
    )
    parent = gpu("NVIDIA H200", memory=memory(143771, 613, 17025, 126133), mig_enabled=True, instances=instances)

    found = accounts(parent)

    assert [share.id for share in found.shares] == ["gpu0.mig2", "gpu0.mig3"]
    assert [share.label for share in found.shares] == ["GPU 0 · MIG 2", "GPU 0 · MIG 3"]
    assert (
        sum(int(share.limit_bytes) for share in found.shares if isinstance(share.limit_bytes, int)) == 137472 * MIB
    )
    assert found.pools[1].size_bytes == 143771 * MIB
    assert found.devices[0].headroom_after_reclaim_bytes == 65948 * MIB


def test_gpu_without_permission_still_shows_its_instances() -> None:
    """NO_PERMISSION on the parent: its use is absent with that reason, its instances keep their values."""
    parent = gpu(
        "NVIDIA H100",
        memory=Absent.NOT_PERMITTED,
        mig_enabled=True,
        instances=(GpuInstance(1, ("MIG-a",), memory(40448, 0, 448, 40000)),),
    )

    found = accounts(parent)

    assert found.pools[1].used_bytes is Absent.NOT_PERMITTED
    assert found.shares[0].used_bytes == 448 * MIB
    assert found.devices[0].headroom_after_reclaim_bytes == 40000 * MIB


@pytest.mark.parametrize("reason", [Absent.NOT_AVAILABLE, Absent.INCONSISTENT])
def test_failing_card_is_never_counted_as_system_ram(reason: Absent) -> None:
    """An error stays an error: no pool, no share, architecture `unknown`, and an unchanged host."""
    host = ram(16 * GIB)

    found = accounts(gpu("NVIDIA B200", memory=reason, state="lost", codes={"memory_info": 15}), host=host)

    assert found.pools == (host,)
    assert found.shares == ()
    assert found.devices[0].architecture is Architecture.UNKNOWN
    assert found.devices[0].state == "lost"
    assert "memory_info returned NVML_ERROR_GPU_IS_LOST" in found.devices[0].evidence


def test_restricted_container_is_not_classified_as_unified() -> None:
    """NOT_SUPPORTED alone can mean a restricted container: nothing confirms unified memory, so it is unknown."""
    found = accounts(gpu("NVIDIA H100", memory=NO, bar1_bytes=NO), contained=True)

    assert found.devices[0].architecture is Architecture.UNKNOWN
    assert "a container may restrict access" in found.devices[0].evidence[-1]


def test_mixed_machine_is_accounted_per_device() -> None:
    """A coherent GPU beside a PCI card: three pools, none inside another."""
    size, hbm = 600 * GIB, 95 * GIB
    b300 = gpu(
        "NVIDIA B300", memory=memory(97280, 0, 0, 97280), numa_node=1, pci="0009:01:00.0", addressing_mode="ats"
    )
    rtx = gpu("NVIDIA RTX PRO 6000", memory=memory(97887, 500, 0, 97387), pci="0001:01:00.0", uuid="GPU-2")

    found = accounts(
        b300, rtx, host=ram(100 * GIB, size), nodes=(Node(1, hbm, 90 * GIB, 90 * GIB, has_cpus=False),)
    )

    assert [(pool.id, pool.kind.value) for pool in found.pools] == [
        ("ram", "system_ram"),
        ("gpu0", "vram"),
        ("gpu1", "hbm"),
    ]
    assert found.pools[0].size_bytes == size - hbm
    assert found.machine.architecture == "mixed"


def test_ids_follow_the_bus_and_not_nvmls_order() -> None:
    """If a reboot reverses NVML's order, gpu0 is still the same card."""
    first = gpu("A", memory=memory(8192, 0, 0, 8192), pci="0000:01:00.0", index=1, uuid="GPU-a")
    second = gpu("B", memory=memory(8192, 0, 0, 8192), pci="0000:41:00.0", index=0, uuid="GPU-b")

    assert [device.uuid for device in accounts(second, first).devices] == ["GPU-a", "GPU-b"]
    assert [device.uuid for device in accounts(first, second).devices] == ["GPU-a", "GPU-b"]


def test_missing_gpu_keeps_its_number() -> None:
    """It is listed as missing, has no pool, and does not make a machine of equal GPUs mixed."""
    cards = [
        gpu("H100", memory=memory(81559, 479, 0, 81080), pci=f"0000:{bus}:00.0", uuid=f"GPU-{bus}")
        for bus in ("1b", "43")
    ]
    gone = MissingGpu("GPU-1b", "0000:1b:00.0", "H100")
    reading = NvmlReading("580.126.09", "13.0", (cards[1],), missing=(gone,))

    found = Composer().compose([Findings(pools=(ram(GIB),), machine=Machine("test"), nvml=reading)])

    assert [(device.id, device.uuid, device.state) for device in found.devices] == [
        ("gpu0", "GPU-1b", "missing"),
        ("gpu1", "GPU-43", "ok"),
    ]
    assert [pool.id for pool in found.pools] == ["ram", "gpu1"]
    assert found.machine is not None
    assert found.machine.architecture == "discrete"


def test_process_memory_is_listed_by_pool() -> None:
    """In the CUDA Pool on a unified machine, in the instance under MIG, in the card otherwise."""
    mig = gpu(
        "NVIDIA H100",
        memory=memory(81559, 479, 600, 80480),
        pci="0000:02:00.0",
        instances=(GpuInstance(1, ("MIG-a",), memory(40448, 0, 448, 40000)),),
        processes=(GpuProcess(8, 448 * MIB, 1),),
    )
    card = gpu("NVIDIA RTX 4090", memory=memory(24564, 300, 64, 24200), processes=(GpuProcess(8, 64 * MIB),))
    held = accounts(card, mig, pids=(8,)).processes[0]
    in_pool = accounts(gb10(GpuProcess(9, GIB)), host=ram(GIB, SPARK), pids=(9,)).processes[0]

    assert held.device_bytes == {"gpu0": 64 * MIB, "gpu1.mig1": 448 * MIB}
    assert held.footprint_bytes == GIB + 512 * MIB
    assert in_pool.device_bytes == {"cuda0": GIB}


def test_cuda_pool_is_unknown_where_processes_are_hidden() -> None:
    """A container's list is partial: the pool has no use value, and the list and a note state why."""
    hidden = Machine("test", in_container=True, sees_all_processes=False)

    found = accounts(gb10(GpuProcess(9, GIB)), host=ram(30 * GIB, SPARK), machine=hidden, pids=(9,))

    assert found.shares[0].used_bytes is Absent.NOT_PERMITTED
    assert found.devices[0].process_list == "partial"
    assert "outside this container" in found.devices[0].notes[0]
    assert found.processes[0].device_bytes == {"cuda0": GIB}


def test_free_memory_by_cuda_is_shown_beside_the_headroom() -> None:
    """With one pool CUDA reports MemFree as free, and page cache as used: both values are shown, named apart."""
    host = ram(30 * GIB, SPARK)

    device = accounts(gb10(), host=host).devices[0]

    assert device.api_free_bytes == {"cuda": host.free_bytes}
    assert device.headroom_after_reclaim_bytes == host.available_bytes


def test_node_of_a_gh200_keeps_its_values_when_nvml_is_stale() -> None:
    """HBM is read from the NUMA node; values that only NVML has are stale, and MemTotal is still counted once."""
    node = Node(1, 96 * GIB, 60 * GIB, 55 * GIB, has_cpus=False)
    gh200 = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 2, 96767), bar1_bytes=NO, numa_node=1)

    found = accounts(gh200, host=ram(100 * GIB, 576 * GIB), nodes=(node,), rejected=frozenset({"nvml"}))

    assert [(pool.id, pool.size_bytes) for pool in found.pools] == [("ram", 480 * GIB), ("gpu0", 96 * GIB)]
    assert found.pools[1].available_bytes == 60 * GIB
    assert found.shares[0].used_bytes is Absent.STALE
    assert found.devices[0].state == "stalled"


def test_unchanged_reading_is_accounted_again_after_other_changes() -> None:
    """Changes of memory, machine, nodes or staleness are applied; without any, the pool is the same object."""
    figures = memory(81559, 479, 20210, 60870)
    hopper = gpu("NVIDIA GH200", memory=figures, numa_node=1, processes=(GpuProcess(5, GIB),))
    answer = NvmlReading("580.126.09", "13.0", (hopper, replace(gb10(GpuProcess(6, GIB)), pci="0000:02:00.0")))
    discrete = replace(answer, gpus=(hopper,))
    grace = Machine("test", in_container=True)
    node = Node(1, 79 * GIB, 59 * GIB, 59 * GIB, has_cpus=False)
    places = [
        Findings(pools=(ram(used * GIB, size * GIB),), machine=machine, nodes=nodes)
        for used, size, machine, nodes in (
            (10, 64, Machine("test"), ()),
            (20, 64, Machine("test"), ()),
            (20, 128, Machine("test"), ()),
            (20, 128, grace, ()),
            (30, 128, grace, (node,)),
        )
    ]
    composer = Composer()

    for reading in (answer, discrete):
        for place in (*places, *reversed(places)):
            for stale in (frozenset[str](), frozenset({"nvml"})):
                got = composer.compose([place, Findings(nvml=reading, stale=stale)])
                fresh = Composer().compose([place, Findings(nvml=replace(reading), stale=stale)])
                assert got == replace(fresh, nvml=got.nvml)

    twice = [composer.compose([places[4], Findings(nvml=discrete)]).pools[1] for _ in range(2)]
    assert twice[0] is twice[1]


LAPTOP = memory(8188, 330, 14, 7844)


def test_suspended_gpu_keeps_its_size_and_has_no_other_figure() -> None:
    """It is no lost GPU: its state is ok, and it says since when it sleeps."""
    asleep = gpu(
        "NVIDIA RTX 2000 Ada",
        memory=LAPTOP,
        processes=Absent.SUSPENDED,
        asleep=Asleep("suspended", 1_700_000_000.0),
    )
    found = accounts(asleep)
    (device,), vram = found.devices, found.pools[1]

    assert (vram.size_bytes, vram.used_bytes, vram.available_bytes) == (8188 * MIB, *[Absent.SUSPENDED] * 2)
    assert (vram.unattributed_bytes, device.headroom_after_reclaim_bytes) == (Absent.SUSPENDED, Absent.SUSPENDED)
    assert (device.busy_ratio, device.power_watts, device.process_list) == (Absent.SUSPENDED,) * 3
    assert (device.state, device.architecture, device.details["power"]) == (
        "ok",
        Architecture.DISCRETE,
        "suspended",
    )
    assert device.notes[0].startswith("Suspended since 2023-11-14 22:13:20 UTC.")
    assert all(check.verdict is Verdict.OK for check in gpu_checks(found))


def test_gpu_that_has_never_been_read_has_no_pool() -> None:
    unread = gpu("", uuid=NEVER, memory=NEVER, processes=NEVER, asleep=Asleep("suspended", NEVER))
    found = accounts(unread)
    (device,) = found.devices

    assert [pool.id for pool in found.pools] == ["ram"]
    assert (device.architecture, device.uuid, device.headroom_after_reclaim_bytes) == (
        Architecture.UNKNOWN,
        NEVER,
        NEVER,
    )
    assert device.evidence == ("it has been suspended since memwatchd started, so its driver has not been asked",)
    assert device.notes[0].startswith("Suspended since before memwatchd started to read it.")
    assert all(check.verdict is Verdict.OK for check in gpu_checks(found))


def test_idle_gpu_that_is_left_alone_says_so() -> None:
    idle = gpu("NVIDIA RTX 2000 Ada", memory=LAPTOP, asleep=Asleep("idle", 1_700_000_000.0))
    (device,) = accounts(idle).devices

    assert device.notes == ("Idle and not read since 2023-11-14 22:13:20 UTC, so that it can be suspended.",)
    assert device.details["power"] == "idle"


def gpu_checks(found: Accounts) -> list[Check]:
    """Return what `memwatch doctor` says about a GPU and its pool, without its notes."""
    snapshot = replace(calm_workstation(), pools=found.pools, shares=found.shares, devices=found.devices)
    return [
        check
        for check in run_checks(snapshot)
        if check.id.startswith(("devices.", "pools.")) and ".notes." not in check.id
    ]


HBM = 95 * GIB
UNREAD = (Node(0), Node(1))  # as from buddyinfo, while the files of the nodes cannot be read
READ = (Node(0, 480 * GIB, 380 * GIB, 370 * GIB, has_cpus=True), Node(1, HBM, 90 * GIB, 90 * GIB, has_cpus=False))
NO_SUCH_CALL = {"numa_node": int(Code.FUNCTION_NOT_FOUND)}


@pytest.mark.parametrize(
    ("fields", "nodes", "architecture"),
    [
        ({"numa_node": 1}, READ, Architecture.COHERENT),
        ({"numa_node": 1}, UNREAD, Architecture.UNKNOWN),
        ({"numa_node": 1}, UNREAD[:1], Architecture.UNKNOWN),  # a list without sizes is no list of all nodes
        ({"numa_node": 1}, (), Architecture.UNKNOWN),
        ({"numa_node": 1}, READ[:1], Architecture.DISCRETE),  # it is not online
        # Drivers before R555 lack the call, which is no answer.
        ({"codes": NO_SUCH_CALL}, READ, Architecture.UNKNOWN),
        ({"codes": NO_SUCH_CALL}, UNREAD, Architecture.UNKNOWN),
        ({"codes": NO_SUCH_CALL}, (READ[0], Node(1)), Architecture.UNKNOWN),
        ({"codes": NO_SUCH_CALL}, READ[:1], Architecture.DISCRETE),
        ({"codes": NO_SUCH_CALL}, (READ[0], replace(READ[1], size_bytes=24 * GIB)), Architecture.DISCRETE),
        ({"numa_node": Absent.NOT_AVAILABLE, "codes": {"numa_node": 999}}, READ, Architecture.UNKNOWN),
        # The driver says that it is none.
        ({"codes": {"numa_node": int(Code.NOT_SUPPORTED)}}, READ, Architecture.DISCRETE),
    ],
)
def test_gpu_memory_is_counted_once_if_nodes_cannot_be_read(
    fields: dict[str, object], nodes: tuple[Node, ...], architecture: Architecture
) -> None:
    """A file or call that failed is no evidence that MemTotal lacks the GPU's memory: then it is no pool."""
    size = 575 * GIB
    gh200 = gpu("NVIDIA GH200 480GB", memory=memory(97871, 1103, 2, 96766), bar1_bytes=NO, **fields)

    found = accounts(gh200, host=ram(100 * GIB, size), nodes=nodes)

    assert found.devices[0].architecture is architecture
    in_memtotal = architecture is not Architecture.DISCRETE
    assert sum(pool.size_bytes for pool in found.pools) == (size if in_memtotal else size + 97871 * MIB)


def test_old_driver_on_a_machine_with_one_node_keeps_its_pool() -> None:
    """One node, and System RAM smaller than the card: MemTotal cannot contain its memory."""
    card = gpu("Tesla A40", memory=memory(46068, 0, 0, 46068), codes=NO_SUCH_CALL)
    for host, nodes in ((ram(16 * GIB, 32 * GIB), UNREAD), (ram(16 * GIB, 64 * GIB), UNREAD[:1])):
        (device,) = accounts(card, host=host, nodes=nodes).devices
        assert (device.architecture, device.evidence[1]) == (
            Architecture.DISCRETE,
            "no visible NUMA node has its size",
        )
