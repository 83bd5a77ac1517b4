"""Limits of cgroups on GPU memory as shares of the GPU's pool, and the driver's total inside a partition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.accounting.gpu_limits import MAX_LIMITS, with_gpu_limits
from memwatch.core.drivers.nvml.records import CgroupLimit, GpuProcess, GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.linux.dmem import DmemGroup, DmemReading, RegionUse
from memwatch.core.model import Absent, Architecture, Device, Process, Quality, Share, ShareKind
from memwatch.core.pressure.inputs import build_targets
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import CHARGED, GPU_CHARGING, Machine
from support.fakes import GIB, ram
from support.nvidia_accounting import gb10, gpu, memory

REGION = "nvidia/0000:01:00.0/vidmem"
CONTAINER = f"/docker/{'4f1c' * 16}"


def card(**fields: object) -> GpuReading:
    return gpu("NVIDIA L40S", memory=memory(46068, 608, 20000, 25460), **fields)


def group(cgroup: str, used: int, limit: int | None, region: str = REGION, **fields: int) -> DmemGroup:
    return DmemGroup(cgroup, (RegionUse(region, used * GIB, limit and limit * GIB, **fields),))


def compose(
    reading: GpuReading,
    *groups: DmemGroup,
    own: str = "/system.slice/memwatchd.service",
    contained: bool = False,
    capacity: int = 0,
    shares: tuple[Share, ...] = (),
    pids: Sequence[int] = (),
    stale: frozenset[str] = frozenset(),
    details: dict[str, str] | None = None,
) -> Findings:
    dmem = DmemReading(groups, own, {REGION: capacity} if capacity else {}) if groups or capacity else None
    machine = Machine("test", in_container=contained, details=details or {})
    return Composer().compose(
        [
            Findings(
                pools=(ram(64 * GIB, 128 * GIB),),
                shares=shares,
                machine=machine,
                nvml=NvmlReading("615.71", "13.4", (reading,)),
                dmem=dmem,
                stale=stale,
                processes=tuple(Process(pid, 1.0, "python", GIB, GIB, "rss") for pid in pids),
            )
        ]
    )


def limits(found: Findings) -> dict[str, Share]:
    return {share.id: share for share in found.shares if share.kind is ShareKind.GPU_LIMIT}


def test_limit_is_a_share_of_the_pool_and_a_pressure_target() -> None:
    """Nothing is added to the pool, and its device keeps its headroom."""
    found = compose(card(), group("/system.slice/vllm.service", 6, 8, peak_bytes=7 * GIB, protected_bytes=2 * GIB))

    (share,) = limits(found).values()
    assert (share.id, share.within, share.device) == ("gpu0.limit.system.slice/vllm.service", "gpu0", "gpu0")
    assert (share.label, share.used_bytes, share.limit_bytes) == ("vllm.service limit", 6 * GIB, 8 * GIB)
    assert (share.peak_bytes, share.note) == (7 * GIB, "2.0 GiB guaranteed; peak 7.0 GiB")
    assert found.pools[1].size_bytes == 46068 << 20
    assert found.devices[0].headroom_after_reclaim_bytes == found.pools[1].available_bytes
    targets = {one.id: one for one in build_targets(found.pools, found.shares, found.devices, PressureRules())}
    assert targets[share.id].available_bytes == 2 * GIB


def test_limit_inside_another_is_a_share_of_it() -> None:
    """A parent's use contains its children's, so they are never neighbours."""
    found = compose(card(), group(f"{CONTAINER}/inner", 3, 4), group(CONTAINER, 6, 8), group("/docker", 6, None))

    inner, outer = (limits(found)[f"gpu0.limit.docker/{'4f1c' * 3}{rest}"] for rest in ("/inner", ""))
    assert (outer.within, inner.within) == ("gpu0", outer.id)
    assert outer.label == "container 4f1c4f1c4f1c limit"


def test_limit_above_its_parent_is_reduced_to_it() -> None:
    found = compose(card(), group("/a", 1, 8), group("/a/b", 1, 100), group("/c", 1, 900))

    shares = limits(found)
    assert shares["gpu0.limit.a/b"].limit_bytes == 8 * GIB
    assert shares["gpu0.limit.c"].limit_bytes == 46068 << 20
    assert "exceeds its parent" in str(shares["gpu0.limit.c"].note)


def test_region_that_is_no_gpu_is_named_and_not_guessed() -> None:
    """Only the PCI address decides, also on a machine with one GPU."""
    found = compose(
        card(), group("/a", 1, 8, region="nvidia/0000:02:00.0/vidmem"), group("/b", 1, 8, region="tpu/hbm")
    )

    assert limits(found) == {}
    assert found.machine is not None
    assert "Limits on nvidia/0000:02:00.0/vidmem, tpu/hbm are not shown" in found.machine.explanation


def test_only_the_largest_limits_are_shown() -> None:
    """The number of series is bounded, and the device says how many are left out."""
    found = compose(card(), *(group(f"/group{at}", 1, at + 1) for at in range(MAX_LIMITS + 6)))

    shares = limits(found)
    assert len(shares) == MAX_LIMITS == 64
    assert "gpu0.limit.group69" in shares
    assert "gpu0.limit.group0" not in shares
    assert found.devices[0].notes[-1].endswith("6 are left out.")


def test_odd_names_have_safe_and_different_ids() -> None:
    """Ids are labels, parts of queries and of HTML; a name may contain anything but a newline."""
    found = compose(card(), group("/a b", 1, 8), group("/a,b", 1, 8), group('/a"b\\\x1b', 1, 8))

    assert len(limits(found)) == 3
    assert not any(set(its_id) & set(' ,"\\\x1b') for its_id in limits(found))


def test_stale_readings_have_no_use() -> None:
    found = compose(card(), group("/a", 1, 8), stale=frozenset({"dmem"}))

    assert limits(found)["gpu0.limit.a"].used_bytes is Absent.STALE


def test_kernels_bytes_are_listed_by_owner() -> None:
    """Those of a container are its cgroup's, which contains its descendants."""
    found = compose(
        card(), group(CONTAINER, 6, 8), group(f"{CONTAINER}/inner", 6, None), group("/x.service", 2, None)
    )

    held = {(one.kind, one.name): one.device_bytes for one in found.kernel_held}
    assert held["container", "4f1c4f1c4f1c"] == {"gpu0": 6 * GIB}
    assert held["unit", "x.service"] == {"gpu0": 2 * GIB}


