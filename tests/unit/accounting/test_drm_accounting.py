"""Test memory accounting of Intel GPUs and of systems on a chip, from readings of their drivers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.drm.records import Basis, DrmCard, DrmClient, DrmReading, DrmRegion
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Architecture, Bytes, Content, Device, Pool, Process, Quality, Share
from memwatch.core.snapshot import Machine
from support.fakes import GIB, ram

MIB = 1 << 20
IGPU, DGPU = "0000:00:02.0", "0000:03:00.0"
VRAM = DrmRegion("vram0", 16 * GIB, 10 * GIB, "cgroup:dmem.current")


def card(driver: str = "xe", place: str = IGPU, *regions: DrmRegion) -> DrmCard:
    return DrmCard("card0", driver, place, place, ("card0", "renderD128"), "8086", "64a0", regions=regions)


def chip(driver: str = "panthor", place: str = "fb000000.gpu", node: str = "renderD128") -> DrmCard:
    return DrmCard("card1", driver, place, None, ("card1", node), compatible="arm,mali-valhall-csf")


def client(
    number: int,
    pids: tuple[int, ...] = (100,),
    driver: str = "xe",
    pdev: str | None = IGPU,
    basis: Basis | None = "resident",
    **resident: int,
) -> DrmClient:
    return DrmClient(driver, pdev, "renderD128", number, pids, basis, resident)


def composed_with(
    reading: DrmReading, *, machine: Machine | None = None, stale: bool = False, host: Pool | None = None
) -> Findings:
    unexplained = replace(ram(40 * GIB), unattributed_bytes=20 * GIB)
    return Composer().compose(
        [
            Findings(
                pools=(host or unexplained,),
                machine=machine or Machine("test"),
                processes=tuple(Process(pid, 1.0, "app", GIB, GIB, "rss") for pid in (100, 200)),
            ),
            Findings(drm=reading, stale=frozenset({"drm"}) if stale else frozenset()),
        ]
    )


def reading_of(*clients: DrmClient, cards: tuple[DrmCard, ...] = (), unreadable: int = 0) -> DrmReading:
    return DrmReading(cards or (card(),), clients, 10, unreadable)


def one(found: Findings) -> tuple[Device, Share]:
    (device,), (share,) = found.devices, found.shares
    return device, share


def held(found: Findings) -> dict[int, dict[str, Bytes]]:
    return {process.pid: dict(process.device_bytes) for process in found.processes}


def test_an_integrated_gpu_is_inside_system_ram() -> None:
    """Buffers in several regions, one set aside by firmware: a single share of System RAM, and no other pool."""
    found = composed_with(reading_of(client(1, gtt=2 * GIB, system=GIB, stolen=32 * MIB)))

    device, share = one(found)
    assert [pool.id for pool in found.pools] == ["ram"]
    assert (share.id, share.label, share.within, share.used_bytes) == (
        "gpu0.buffers",
        "GPU buffers",
        "ram",
        3 * GIB,
    )
    assert (share.quality, share.limit_bytes) == (Quality.DERIVED, Absent.NOT_SUPPORTED)
    assert device.architecture is Architecture.UNIFIED
    assert device.allocates_from == ("ram",)
    assert device.headroom_after_reclaim_bytes == 24 * GIB
    assert device.process_list == "complete"
    assert device.evidence == (
        "the driver is xe",
        "it is part of the processor (PCI device 00:02.0)",
        "clients hold gtt, stolen, system and no dedicated memory",
    )
    assert found.machine is not None
    assert found.machine.architecture == "unified"


def test_buffers_of_xe_are_subtracted_from_unattributed_memory() -> None:
    """Pages of xe come from page pools that no line of /proc/meminfo counts."""
    parts = (Content("anonymous", 20 * GIB), Content("unattributed", 20 * GIB), Content("free", 24 * GIB))
    host = replace(ram(40 * GIB), unattributed_bytes=20 * GIB, contents=parts)

    found = composed_with(reading_of(client(1, gtt=3 * GIB)), host=host)

    assert found.pools[0].unattributed_bytes == 17 * GIB
    assert {part.kind: part.size_bytes for part in found.pools[0].contents}["devices"] == 3 * GIB


@pytest.mark.parametrize(
    ("cards", "of"),
    [
        ((card("i915"),), client(1, driver="i915", system0=3 * GIB)),
        ((chip(),), client(1, driver="panthor", pdev=None, memory=3 * GIB)),
        ((chip("msm_dpu"),), client(1, driver="msm", pdev=None, memory=3 * GIB)),
    ],
    ids=["i915", "panthor", "msm"],
)
def test_buffers_of_shmem_drivers_are_not_subtracted_again(cards: tuple[DrmCard, ...], of: DrmClient) -> None:
    """i915, msm, panfrost and panthor allocate shmem pages, already in Shmem: they are not counted again."""
    found = composed_with(reading_of(of, cards=cards))

    device, share = one(found)
    assert device.architecture is Architecture.UNIFIED
    assert share.used_bytes == 3 * GIB
    assert found.pools[0].unattributed_bytes == 20 * GIB


def test_gpu_of_a_system_on_a_chip_is_matched_by_device_file() -> None:
    """Without a PCI address the device file joins client and card; the neural engine's client is left out."""
    engine = DrmClient("rocket", None, "accel0", 1, (200,), "resident", {"memory": GIB})
    own = replace(
        client(1, driver="panthor", pdev=None, memory=100 * MIB), other={"panthor-resident-memory": 7 * MIB}
    )

    found = composed_with(reading_of(own, engine, cards=(chip(),)))

    device, share = one(found)
    assert (device.vendor, device.name, device.pci) == ("Arm", "Arm Mali", Absent.NOT_SUPPORTED)
    assert device.details == {"compatible": "arm,mali-valhall-csf"}
    assert share.used_bytes == 107 * MIB
    assert held(found) == {100: {"gpu0.buffers": 107 * MIB}, 200: {}}


