"""Test the lower bound of the headroom: memory that is free without reclaim, along the same limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.accounting.relations import HeadroomCalculator
from memwatch.core.drivers.nvml.records import GpuInstance
from memwatch.core.findings import stale_device
from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.snapshot import Node
from support.fakes import GIB, ram
from support.nvidia_accounting import MIB, NO, SPARK, accounts, gb10, gpu, memory

SIZE = 64 * GIB
REASONS = st.sampled_from(Absent)
FIGURES = st.integers(0, SIZE)


def bounds_of(device: Device) -> tuple[Bytes, Bytes]:
    return device.headroom_bytes, device.headroom_after_reclaim_bytes


@pytest.mark.parametrize(
    ("used", "fields", "certain", "most"),
    [
        # MemFree is certain. Allocations failed on one while MemAvailable was 22.5 GiB (vllm#54200).
        (SPARK - 22 * GIB, {"free_bytes": 2 * GIB}, 2 * GIB, 22 * GIB),
        # The kernel's reserves are part of MemFree and not of MemAvailable.
        (SPARK - GIB, {"free_bytes": 2 * GIB}, GIB, GIB),
        # Free huge pages hold no page cache.
        (60 * GIB, {"set_aside_bytes": 40 * GIB, "set_aside_free_bytes": 16 * GIB}, 16 * GIB, 16 * GIB),
        (30 * GIB, {"free_bytes": Absent.NOT_AVAILABLE}, Absent.NOT_AVAILABLE, SPARK - 30 * GIB),
    ],
    ids=["page cache", "reserves", "huge pages", "unknown"],
)
def test_gb10_can_allocate_free_memory_at_once_and_page_cache_after_reclaim(
    used: int, fields: dict[str, Bytes], certain: Bytes, most: Bytes
) -> None:
    host = replace(ram(used, SPARK), **fields)

    assert bounds_of(accounts(gb10(), host=host).devices[0]) == (certain, most)


def test_vram_is_certain() -> None:
    """A driver does not reclaim: both bounds are its free memory, also where only an instance's is known."""
    card = accounts(gpu("NVIDIA H200", memory=memory(143771, 613, 0, 143158)))

    assert bounds_of(card.devices[0]) == (143158 * MIB, 143158 * MIB)


def test_hbm_that_is_a_numa_node_holds_page_cache() -> None:
    """GH200 in NUMA mode: MemFree of the node is certain, its page cache is not."""
    nodes = (
        Node(0, 400 * GIB, 300 * GIB, 250 * GIB, has_cpus=True),
        Node(1, 95 * GIB, 60 * GIB, 55 * GIB, has_cpus=False),
    )
    reading = gpu(
        "NVIDIA GH200 480GB",
        memory=memory(97871, 1103, 2, 96767),
        bar1_bytes=NO,
        addressing_mode="ats",
        numa_node=1,
    )

    found = accounts(reading, host=ram(135 * GIB, 495 * GIB), nodes=nodes)

    assert bounds_of(found.devices[0]) == (55 * GIB, 60 * GIB)


def test_free_memory_of_an_instance_is_certain_where_its_gpu_is_hidden() -> None:
    """NO_PERMISSION on the GPU in MIG mode."""
    instances = (GpuInstance(1, ("MIG-a",), memory(40448, 0, 448, 40000)),)
    parent = gpu("NVIDIA H100", memory=Absent.NOT_PERMITTED, mig_enabled=True, instances=instances)

    assert bounds_of(accounts(parent).devices[0]) == (40000 * MIB, 40000 * MIB)


def test_carve_out_without_a_headroom_has_the_same_reason() -> None:
    """Its driver reports a capacity that is not the GPU's."""
    reading = gpu("NVIDIA RTX Spark N1X", memory=memory(8128, 0, 1000, 7128))

    assert bounds_of(accounts(reading, host=ram(20 * GIB, 46 * GIB)).devices[0]) == (NO, NO)


def test_stale_device_has_neither_bound() -> None:
    found = stale_device(accounts(gb10(), host=ram(30 * GIB, SPARK)).devices[0])

    assert bounds_of(found) == (Absent.STALE, Absent.STALE)