def test_drivers_limits_count_where_the_kernel_has_none() -> None:
    """They do not nest: a limit inside another is a share of the pool as well."""
    outer, inner = CgroupLimit("/a", 0, 8 * GIB, 6 * GIB), CgroupLimit("/a/b", GIB, 4 * GIB, 3 * GIB)
    kernel = group("/a", 5, 7)

    driver = limits(compose(card(limits=(outer, inner))))
    both = limits(compose(card(limits=(outer, inner)), kernel))

    assert {share.within for share in driver.values()} == {"gpu0"}
    assert driver["gpu0.limit.a/b"].source == "nvml:memory_limits_v1"
    assert [share.used_bytes for share in both.values()] == [5 * GIB]


def own_limit(size: int) -> dict[str, object]:
    return {"limits": (CgroupLimit("/", 0, size << 20, 1 << 30, own=True),)}


@pytest.mark.parametrize("by_kernel", [True, False])
def test_total_inside_a_partition_is_a_limit_and_no_pool(by_kernel: bool) -> None:
    """The card's size is unknown: no pool, and a limit that bounds the headroom."""
    inside = replace(card(), memory=memory(20480, 0, 15360, 5120), processes=(GpuProcess(7, GIB),))
    if by_kernel:
        found = compose(inside, group("/", 15, 20), own="/", contained=True, pids=[7])
    else:
        found = compose(replace(inside, **own_limit(20480)), contained=True, pids=[7])

    assert [pool.id for pool in found.pools] == ["ram"]
    (share,) = limits(found).values()
    assert (share.id, share.within) == ("gpu0.limit", "gpu0")
    assert (share.used_bytes, share.limit_bytes) == (15 * GIB, 20 * GIB)
    assert found.devices[0].allocates_from == ("gpu0.limit",)
    assert found.devices[0].headroom_after_reclaim_bytes == 5 * GIB
    assert found.processes[0].device_bytes == {"gpu0.limit": GIB}
    assert found.machine is not None
    assert "inside a GPU memory partition" in found.machine.explanation
    assert "20.0 GiB" in found.machine.explanation


