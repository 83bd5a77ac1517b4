"""Leased bytes count as used for others, in every pool, share and headroom that they lie in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.leased import (
    choose_places,
    find_room,
    held_by_pool,
    list_targets,
    with_leases_used,
)
from memwatch.core.leases import Lease, still_held
from memwatch.core.model import Absent, Quality, Share, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import answer_beside_leases, answer_size
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from memwatchd.settings.schema import DEMOS

GIB = 1 << 30


def demo(name: str) -> Snapshot:
    return next(read_frames(path_of(name)))


def lease(snapshot: Snapshot, target: str, count: int) -> Lease:
    places = choose_places(snapshot, target, count)
    return Lease("lease_1", "train.py", target, 42, count, places, 0.0, 60.0)


def headrooms(snapshot: Snapshot) -> dict[str, int | Absent]:
    return {device.id: device.headroom_after_reclaim_bytes for device in snapshot.devices}


@pytest.mark.parametrize("name", DEMOS)
def test_lease_of_a_device_lowers_its_headroom_by_its_bytes(name: str) -> None:
    """Of every demo's devices, and the free part of the headroom as well. Pools still add up."""
    here = demo(name)
    for device in here.devices:
        beside = with_leases_used(here, [lease(here, device.id, GIB)])
        after = next(one for one in beside.devices if one.id == device.id)

        assert isinstance(device.headroom_after_reclaim_bytes, int)
        assert isinstance(device.headroom_bytes, int)
        assert after.headroom_after_reclaim_bytes == device.headroom_after_reclaim_bytes - GIB
        assert after.headroom_bytes == device.headroom_bytes - GIB
        assert beside.total.size_bytes == here.total.size_bytes


def test_lease_of_system_ram_lowers_the_headroom_of_unified_devices_only() -> None:
    for name, is_unified in (("dgx-spark", True), ("jetson-orin", True), ("strix-halo", True), ("rtx4090", False)):
        here = demo(name)
        before, after = here.devices[0], with_leases_used(here, [lease(here, "ram", GIB)]).devices[0]

        assert isinstance(before.headroom_after_reclaim_bytes, int)
        assert after.headroom_after_reclaim_bytes == before.headroom_after_reclaim_bytes - (
            GIB if is_unified else 0
        )


def test_lease_of_one_gpu_leaves_the_others() -> None:
    here = demo("h100x8-mig")
    after = headrooms(with_leases_used(here, [lease(here, "gpu3", 10 * GIB)]))

    changed = {name for name, room in headrooms(here).items() if after[name] != room}
    assert changed == {"gpu3"}


def test_lease_of_an_apu_fills_its_carve_out_first() -> None:
    """The rest is GTT, a part of System RAM."""
    here = demo("strix-halo")
    carve_out = here.pools[1].available_bytes
    found = lease(here, "gpu0", 4 * GIB)

    assert isinstance(carve_out, int)
    assert found.held == {"gpu0": carve_out, "gpu0.gtt": 4 * GIB - carve_out}
    assert held_by_pool([found], here.shares) == {"gpu0": carve_out, "ram": 4 * GIB - carve_out}


def test_device_lease_with_huge_pages_takes_huge_pages() -> None:
    """CUDA on a GB10 with huge pages allocates from these, which are in use already."""
    here = demo("dgx-spark")
    ram = replace(here.pools[0], set_aside_bytes=16 * GIB, set_aside_free_bytes=12 * GIB)
    device = replace(here.devices[0], headroom_after_reclaim_bytes=12 * GIB, headroom_bytes=12 * GIB)
    here = replace(here, pools=(ram,), devices=(device,))
    by_device = with_leases_used(here, [lease(here, "gpu0", 5 * GIB)])
    by_pool = with_leases_used(here, [lease(here, "ram", 5 * GIB)])

    assert by_device.devices[0].headroom_after_reclaim_bytes == 7 * GIB
    assert by_device.pools[0].available_bytes == ram.available_bytes
    assert by_pool.devices[0].headroom_after_reclaim_bytes == 12 * GIB


def test_leases_take_no_more_than_a_pool_has() -> None:
    """A program may have taken the memory meanwhile."""
    here = demo("rtx4090")
    whole = here.pools[1].size_bytes
    leases = [Lease(str(one), "x", "gpu0", 1, whole, {"gpu0": whole}, 0.0, 1.0) for one in range(3)]
    beside = with_leases_used(here, leases)

    assert (beside.pools[1].used_bytes, beside.pools[1].available_bytes) == (whole, 0)
    assert beside.devices[0].headroom_after_reclaim_bytes == 0