def test_gpu_active_is_preferred_to_the_sum_of_clients() -> None:
    """GPUActive includes clients that may not be read. If two drivers use such pools, it belongs to neither."""
    reading = replace(reading_of(client(1, gtt=GIB), unreadable=3), gpu_active_bytes=3 * GIB)
    beside = replace(card("amdgpu", DGPU), name="card1", nodes=("card1", "renderD129"), vendor_id="1002")

    alone = one(composed_with(reading))[1]
    two = composed_with(replace(reading, cards=(*reading.cards, beside)))

    assert (alone.used_bytes, alone.source, alone.quality) == (3 * GIB, "meminfo:GPUActive", Quality.MEASURED)
    assert (two.shares[0].used_bytes, two.shares[0].source) == (GIB, "fdinfo:drm-resident")


def test_unreadable_processes_make_the_use_a_lower_bound() -> None:
    """The value covers readable processes, which a note states; the process list is partial."""
    device, share = one(composed_with(reading_of(client(1, gtt=GIB), unreadable=3)))

    assert share.used_bytes == GIB
    assert share.note is not None
    assert "lower bound" in share.note
    assert device.process_list == "partial"
    assert any("cannot read some processes" in note for note in device.notes)


def test_use_is_not_permitted_in_a_container() -> None:
    """Missing clients cannot even be detected there, so there is no value."""
    found = composed_with(reading_of(client(1, gtt=GIB)), machine=Machine("box", sees_all_processes=False))

    device, share = one(found)
    assert share.used_bytes is Absent.NOT_PERMITTED
    assert device.process_list == "partial"
    assert held(found)[100] == {"gpu0.buffers": GIB}
    assert found.pools[0].unattributed_bytes == 20 * GIB


def test_a_client_of_two_processes_is_counted_once_and_listed_twice() -> None:
    """An inherited descriptor: 1 GiB in the share, and both processes are listed with it."""
    found = composed_with(reading_of(client(1, (100, 200), gtt=GIB)))

    device, share = one(found)
    assert share.used_bytes == GIB
    assert held(found) == {100: {"gpu0.buffers": GIB}, 200: {"gpu0.buffers": GIB}}
    assert any("listed for each" in note for note in device.notes)


def test_buffers_that_clients_share_make_the_sum_an_estimate() -> None:
    """A window's buffer belongs to the application and to the compositor, and both count it."""
    sharing = [
        replace(client(number, pids=(100 * number,), gtt=GIB), shared={"gtt": 100 * MIB}) for number in (1, 2)
    ]

    found = composed_with(reading_of(*sharing))

    share = one(found)[1]
    assert (share.used_bytes, share.quality) == (2 * GIB, Quality.ESTIMATED)
    assert share.note == "shared buffers are counted for each process"
    assert held(found) == {100: {"gpu0.buffers": GIB}, 200: {"gpu0.buffers": GIB}}


