"""The devices page: identity, memory, processes and errors of each GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from memwatch.core.model import Absent, Bytes, Process, Vitals
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.words import fault
from memwatch_web.pages.devices import MAX_HOLDERS, build_entries
from memwatch_web.pages.renderer import Pages
from support.html_reader import read
from support.sample_parts import process
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu, mig_server

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