def test_unknown_figures_stay_unknown() -> None:
    here = demo("rtx4090")
    pool = replace(here.pools[1], used_bytes=Absent.STALE, available_bytes=Absent.STALE)
    device = replace(here.devices[0], headroom_after_reclaim_bytes=Absent.STALE, headroom_bytes=Absent.STALE)
    here = replace(here, pools=(here.pools[0], pool), devices=(device,))
    beside = with_leases_used(here, [Lease("1", "x", "gpu0", 1, GIB, {"gpu0": GIB}, 0.0, 1.0)])

    assert beside.devices[0].headroom_after_reclaim_bytes is Absent.STALE
    assert beside.pools[1] == pool


def test_machine_without_held_bytes_is_unchanged() -> None:
    here = demo("rtx4090")

    assert with_leases_used(here, []) is here
    assert with_leases_used(here, [Lease("1", "x", "gpu0", 1, GIB, {"gpu0": 0}, 0.0, 1.0)]) is here


def test_room_of_a_target_is_that_of_the_device_before_the_pool() -> None:
    here = demo("strix-halo")
    room = find_room(here, "gpu0")

    assert room is not None
    assert room.headroom_after_reclaim_bytes == here.devices[0].headroom_after_reclaim_bytes
    assert find_room(here, "gpu7") is None
    assert list_targets(here) == ["ram", "gpu0"]


def test_bytes_that_arrive_fill_places_in_their_order() -> None:
    assert still_held({"a": 3, "b": 5}, 0) == {"a": 3, "b": 5}
    assert still_held({"a": 3, "b": 5}, 4) == {"a": 0, "b": 4}
    assert still_held({"a": 3, "b": 5}, 99) == {"a": 0, "b": 0}


def test_lease_of_system_ram_counts_against_a_containers_limit() -> None:
    """`fit` there counts what the limit leaves. GPU memory is not charged to the container."""
    here = demo("dgx-spark")
    limit = Share("cgroup", ShareKind.CGROUP, "limit", "ram", 2 * GIB, "", Quality.MEASURED, limit_bytes=16 * GIB)
    inside = replace(here.machine, in_container=True)
    here = replace(here, shares=(*here.shares, limit), machine=inside)
    by_pool, by_device = (with_leases_used(here, [lease(here, name, 5 * GIB)]) for name in ("ram", "gpu0"))
    rooms = [find_room(one, "ram") for one in (here, by_pool, by_device)]

    assert [room and room.headroom_after_reclaim_bytes for room in rooms] == [14 * GIB, 9 * GIB, 14 * GIB]


@pytest.mark.parametrize("unknown", ["device", "pool"])
def test_headroom_is_not_lowered_by_figures_of_which_one_is_unknown(unknown: str) -> None:
    """Of the device or of its pool: the other figure stays as it is."""
    here = demo("rtx4090")
    if unknown == "device":
        device = replace(here.devices[0], headroom_after_reclaim_bytes=Absent.STALE, headroom_bytes=Absent.STALE)
        here = replace(here, devices=(device,))
    else:
        pool = replace(here.pools[1], used_bytes=Absent.STALE, available_bytes=Absent.STALE)
        here = replace(here, pools=(here.pools[0], pool))

    beside = with_leases_used(here, [Lease("1", "x", "gpu0", 1, GIB, {"gpu0": GIB}, 0.0, 1.0)])

    assert beside.devices[0].headroom_after_reclaim_bytes == here.devices[0].headroom_after_reclaim_bytes
    assert beside.devices[0].headroom_bytes == here.devices[0].headroom_bytes


def test_answer_names_the_leases_of_its_device() -> None:
    """Of two leases on a machine with eight GPUs, the one on another GPU lowers nothing there."""
    here = demo("h100x8-mig")
    rooms = {name: room for name, room in headrooms(here).items() if isinstance(room, int) and room > 2 * GIB}
    first, other = list(rooms)[:2]
    leases = (lease(here, first, GIB), replace(lease(here, other, 2 * GIB), id="lease_2", name="other.py", pid=43))

    found = answer_beside_leases(replace(here, leases=leases), "", lambda seen: answer_size(GIB, "", seen))
    reasons = {one.device: one.reason for one in found.fit.verdicts}

    assert reasons[first].endswith("; 1.0 GiB is leased to train.py (42)")
    assert reasons[other].endswith("; 2.0 GiB is leased to other.py (43)")
    assert sum("is leased to" in one for one in reasons.values()) == 2