def test_buffers_that_clients_of_one_process_share_make_a_range() -> None:
    """It holds them once, if the two share them, or twice, if each shares them with another process."""
    sharing = [replace(client(number, gtt=GIB), shared={"gtt": 100 * MIB}) for number in (1, 2)]

    found = composed_with(reading_of(*sharing))

    least = 2 * GIB - 100 * MIB
    process = found.processes[0]
    assert process.device_bytes == {"gpu0.buffers": least}
    assert (process.footprint_low_bytes, process.footprint_high_bytes) == (least, 3 * GIB)
    assert (one(found)[1].used_bytes, one(found)[1].quality) == (least, Quality.ESTIMATED)


def test_total_size_of_buffers_is_an_estimate() -> None:
    """drm-total-* counts buffers without memory behind them."""
    of = client(1, driver="lima", pdev=None, basis="total", memory=GIB)

    share = one(composed_with(reading_of(of, cards=(chip("lima"),))))[1]

    assert (share.used_bytes, share.source, share.quality) == (GIB, "fdinfo:drm-total", Quality.ESTIMATED)


def test_use_beyond_system_ram_is_inconsistent() -> None:
    """A driver that reports more System RAM than the machine has is rejected."""
    share = one(composed_with(reading_of(client(1, gtt=65 * GIB))))[1]

    assert share.used_bytes is Absent.INCONSISTENT


def test_discrete_card_with_a_counter_is_a_pool() -> None:
    """VRAM by the card's own counter; clients' use explains a part; spilled buffers lie in System RAM."""
    clients = (client(1, pdev=DGPU, vram0=8 * GIB, gtt=GIB), client(2, (200,), pdev=DGPU, vram0=GIB))

    found = composed_with(reading_of(*clients, cards=(card("xe", DGPU, VRAM),)))

    device, share = one(found)
    pool = found.pools[1]
    assert (pool.id, pool.size_bytes, pool.used_bytes, pool.available_bytes) == (
        "gpu0",
        16 * GIB,
        10 * GIB,
        6 * GIB,
    )
    assert (pool.unattributed_bytes, pool.overlap) == (GIB, False)
    assert (share.within, share.used_bytes) == ("ram", GIB)
    assert device.architecture is Architecture.DISCRETE
    assert device.allocates_from == ("gpu0",)
    assert device.headroom_after_reclaim_bytes == 6 * GIB
    assert held(found) == {100: {"gpu0": 8 * GIB, "gpu0.buffers": GIB}, 200: {"gpu0": GIB}}


def test_clients_that_hold_more_than_is_used_overlap() -> None:
    """A shared buffer counts for each of its clients: the remainder is 0 and marked as overlap."""
    found = composed_with(reading_of(client(1, pdev=DGPU, vram0=11 * GIB), cards=(card("xe", DGPU, VRAM),)))

    assert (found.pools[1].unattributed_bytes, found.pools[1].overlap) == (0, True)


def test_discrete_card_of_unknown_size_has_no_pool() -> None:
    """Mainline i915 reports it only to ioctls with CAP_PERFMON: no pool, no headroom, and a note on the reason."""
    of = client(1, driver="i915", pdev=DGPU, local0=8 * GIB, system0=GIB)

    found = composed_with(reading_of(of, cards=(card("i915", DGPU),)))

    device, share = one(found)
    assert [pool.id for pool in found.pools] == ["ram"]
    assert device.architecture is Architecture.DISCRETE
    assert device.headroom_after_reclaim_bytes is Absent.NOT_SUPPORTED
    assert any("size of its memory" in note for note in device.notes)
    assert share.used_bytes == GIB


def test_discrete_card_of_unknown_use_keeps_its_size() -> None:
    """The size is in sysfs, the use is unknown: not 0, and not the sum of the readable clients."""
    size = DrmRegion("local0", 16 * GIB, Absent.NOT_PERMITTED, "sysfs:lmem_total_bytes")

    found = composed_with(
        reading_of(client(1, driver="i915", pdev=DGPU, local0=GIB), cards=(card("i915", DGPU, size),))
    )

    pool = found.pools[1]
    assert pool.size_bytes == 16 * GIB
    assert (pool.used_bytes, pool.available_bytes) == (Absent.NOT_PERMITTED, Absent.NOT_PERMITTED)
    assert pool.unattributed_bytes is Absent.NOT_PERMITTED
    assert found.devices[0].headroom_after_reclaim_bytes is Absent.NOT_PERMITTED


def test_discrete_card_without_clients_is_unknown() -> None:
    """No client and no counter: the pool it allocates from is unknown, and not assumed to be System RAM."""
    found = composed_with(reading_of(cards=(card("i915", DGPU),)))

    (device,) = found.devices
    assert device.architecture is Architecture.UNKNOWN
    assert (found.shares, device.allocates_from) == ((), ())