def test_limit_inside_the_own_partition_is_a_share_of_it() -> None:
    inside = replace(card(), memory=memory(20480, 0, 15360, 5120))

    found = compose(inside, group("/", 15, 20), group("/job", 5, 8), own="/", contained=True)

    assert limits(found)["gpu0.limit.job"].within == "gpu0.limit"


def test_total_above_the_own_limit_is_the_card() -> None:
    """A driver that does not adjust its total. The limit bounds the headroom of the container."""
    found = compose(card(), group("/", 3, 4), own="/", contained=True)

    assert found.pools[1].size_bytes == 46068 << 20
    assert limits(found)["gpu0.limit.self"].within == "gpu0"
    assert found.devices[0].headroom_after_reclaim_bytes == GIB


def test_smallest_limit_around_the_daemon_decides() -> None:
    """Its service has 8 GiB, and the slice around it 20. A limit of the slice above the card makes no partition."""
    own = "/system.slice/memwatchd.service"
    inside = replace(card(), memory=memory(8192, 0, 1024, 7168))

    partition = compose(inside, group(own, 1, 8), group("/system.slice", 15, 20), own=own)
    whole = compose(card(), group(own, 1, 8), group("/system.slice", 15, 60), own=own)

    assert [pool.id for pool in partition.pools] == ["ram"]
    assert limits(partition)["gpu0.limit"].limit_bytes == 8 * GIB
    assert [(pool.id, pool.size_bytes) for pool in whole.pools[1:]] == [("gpu0", 46068 << 20)]


def test_limit_of_the_cards_size_leaves_a_known_card() -> None:
    """The root cgroup has the card's size: then a limit as large as the card is no partition."""
    own = "/a"
    known = compose(card(), group(own, 1, 45), own=own, capacity=46068 << 20)
    unknown = compose(replace(card(), memory=memory(46080, 0, 1024, 45056)), group("/", 1, 45), own="/")

    assert [pool.id for pool in known.pools] == ["ram", "gpu0"]
    assert [pool.id for pool in unknown.pools] == ["ram"]


def test_unified_gpu_in_a_partition_is_no_carveout() -> None:
    """Its total is a limit on the CUDA Pool, which stays a part of System RAM."""
    inside = replace(gb10(**own_limit(20480)), memory=memory(20480, 0, 1024, 19456))

    found = compose(inside, contained=True)

    assert [pool.id for pool in found.pools] == ["ram"]
    assert found.devices[0].architecture is Architecture.UNIFIED
    assert (found.shares[0].id, found.shares[0].limit_bytes) == ("cuda0", 20 * GIB)


def test_limit_on_a_unified_gpu_is_inside_its_cuda_pool() -> None:
    found = compose(gb10(limits=(CgroupLimit("/a", 0, 8 * GIB, GIB),)))

    assert limits(found)["gpu0.limit.a"].within == "cuda0"


def test_mig_gpu_has_no_partition() -> None:
    """Its figures are not adjusted."""
    found = compose(replace(card(mig_enabled=True), **own_limit(46068)), contained=True)

    assert found.pools[1].size_bytes == 46068 << 20


@pytest.mark.parametrize(("charged", "headroom"), [(True, 2 * GIB), (False, 64 * GIB)])
def test_charged_memory_of_an_integrated_gpu_is_bounded_by_the_container(charged: bool, headroom: int) -> None:
    """Only if memory.stat has a gpu line, and not for NVIDIA's driver."""
    limit = Share(
        "cgroup", ShareKind.CGROUP, "Container limit", "ram", 6 * GIB, "t", Quality.MEASURED, limit_bytes=8 * GIB
    )
    apu = Device("gpu0", "AMD", "Radeon 8060S", Architecture.UNIFIED, headroom_after_reclaim_bytes=64 * GIB)
    machine = Machine(in_container=True, details={GPU_CHARGING: CHARGED} if charged else {})
    found = Findings(shares=(limit,), devices=(apu, replace(apu, id="gpu1", vendor="NVIDIA")), machine=machine)

    amd, nvidia = with_gpu_limits(found).devices

    assert (amd.headroom_after_reclaim_bytes, nvidia.headroom_after_reclaim_bytes) == (headroom, 64 * GIB)
