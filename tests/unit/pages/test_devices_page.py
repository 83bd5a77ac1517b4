"""The devices page: identity, memory, processes and errors of each GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from memwatch.core.model import Absent, Bytes, Process, Vitals
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.memory_map import build_maps
from memwatch.reporting.render.words import fault
from memwatch_web.pages.devices import MAX_HOLDERS, build_entries
from memwatch_web.pages.renderer import Pages
from support.demo_frames import moments_of
from support.html_reader import Reader, read
from support.sample_mig import eight_by_seven
from support.sample_parts import process
from support.sample_snapshots import (
    calm_workstation,
    critical_gb10,
    discrete_gpu,
    hostile_names,
    mig_server,
    partition,
    unknown_figures,
)

GIB = 1 << 30


HOT = Vitals(83.0, 412.4, {"sm": 1_980_000_000, "memory": 2_619_000_000}, ("power_cap", "thermal"))


def with_device(snapshot: Snapshot, **fields: Any) -> Snapshot:
    first, *others = snapshot.devices
    return replace(snapshot, devices=(replace(first, **fields), *others))


def holding(pid: int, place: str, held: Bytes) -> Process:
    return replace(process(pid, f"p{pid}", "ada", GIB), device_bytes={place: held})


def test_device_lists_its_own_pools_and_shares() -> None:
    """A discrete GPU has its VRAM. A GB10 has the CUDA Pool and system RAM."""
    card, gb10 = build_entries(discrete_gpu())[0], build_entries(critical_gb10())[0]

    assert [place.label for place in card.places if place.is_allocated_from] == ["GPU 0 VRAM"]
    assert "CUDA Pool ⊂ System RAM" in [place.relation for place in gb10.places]
    assert "System RAM" in [place.label for place in gb10.places]


def test_pool_has_a_bar_and_its_processes_have_pages() -> None:
    """The bar is as long as the part in use. A share without a size has none."""
    snapshot = critical_gb10()
    pool, page = snapshot.pools[0], Pages().page("devices", snapshot).decode()
    assert isinstance(pool.used_bytes, int)
    assert isinstance(pool.size_bytes, int)

    bars = re.findall(r'<rect class="row-used" width="([0-9.]+)%"', page)

    assert [float(width) for width in bars] == [pytest.approx(100 * pool.used_bytes / pool.size_bytes, abs=0.001)]
    assert re.search(r'<a href="processes/\d+">', page)


def test_largest_processes_are_listed_and_the_rest_is_counted() -> None:
    """Unknown sizes and memory of other devices do not count."""
    card = discrete_gpu()
    place = card.devices[0].allocates_from[0]
    many = [holding(pid, place, pid * GIB) for pid in range(1, MAX_HOLDERS + 3)]
    unknown, elsewhere = holding(90, place, Absent.NOT_PERMITTED), holding(91, "gpu7", GIB)

    entry, *_ = build_entries(replace(card, processes=(*many, unknown, elsewhere)))

    assert [one.process.pid for one in entry.holders] == list(range(MAX_HOLDERS + 2, 2, -1))
    assert entry.more_holders == 2


def test_memory_of_one_process_is_summed_over_places() -> None:
    """VRAM and its spill into system RAM belong to the same process."""
    card = discrete_gpu()
    place = card.devices[0].allocates_from[0]
    share = card.shares[0] if card.shares else None
    parts = {place: 3 * GIB} | ({share.id: GIB} if share else {})

    entry, *_ = build_entries(
        replace(card, processes=(replace(process(7, "train", "ada", GIB), device_bytes=parts),))
    )

    assert entry.holders[0].held_bytes == sum(parts.values())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xid_79", "XID 79: GPU has fallen off the bus"),
        ("ecc_uncorrected", "ECC uncorrected"),
        ("row_remap_pending", "row remap pending"),
    ],
)
def test_error_kinds_use_the_names_of_the_vendors(kind: str, words: str) -> None:
    assert fault(kind) == words


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        (calm_workstation(), calm_workstation().machine.explanation),
        (critical_gb10(), "free at once 2.0 GiB"),
        (critical_gb10(), "after reclaim, up to 4.3 GiB"),
        (discrete_gpu(), "available to allocate"),
        (critical_gb10(), "CUDA Pool ⊂ System RAM"),
        (critical_gb10(), "Detection"),
        (mig_server(), "MIG 2g.20gb ⊂ GPU 0 VRAM"),
        (with_device(discrete_gpu(), state="needs_reset"), "needs reset"),
        (
            with_device(discrete_gpu(), errors={"xid_79": 2}, errors_seen_unix={"xid_79": 0.0}),
            "XID 79: GPU has fallen off the bus 2 1970-01-01 00:00:00 UTC",
        ),
        (with_device(discrete_gpu(), errors={"xid_79": 1}), "XID 79: GPU has fallen off the bus 1 —"),
        (with_device(discrete_gpu(), errors={}), "None reported."),
        (
            with_device(discrete_gpu(), **asdict(HOT)),
            "Sensors Temperature 83 °C Power 412 W SM clock 1,980 MHz Memory clock 2,619 MHz "
            "Throttled power cap, temperature",
        ),
        (with_device(discrete_gpu(), **asdict(replace(HOT, throttled=()))), "Throttled no"),
        (
            with_device(discrete_gpu(), **asdict(replace(HOT, clock_hertz=Absent.NOT_PERMITTED))),
            "Power 412 W Clocks — not permitted Throttled",
        ),
        (
            with_device(discrete_gpu(), **asdict(Vitals.absent(Absent.STALE))),
            "Temperature, power, clocks — stale",
        ),
        (with_device(discrete_gpu(), uuid=Absent.NOT_PERMITTED), "UUID — not permitted"),
        (
            replace(with_device(discrete_gpu(), process_list="partial"), processes=()),
            "No processes visible. Some processes cannot be seen from here.",
        ),
        (
            replace(with_device(discrete_gpu(), process_list="complete"), processes=()),
            "No processes.",
        ),
        (
            replace(with_device(discrete_gpu(), process_list=Absent.NOT_SUPPORTED), processes=()),
            "Process list: — not supported",
        ),
    ],
)
def test_page_contains_sentence(snapshot: Snapshot, sentence: str) -> None:
    """An empty process list reads "No processes." only if it is complete."""
    assert sentence in read(snapshot, "devices").text


def test_bars_of_a_page_have_one_scale() -> None:
    """The largest pool is as wide as the column, a quarter of it a quarter as wide."""
    snapshot = discrete_gpu()
    ram, first, second = snapshot.pools
    quarter = first.size_bytes // 4
    empty = replace(
        second, size_bytes=quarter, used_bytes=0, available_bytes=quarter, free_bytes=quarter, unattributed_bytes=0
    )
    small = replace(snapshot, pools=(ram, first, empty))

    bars = [entry.bars[0] for entry in build_entries(replace(small, pressure=()))]

    assert [bar.width for bar in bars] == [1.0, pytest.approx(0.25)]
    assert bars[0].parts[0].width == pytest.approx(21_260_088_115 / 25_757_220_864)
    assert bars[1].parts == ()


def test_share_of_a_unified_machine_is_inside_its_pool() -> None:
    """CUDA Pool ⊂ System RAM, to scale: its bytes are the first of those in use, then those of processes."""
    snapshot = critical_gb10()
    (bar,) = build_entries(snapshot)[0].bars
    ram, share = snapshot.pools[0], snapshot.shares[0]
    pool, held, rest = bar.parts

    assert bar.relations == (("CUDA Pool ⊂ System RAM", share.used_bytes),)
    assert (pool.name, pool.holder, pool.start) == ("CUDA Pool", "gpu", 0.0)
    assert isinstance(share.used_bytes, int)
    assert isinstance(ram.used_bytes, int)
    assert pool.width == pytest.approx(share.used_bytes / ram.size_bytes)
    assert (held.start, held.holder) == (pool.width, "processes")
    assert (rest.start, rest.holder) == (held.start + held.width, "unattributed")
    assert isinstance(ram.unattributed_bytes, int)
    assert rest.width == pytest.approx(ram.unattributed_bytes / ram.size_bytes)
    assert rest.start + rest.width == pytest.approx(ram.used_bytes / ram.size_bytes)


def test_use_of_a_pool_below_a_share_of_it_has_the_name_of_the_pool() -> None:
    """ "101.6 of 125.0 GiB" stood below "GTT ⊂ System RAM 60.5 GiB" without a name."""
    page = Pages().page("devices", moments_of("strix-halo").fullest).decode()
    captions = [
        re.sub(r"<[^>]+>", "", found) for found in re.findall(r'<p class="device-caption[^>]*>(.*?)</p>', page)
    ]

    assert [bool(re.search(r"System RAM \S+ of ", caption)) for caption in captions if "⊂" in caption] == [True]
    assert ["System RAM" in caption for caption in captions if "carve-out" in caption] == [False]


def test_used_memory_of_unknown_holders_has_the_colour_of_the_map() -> None:
    """On a Mac, where unattributed memory is not known, it was grey here and blue on the overview."""
    snapshot = moments_of("macbook").fullest
    segments = {one.label: one.holder for one in build_maps(snapshot, {})[0].segments}
    (bar,) = build_entries(snapshot)[0].bars

    assert [part.holder for part in bar.parts] == ["gpu", segments["other used"]] == ["gpu", "processes"]


def test_mig_instances_are_cells_of_their_gpu() -> None:
    """Side by side at the scale of the GPU, each with its own use and level; the row has the worst of them."""
    entry = build_entries(mig_server())[0]
    (bar,) = entry.bars
    first, second = bar.cells

    assert [cell.label for cell in bar.cells] == ["MIG 3g.40gb", "MIG 2g.20gb"]
    assert second.start == first.width == pytest.approx(42_412_802_048 / 85_520_809_984)
    assert first.used == pytest.approx(34_359_738_368 / 42_412_802_048)
    assert (first.level, second.level, entry.level) == ("high", "critical", "critical")
    assert entry.reason.startswith("MIG 2g.20gb ")
    assert bar.parts == ()


def test_fifty_six_instances_are_in_eight_rows() -> None:
    entries = build_entries(eight_by_seven())

    assert [len(entry.bars[0].cells) for entry in entries] == [7] * 8
    assert all(sum(cell.width for cell in entry.bars[0].cells) <= 1.0 + 1e-9 for entry in entries)


def test_limit_in_no_pool_is_the_bar_of_its_device() -> None:
    (bar,) = build_entries(partition())[0].bars

    assert (bar.id, bar.size_bytes, bar.width) == ("gpu0.limit", 20 * GIB, 1.0)
    assert bar.parts[0].width == pytest.approx(0.75)


def test_unknown_use_is_hatched_and_not_zero() -> None:
    bar = build_entries(unknown_figures())[0].bars[0]
    page = Pages().page("devices", unknown_figures()).decode()

    assert (bar.used_bytes, bar.parts) == (Absent.INCONSISTENT, ())
    assert 'fill="url(#not-read)"' in page
    assert "use not known of 24.0 GiB used" in page


@pytest.mark.parametrize(
    ("snapshot", "word"),
    [
        (with_device(discrete_gpu(), state="needs_reset"), "needs reset"),
        (with_device(discrete_gpu(), state="missing"), "missing"),
        (with_device(discrete_gpu(), **asdict(Vitals.absent(Absent.SUSPENDED))), "asleep"),
        (with_device(discrete_gpu(), headroom_bytes=Absent.SUSPENDED), "asleep"),
        (replace(discrete_gpu(), pressure=()), "ok"),
        (discrete_gpu(), "high"),
    ],
)
def test_row_says_what_state_its_device_is_in(snapshot: Snapshot, word: str) -> None:
    """A device that is lost is that before it is anything else, and one that sleeps is not read."""
    page = Pages().page("devices", snapshot).decode()
    row = page[page.index('<div class="device-state">') :]

    assert word in Reader(row[: row.index('<div class="device-holders">')].encode()).text


def test_level_of_a_row_has_its_reason() -> None:
    """The time left first; the use is in the bar."""
    entry = build_entries(critical_gb10())[0]

    assert entry.reason == "full in ~40 s"
    assert "some tasks stalled on memory" in entry.reasons
    assert build_entries(replace(discrete_gpu(), pressure=()))[0].reason == ""


def test_sixteen_devices_are_sixteen_rows_that_can_be_linked_to() -> None:
    snapshot = discrete_gpu()
    many = tuple(replace(snapshot.devices[0], id=f"gpu{number}", name="<b>x</b>") for number in range(16))
    page = Pages().page("devices", replace(snapshot, devices=many)).decode()

    assert re.findall(r'<section class="device-row [^"]+" id="device-(gpu\d+)"', page) == [one.id for one in many]
    assert "<b>x</b>" not in page


def test_machine_without_a_device_has_a_sentence() -> None:
    assert "device-row" not in Pages().page("devices", hostile_names()).decode()
