"""Memory of System RAM within cgroup limits: that of the container binds all, that of memwatchd's unit no other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.leased import find_room, with_leases_used
from memwatch.core.backends.devices import Room, read_system_ram
from memwatch.core.backends.finder import build_backends, build_cpu
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.leases import Lease
from memwatch.core.model import OWN_LIMIT, Absent, Architecture, Bytes, Share
from memwatch.core.snapshot import CHARGED, GPU_CHARGING, Snapshot
from memwatch.library.backend_selection import limit_cpu
from memwatch.library.host import with_own_limit
from memwatch.planning.fit import CPU, compute_fit
from memwatch.reporting.render.summary import compute_headroom
from memwatch_monitor.neighbours.tick import build_tick
from memwatch_monitor.render.status_line import find_room as find_status_room
from support.fakes import GIB
from support.sample_snapshots import container_with_limit, critical_gb10

LIMIT, USED = 4 * GIB, 3_650_722_201
CONTAINER = container_with_limit()
UNIT = replace(CONTAINER, machine=replace(CONTAINER.machine, in_container=False))
NONE = replace(UNIT, shares=())
RAM = CONTAINER.pools[0]
(LIMITED,) = CONTAINER.shares
OWN = replace(LIMITED, id=OWN_LIMIT, label="Unit limit", limit_bytes=2 * GIB, used_bytes=GIB)
Rooms = tuple[Bytes | None, Bytes | None, Bytes | None]
WHOLE: Rooms = (RAM.size_bytes, RAM.free_bytes, RAM.available_bytes)
IN_CONTAINER: Rooms = (LIMIT, LIMIT - USED, LIMIT - USED)
IN_OWN: Rooms = (2 * GIB, GIB, GIB)


def everywhere(seen: Snapshot) -> dict[str, Rooms | None]:
    """Return the memory for a program on the CPU as each part reports it."""
    (device,) = build_cpu(ProbeResults("linux", "root", "CPU"), seen).devices
    verdict = next(one for one in compute_fit(1, seen).verdicts if one.device == CPU)
    found, status, tick = compute_headroom(seen), find_status_room(seen), build_tick(seen, "run")
    assert found is not None
    assert found == status
    return {
        "lease": find_room(seen, "ram"),
        "backends": (device.size_bytes, device.headroom_bytes, device.headroom_after_reclaim_bytes),
        "fit": (verdict.size_bytes, verdict.headroom_bytes, verdict.headroom_after_reclaim_bytes),
        "status line": (
            read_system_ram(seen).room.size_bytes,
            found.headroom_bytes,
            found.headroom_after_reclaim_bytes,
        ),
        "tick": (tick.headroom_size, tick.headroom, tick.headroom_after_reclaim),
    }


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(CONTAINER, IN_CONTAINER), (UNIT, WHOLE), (NONE, WHOLE)],
    ids=["container", "unit with MemoryMax", "none"],
)
def test_reading_of_a_machine_is_within_the_container_and_not_within_memwatchds_unit(
    seen: Snapshot, expected: Rooms
) -> None:
    assert everywhere(seen) == dict.fromkeys(("lease", "backends", "fit", "status line", "tick"), expected)


@pytest.mark.parametrize(
    ("seen", "own", "is_contained", "expected"),
    [
        (UNIT, OWN, False, IN_OWN),
        (NONE, OWN, False, IN_OWN),
        (CONTAINER, OWN, True, IN_OWN),
        (CONTAINER, replace(OWN, limit_bytes=8 * GIB), True, (8 * GIB, RAM.free_bytes, 7 * GIB)),
        (CONTAINER, replace(OWN, limit_bytes=LIMIT, used_bytes=GIB), True, IN_CONTAINER),
        (CONTAINER, None, True, IN_CONTAINER),
        (CONTAINER, None, False, WHOLE),
        (UNIT, None, False, WHOLE),
        (NONE, replace(OWN, used_bytes=Absent.STALE), False, (2 * GIB, 2 * GIB, 2 * GIB)),
        (NONE, replace(OWN, limit_bytes=RAM.size_bytes * 2, used_bytes=0), False, WHOLE),
    ],
    ids=[
        "own unit beside memwatchd's",
        "unit",
        "smaller container in that of memwatchd",
        "larger container beside that of memwatchd",
        "same container",
        "same container, whose limit is not read",
        "outside of memwatchd's container",
        "outside of memwatchd's unit",
        "use unknown",
        "limit above the machine",
    ],
)
def test_process_has_its_own_limit_and_no_other_ones(
    seen: Snapshot, own: Share | None, is_contained: bool, expected: Rooms
) -> None:
    found = everywhere(with_own_limit(seen, own, is_contained))

    assert found == dict.fromkeys(found, expected)


def test_limit_is_named_where_it_is_tighter_than_the_machine() -> None:
    full = replace(RAM, available_bytes=GIB // 4, used_bytes=RAM.size_bytes - GIB // 4, free_bytes=0)
    tight, calm = compute_headroom(CONTAINER), compute_headroom(replace(CONTAINER, pools=(full,)))

    assert tight is not None
    assert calm is not None
    assert tight.label == "This container ⊂ System RAM"
    assert (calm.label, calm.headroom_after_reclaim_bytes) == ("System RAM", GIB // 4)
    assert compute_headroom(replace(CONTAINER, pools=(), shares=())) is None


def test_unknown_figures_stay_unknown_within_a_limit() -> None:
    unread = replace(LIMITED, limit_bytes=Absent.NOT_PERMITTED)
    unknown = Room(Absent.NOT_AVAILABLE, Absent.STALE, Absent.STALE)

    assert unknown.within(LIMITED) == unknown
    assert Room(8, 8, 8).within(unread) == (8, 8, 8)


def test_leases_of_others_count_in_the_same_container_only() -> None:
    """A program in another unit does not allocate within this one's limit."""
    lease = Lease("lease_1", "train.py", "ram", 42, GIB // 8, {"ram": GIB // 8}, 0.0, 60.0)
    inside, apart = CONTAINER, with_own_limit(UNIT, OWN, is_contained=False)

    rooms = [read_system_ram(with_leases_used(one, [lease])).room for one in (inside, apart)]

    assert [one.headroom_after_reclaim_bytes for one in rooms] == [LIMIT - USED - GIB // 8, GIB]


def test_backends_of_a_daemon_are_within_the_limit_of_the_program() -> None:
    """The CPU is; the GPU is not, as the kernel does not charge its memory."""
    found = build_backends(ProbeResults("linux", "root", "CPU", libcuda="libcuda.so.1"), critical_gb10(), 0.0)
    limited = limit_cpu(found, OWN)

    by_name = {one.name: one.devices for one in limited.backends}
    (cpu,) = by_name["cpu"]
    assert cpu.size_bytes == 2 * GIB
    assert isinstance(cpu.headroom_bytes, int)
    assert cpu.headroom_bytes <= GIB
    assert by_name["cuda"] == next(one.devices for one in found.backends if one.name == "cuda")
    assert limit_cpu(found, None) is found


@pytest.mark.parametrize(("details", "is_bound"), [({GPU_CHARGING: CHARGED}, True), ({}, False)])
def test_own_limit_binds_gpu_memory_where_the_kernel_charges_it(details: dict[str, str], is_bound: bool) -> None:
    spark = critical_gb10()
    card = replace(spark.devices[0], vendor="AMD", architecture=Architecture.UNIFIED)
    spark = replace(spark, devices=(card,), machine=replace(spark.machine, details=details))

    (device,) = with_own_limit(spark, replace(OWN, used_bytes=2 * GIB - 5), is_contained=False).devices

    assert (device.headroom_after_reclaim_bytes == 5) is is_bound