@pytest.mark.parametrize(("limit", "certain"), [(10 * GIB, 4 * GIB), (3 * GIB, GIB)])
def test_limit_of_a_share_bounds_both(limit: int, certain: int) -> None:
    """GTT with 2 GiB in use: what the limit leaves, or MemFree if that is less."""
    host = replace(ram(SIZE - 20 * GIB, SIZE), free_bytes=4 * GIB)
    share = Share("gtt", ShareKind.GTT, "GTT", "ram", 2 * GIB, "x", Quality.MEASURED, limit_bytes=limit)
    device = Device("gpu0", "AMD", "x", Architecture.UNIFIED, allocates_from=("gtt",))

    found = HeadroomCalculator([host], [share]).with_headroom(device)

    assert bounds_of(found) == (certain, limit - 2 * GIB)


@pytest.mark.parametrize(("left", "certain"), [(Absent.STALE, Absent.STALE), (50 * GIB, 2 * GIB)])
def test_instance_has_no_certain_headroom_in_memory_whose_rest_is_unknown(left: Bytes, certain: Bytes) -> None:
    """HBM that is a NUMA node, with a MIG instance: the kernel's free bytes say nothing once the node is stale."""
    used = left if isinstance(left, Absent) else SIZE - left
    node = Pool("gpu0", PoolKind.HBM, "", SIZE, used, left, "x", Quality.MEASURED, free_bytes=2 * GIB)
    share = Share("mig", ShareKind.MIG_INSTANCE, "", "gpu0", GIB, "x", Quality.MEASURED, limit_bytes=10 * GIB)
    device = Device("gpu0", "NVIDIA", "x", Architecture.COHERENT, allocates_from=("mig",))

    assert bounds_of(HeadroomCalculator([node], [share]).with_headroom(device)) == (certain, 9 * GIB)


@st.composite
def pools(draw: st.DrawFn, kind: PoolKind) -> Pool:
    """Any pool: known or not, with huge pages or without."""
    left: Bytes = draw(FIGURES | REASONS)
    free = draw(FIGURES | REASONS)
    aside = draw(st.sampled_from([0, GIB, 8 * GIB]))
    return Pool(
        kind.value,
        kind,
        "",
        SIZE,
        left if isinstance(left, Absent) else SIZE - left,
        left,
        "x",
        Quality.MEASURED,
        free_bytes=free,
        set_aside_bytes=aside,
        set_aside_free_bytes=draw(st.integers(0, aside) | REASONS) if aside else 0,
    )


@given(st.data())
def test_certain_headroom_never_exceeds_the_headroom(data: st.DataObject) -> None:
    """For every mix of pools, limits, chains and unknown values. It is known only if the headroom is."""
    found = [data.draw(pools(kind)) for kind in (PoolKind.SYSTEM_RAM, PoolKind.HBM)]
    parents = [pool.id for pool in found]
    shares: list[Share] = []
    for number in range(data.draw(st.integers(0, 4))):
        within = data.draw(st.sampled_from([*parents, *(share.id for share in shares)]))
        used, limit = data.draw(FIGURES | REASONS), data.draw(FIGURES | REASONS)
        kind, name = ShareKind.GTT, f"s{number}"
        shares.append(Share(name, kind, "", within, used, "x", Quality.MEASURED, limit_bytes=limit))
    places = st.sampled_from([*parents, *(share.id for share in shares)])
    device = Device(
        "gpu0",
        data.draw(st.sampled_from(["NVIDIA", "AMD"])),
        "x",
        Architecture.UNIFIED,
        allocates_from=tuple(data.draw(st.lists(places, min_size=1, max_size=4, unique=True))),
        headroom_after_reclaim_bytes=data.draw(
            st.sampled_from([Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, Absent.STALE])
        ),
    )

    certain, most = bounds_of(HeadroomCalculator(found, shares).with_headroom(device))

    if isinstance(most, Absent):
        assert isinstance(certain, Absent)
    elif isinstance(certain, int):
        assert 0 <= certain <= most
