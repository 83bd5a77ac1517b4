"""Test where bytes are looked for: on the fullest of several GPUs, in System RAM, and in both memories of APUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Process, Quality, Share, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.planning.fit import Demand, _holders, compute_fit, find_split
from support.fakes import GIB
from support.gpu_cards import cards
from support.sample_parts import MEASURED
from support.sample_snapshots import critical_gb10, discrete_gpu


def with_rooms(*rooms: int, ram_bytes: int = 50 * GIB) -> Snapshot:
    """Return a machine with one GPU of 80 GiB for each of the rooms, in GiB."""
    base = cards(len(rooms), ram_bytes=ram_bytes)
    devices = [
        replace(one, headroom_after_reclaim_bytes=room * GIB) for one, room in zip(base.devices, rooms, strict=True)
    ]
    return replace(base, devices=tuple(devices))


@pytest.mark.parametrize(
    ("each", "spare"),
    [(20 * GIB, 10 * GIB), (30 * GIB, 0), (30 * GIB + 1, None), (60 * GIB, None), (90 * GIB, None)],
)
@pytest.mark.parametrize("rooms", [(30, 70, 50), (70, 50, 30), (50, 30, 70)])
def test_split_fits_if_the_fullest_of_its_gpus_has_room(
    rooms: tuple[int, ...], each: int, spare: int | None
) -> None:
    """The emptiest of three, or their mean, would take more."""
    found = find_split([(3, "tensor parallel", Demand(each))], with_rooms(*rooms), 0)

    assert (found.spare_bytes if found else None) == spare


def test_split_takes_the_gpus_with_the_most_room() -> None:
    """On two of three, the fullest of the two decides."""
    found = find_split([(2, "tensor parallel", Demand(40 * GIB))], with_rooms(30, 70, 50), 0)

    assert found is not None
    assert (found.devices, found.spare_bytes) == (("gpu1", "gpu2"), 10 * GIB)
    assert found.reason.endswith("leaves 10.0 GiB on the fullest")


@pytest.mark.parametrize(("reserve", "spare"), [(10 * GIB, 0), (10 * GIB + 1, None)])
def test_reserve_stays_free_on_the_fullest(reserve: int, spare: int | None) -> None:
    found = find_split([(2, "tensor parallel", Demand(40 * GIB))], with_rooms(30, 70, 50), reserve)

    assert (found.spare_bytes if found else None) == spare


@pytest.mark.parametrize(("ram_gib", "fits"), [(43, False), (44, True)])
def test_system_ram_of_a_split_holds_the_part_of_every_gpu(ram_gib: int, fits: bool) -> None:
    """Two GPUs move 20 GiB each, and the reserve of 4 GiB is kept there too."""
    demand = Demand(40 * GIB, ram_bytes=20 * GIB)
    found = find_split([(2, "FSDP", demand)], with_rooms(70, 70, ram_bytes=ram_gib * GIB), 4 * GIB)

    assert (found is not None) is fits


def test_context_of_each_gpu_counts_in_a_split() -> None:
    found = find_split([(2, "tensor parallel", Demand(40 * GIB, runtime_bytes=GIB))], with_rooms(70, 50), 0)

    assert found is not None
    assert (found.bytes, found.spare_bytes) == (41 * GIB, 9 * GIB)


def carve_out(vram: int = 16, room: int = 60, ram: int = 44) -> Snapshot:
    """Return an APU in GiB: its own memory, and GTT in System RAM, of which both GPU and CPU can take `ram`."""
    base = cards(1, vram * GIB, ram * GIB)
    share = Share("gpu0.gtt", ShareKind.GTT, "GTT", "ram", 0, "test", MEASURED, device="gpu0")
    device = replace(
        base.devices[0],
        vendor="Apple",  # no context of CUDA or HIP to add
        allocates_from=("gpu0.vram", "gpu0.gtt"),
        headroom_after_reclaim_bytes=room * GIB,
        headroom_bytes=Absent.NOT_AVAILABLE,
    )
    return replace(base, shares=(share,), devices=(device,))


@pytest.mark.parametrize(
    ("on_gpu", "moved", "spare"),
    [
        (10, 0, 50),  # nothing is moved: the headroom of the GPU decides
        (10, 40, 4),  # its own 16 GiB take the GPU's part, and System RAM the other
        (16, 44, 0),
        (16, 45, -1),
        (20, 40, 0),  # 4 GiB of the GPU's part and the moved 40 are both in System RAM
        (20, 41, -1),
    ],
)
def test_own_memory_of_a_carve_out_is_not_looked_for_in_system_ram(on_gpu: int, moved: int, spare: int) -> None:
    """Bytes of the carve-out do not count in System RAM too, and the others count there once."""
    demand = Demand(on_gpu * GIB, ram_bytes=moved * GIB)

    found = compute_fit(demand, carve_out()).verdicts[0]

    assert (found.spare_bytes, found.fits) == (spare * GIB, spare >= 0)


def test_bytes_in_system_ram_of_a_carve_out_gain_nothing() -> None:
    """Moved bytes stay in the same memory, and only then the verdict says so."""
    inside, beyond = (
        compute_fit(Demand(need * GIB, ram_bytes=8 * GIB), carve_out()).verdicts[0] for need in (16, 17)
    )

    assert "nothing is gained" not in inside.reason
    assert "nothing is gained" in beyond.reason
    assert (inside.need_bytes, beyond.need_bytes) == (16 * GIB, 25 * GIB)


@pytest.mark.parametrize("count", [2, 4])
def test_gpus_with_gtt_in_the_same_system_ram_are_not_added_up(count: int) -> None:
    """A split needs memory that no other device has."""
    one = carve_out()
    twins = [replace(one.devices[0], id=f"gpu{number}", allocates_from=("gpu0.gtt",)) for number in range(1, count)]

    assert find_split([(count, "tensor", Demand(GIB))], replace(one, devices=(*one.devices, *twins)), 0) is None


@pytest.mark.parametrize("has_ram", [True, False])
def test_what_a_card_cannot_take_is_not_in_system_ram(has_ram: bool) -> None:
    """Only a GPU that also allocates from System RAM has the moved bytes in the same memory."""
    here = discrete_gpu()
    here = here if has_ram else replace(here, pools=tuple(one for one in here.pools if one.id.endswith("vram")))

    first, *_ = compute_fit(Demand(64 * GIB, 2 * GIB), here).verdicts

    assert (first.device, first.need_bytes, first.ram_need_bytes) == ("gpu0", 64 * GIB, 2 * GIB)
    assert "the same memory" not in first.reason


@pytest.mark.parametrize(("kind", "held"), [(ShareKind.GPU_BUFFERS, 5 * GIB), (ShareKind.CUDA_POOL, 7 * GIB)])
def test_buffers_that_may_be_part_of_a_process_are_not_counted_twice(kind: ShareKind, held: int) -> None:
    """Buffers of a driver in System RAM are shared memory, which RSS may contain; memory of CUDA is beside it."""
    share = Share("gpu0.part", kind, "", "ram", 5 * GIB, "x", Quality.MEASURED)
    job = Process(7, 1.0, "job", 2 * GIB, 7 * GIB, "x", device_bytes={"gpu0.part": 5 * GIB})
    here = replace(critical_gb10(), shares=(share,), processes=(job,))

    assert [one.held_bytes for one in _holders(here, {"ram"})] == [held]
