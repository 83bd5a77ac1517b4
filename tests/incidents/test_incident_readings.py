"""Sizes of processes in a pool, from a snapshot and from the ticks of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes, Content, Pool, PoolKind, Process, Quality, Share, ShareKind
from memwatch.reporting.history.notable_ticks import Holder, PoolUse, Tick
from memwatch.reporting.incidents.readings import (
    Frame,
    FrameReader,
    HolderKey,
    Places,
    build_frame,
    read_ticks,
    size_in,
)
from support.fakes import GIB
from support.sample_snapshots import calm_workstation

RAM = Places(frozenset({"ram", "cuda0"}), is_ram=True)
VRAM = Places(frozenset({"gpu0.vram"}), is_ram=False)


def process(footprint: Bytes, rss: Bytes = 3 * GIB, **held: Bytes) -> Process:
    places: Mapping[str, Bytes] = {name.replace("_", "."): figure for name, figure in held.items()}
    return Process(7, 1.0, "train", rss, footprint, "rss + device", device_bytes=places)


@pytest.mark.parametrize(
    ("one", "size"),
    [
        (process(3 * GIB), 3 * GIB),
        (process(8 * GIB, cuda0=5 * GIB), 8 * GIB),  # of an integrated GPU
        (process(23 * GIB, gpu0_vram=20 * GIB), 3 * GIB),
        (process(28 * GIB, cuda0=5 * GIB, gpu0_vram=20 * GIB), 5 * GIB),
        (process(Absent.NOT_PERMITTED, cuda0=5 * GIB), 5 * GIB),
        (process(Absent.NOT_PERMITTED, cuda0=2 * GIB), 3 * GIB),
        (process(Absent.NOT_PERMITTED, cuda0=Absent.NOT_PERMITTED), 3 * GIB),
        (process(Absent.NOT_PERMITTED, Absent.NOT_PERMITTED), None),
        (replace(process(Absent.NOT_SUPPORTED, cuda0=5 * GIB), footprint_range=(6 * GIB, 8 * GIB)), 6 * GIB),
    ],
)
def test_size_in_system_ram_is_the_footprint_only_if_all_of_it_is_there(one: Process, size: int | None) -> None:
    """Memory of a discrete GPU is not in System RAM. Without a footprint the largest known part counts."""
    assert size_in(one, RAM) == size


@pytest.mark.parametrize(
    ("one", "size"),
    [
        (process(23 * GIB, gpu0_vram=20 * GIB), 20 * GIB),
        (process(23 * GIB, gpu0_vram=0), 0),
        (process(23 * GIB, gpu1_vram=20 * GIB), None),
        (process(3 * GIB), None),
    ],
)
def test_size_on_a_gpu_is_its_memory_there(one: Process, size: int | None) -> None:
    assert size_in(one, VRAM) == size


def frame_with(contents: tuple[Content, ...]) -> Frame:
    base = calm_workstation()
    pool = Pool(
        "ram",
        PoolKind.SYSTEM_RAM,
        "Unified memory",
        32 * GIB,
        20 * GIB,
        12 * GIB,
        "vm_stat",
        Quality.MEASURED,
        free_bytes=9 * GIB,
        contents=contents,
    )
    metal = Share(
        "gpu0.metal", ShareKind.METAL_WORKING_SET, "Metal working set", pool.id, 14 * GIB, "ioreg", Quality.MEASURED
    )
    limit = replace(metal, id="limit", kind=ShareKind.CGROUP, label="a limit")
    return build_frame(1.0, replace(base, pools=(pool,), shares=(metal, limit), processes=()))


def test_memory_of_devices_is_read_where_a_pool_has_no_contents() -> None:
    """As on a Mac. Page cache is what is available and not free, as in the map of the overview."""
    plain, known = frame_with(()), frame_with((Content("anonymous", 20 * GIB), Content("free", 12 * GIB)))
    reading, other = (FrameReader(one.pools[0].id).read(one) for one in (plain, known))

    assert reading is not None
    assert other is not None
    assert (reading.shares, reading.parts["page_cache"]) == ({"Metal working set": 14 * GIB}, 3 * GIB)
    assert (other.shares, "page_cache" in other.parts) == ({}, False)


def tick_with(footprint: Bytes, rss: Bytes, held: Mapping[str, Bytes]) -> Tick:
    pools = tuple(PoolUse(name, name, 64 * GIB, 32 * GIB, 32 * GIB) for name in ("ram", "gpu0.vram"))
    holder = Holder(7, "train", "root", None, None, rss, footprint, held)
    return Tick(1, 1_700_000_000.0, 5.0, pools, (), (holder,))


@pytest.mark.parametrize(
    ("footprint", "held", "size", "on_gpu"),
    [
        (3 * GIB, {}, 3 * GIB, False),
        (8 * GIB, {"cuda0": 5 * GIB}, 8 * GIB, True),
        (23 * GIB, {"gpu0.vram": 20 * GIB}, 3 * GIB, False),
        (23 * GIB, {"gpu0.mig1": 20 * GIB}, 3 * GIB, False),
        (28 * GIB, {"cuda0": 5 * GIB, "gpu0.vram": 20 * GIB}, 3 * GIB, True),
        (Absent.NOT_SUPPORTED, {"cuda0": 5 * GIB}, 3 * GIB, True),
    ],
)
def test_tick_has_the_footprint_in_system_ram_only_if_all_of_it_is_there(
    footprint: Bytes, held: Mapping[str, Bytes], size: int, on_gpu: bool
) -> None:
    """A MIG instance is memory of its GPU, although a tick does not have it as a pool."""
    (reading,) = read_ticks([tick_with(footprint, 3 * GIB, held)], "ram")

    found = reading.holders[HolderKey(7, 0.0)]
    assert (found.size, found.on_gpu) == (size, on_gpu)


def test_tick_has_the_memory_on_a_gpu_for_that_pool() -> None:
    (reading,) = read_ticks([tick_with(23 * GIB, 3 * GIB, {"gpu0.vram": 20 * GIB})], "gpu0.vram")

    assert reading.holders[HolderKey(7, 0.0)].size == 20 * GIB