def test_integrated_gpu_without_clients_uses_zero_bytes() -> None:
    """All processes were read and none has the device open."""
    device, share = one(composed_with(reading_of()))

    assert (device.architecture, share.used_bytes) == (Architecture.UNIFIED, 0)


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_a_driver_without_memory_keys_is_not_zero(driver: str) -> None:
    """i915 before Linux 6.7 lists its clients without their memory."""
    device, share = one(composed_with(reading_of(client(1, driver=driver, basis=None), cards=(card(driver),))))

    assert share.used_bytes is Absent.NOT_SUPPORTED
    assert device.process_list is Absent.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (card("xe", DGPU), "no client reports the location of its buffers"),
        (card("i915", DGPU), "no client reports the location of its buffers"),
        (card("nouveau", DGPU), "nouveau does not report the memory of its clients"),
    ],
)
def test_card_without_clients_says_why_its_memory_is_unknown(of: DrmCard, reason: str) -> None:
    """Intel's drivers report memory once a client has some, nouveau never."""
    (device,) = composed_with(reading_of(cards=(of,))).devices

    assert device.architecture is Architecture.UNKNOWN
    assert device.evidence == (f"the driver is {of.driver}", reason)


def test_nouveau_is_listed_and_its_memory_is_not_supported() -> None:
    """Its fdinfo has no memory keys: no pool, no share, and no 0."""
    found = composed_with(reading_of(cards=(replace(card("nouveau", DGPU), vendor_id="10de", device_id="1f82"),)))

    (device,) = found.devices
    assert (device.vendor, device.name, device.driver) == ("NVIDIA", "NVIDIA GPU 1f82", "nouveau")
    assert (found.shares, device.allocates_from) == ((), ())
    assert device.notes == ("Its driver does not report memory.",)


def test_displays_and_amd_cards_are_left_out() -> None:
    """A virtual display without memory keys, AMD's GPUs and their partitions have no device in this list."""
    cards = (
        replace(card("virtio-pci", "0000:00:01.0"), vendor_id="1af4"),
        replace(card("amdgpu", DGPU), vendor_id="1002"),
        DrmCard("card8", Absent.NOT_AVAILABLE, "amdgpu_xcp.3", None, ("card8", "renderD136")),
    )

    found = composed_with(reading_of(client(1, driver="amdgpu", pdev=DGPU, gtt=GIB), cards=cards))

    assert (found.devices, found.shares) == ((), ())


def test_numbers_follow_the_order_of_cards() -> None:
    """Two GPUs: numbers in the order in which the reading lists them, each share with its own."""
    clients = (client(1, gtt=GIB), client(1, (200,), pdev=DGPU, vram0=GIB, gtt=2 * MIB))
    cards = (card(), replace(card("xe", DGPU, VRAM), name="card1"))

    found = composed_with(reading_of(*clients, cards=cards))

    assert [(device.id, device.pci) for device in found.devices] == [("gpu0", IGPU), ("gpu1", DGPU)]
    assert [(share.id, share.label, share.used_bytes) for share in found.shares] == [
        ("gpu0.buffers", "GPU buffers 0", GIB),
        ("gpu1.buffers", "GPU buffers 1", 2 * MIB),
    ]
    assert found.machine is not None
    assert found.machine.architecture == "mixed"


def test_stale_collector_keeps_devices_and_drops_values() -> None:
    """The device stays listed; its values are not repeated, and the remainder is unknown too."""
    found = composed_with(reading_of(client(1, gtt=GIB)), stale=True)

    device, share = one(found)
    assert (device.state, device.process_list) == ("stalled", Absent.STALE)
    assert share.used_bytes is Absent.STALE
    assert found.pools[0].unattributed_bytes is Absent.STALE
    assert held(found) == {100: {"gpu0.buffers": Absent.STALE}, 200: {}}


@pytest.mark.parametrize(("tiles", "quality"), [(1, Quality.MEASURED), (2, Quality.DERIVED)])
def test_sum_of_two_tiles_is_derived(tiles: int, quality: Quality) -> None:
    """The counter of one is a measurement."""
    regions = [DrmRegion(f"vram{tile}", 16 * GIB, 10 * GIB, "cgroup:dmem.current") for tile in range(tiles)]

    found = composed_with(reading_of(client(1, pdev=DGPU, vram0=GIB), cards=(card("xe", DGPU, *regions),)))

    pool = found.pools[1]
    assert (pool.size_bytes, pool.used_bytes) == (tiles * 16 * GIB, tiles * 10 * GIB)
    assert pool.quality is quality
