"""The page about GPUs: what each is, where its memory lies, who holds it, what went wrong."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.model import Absent, Bytes, Process
from memwatch.render.words import fault
from memwatch.snapshot import Snapshot
from memwatch_web.pages.devices import MOST_HOLDERS, entries_of
from memwatch_web.pages.renderer import Pages
from support.html_reader import read
from support.sample_parts import process
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu, mig_server

GIB = 1 << 30


def with_device(snapshot: Snapshot, **fields: Any) -> Snapshot:
    first, *others = snapshot.devices
    return replace(snapshot, devices=(replace(first, **fields), *others))


def holding(pid: int, place: str, held: Bytes) -> Process:
    return replace(process(pid, f"p{pid}", "ada", GIB), device_bytes={place: held})


def test_places_are_the_devices_own() -> None:
    """A discrete card's VRAM with its size; on GB10 the CUDA Pool inside System RAM, and System RAM."""
    card, gb10 = entries_of(discrete_gpu())[0], entries_of(critical_gb10())[0]

    assert [place.label for place in card.places if place.is_allocated_from] == ["GPU 0 VRAM"]
    assert "CUDA Pool ⊂ System RAM" in [place.relation for place in gb10.places]
    assert "System RAM" in [place.label for place in gb10.places]


def test_holders_are_the_largest_and_the_rest_is_counted() -> None:
    """What is not known of a process is left out, and so is what it holds of another device."""
    card = discrete_gpu()
    place = card.devices[0].allocates_from[0]
    many = [holding(pid, place, pid * GIB) for pid in range(1, MOST_HOLDERS + 3)]
    unknown, elsewhere = holding(90, place, Absent.NOT_PERMITTED), holding(91, "gpu7", GIB)

    entry, *_ = entries_of(replace(card, processes=(*many, unknown, elsewhere)))

    assert [one.process.pid for one in entry.holders] == list(range(MOST_HOLDERS + 2, 2, -1))
    assert entry.more_holders == 2


def test_parts_of_one_process_are_added_up() -> None:
    """VRAM and what spilled into System RAM are held by the same process."""
    card = discrete_gpu()
    place = card.devices[0].allocates_from[0]
    share = card.shares[0] if card.shares else None
    parts = {place: 3 * GIB} | ({share.id: GIB} if share else {})

    entry, *_ = entries_of(replace(card, processes=(replace(process(7, "train", "ada", GIB), device_bytes=parts),)))

    assert entry.holders[0].held_bytes == sum(parts.values())


@pytest.mark.parametrize(
    ("kind", "words"),
    [("xid_79", "XID 79"), ("ecc_uncorrected", "ECC uncorrected"), ("row_remap_pending", "row remap pending")],
)
def test_kinds_of_errors_in_words(kind: str, words: str) -> None:
    """Abbreviations as their makers write them."""
    assert fault(kind) == words


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        (calm_workstation(), calm_workstation().machine.explanation),
        (critical_gb10(), "can be allocated now"),
        (critical_gb10(), "CUDA Pool ⊂ System RAM"),
        (critical_gb10(), "How its architecture is known"),
        (mig_server(), "MIG 2g.20gb ⊂ GPU 0 VRAM"),
        (with_device(discrete_gpu(), state="needs_reset"), "needs reset"),
        (
            with_device(discrete_gpu(), errors={"xid_79": 2}, errors_seen_unix={"xid_79": 0.0}),
            "XID 79 2 1970-01-01 00:00:00 UTC",
        ),
        (with_device(discrete_gpu(), errors={"xid_79": 1}), "XID 79 1 —"),
        (with_device(discrete_gpu(), errors={}), "The driver tells of none."),
        (with_device(discrete_gpu(), uuid=Absent.NOT_PERMITTED), "UUID — not permitted"),
        (
            replace(with_device(discrete_gpu(), process_list="partial"), processes=()),
            "No process is seen that holds its memory, and not all of them can be seen.",
        ),
        (
            replace(with_device(discrete_gpu(), process_list="complete"), processes=()),
            "No process holds any of its memory.",
        ),
        (
            replace(with_device(discrete_gpu(), process_list=Absent.NOT_SUPPORTED), processes=()),
            "Which processes hold its memory: — not supported",
        ),
    ],
)
def test_the_page_says(snapshot: Snapshot, sentence: str) -> None:
    """The sentence stands on the page word for word; an empty list is never called idle unless it is complete."""
    assert sentence in read(snapshot, "devices").text


def test_the_headroom_of_many_devices_takes_the_width_of_the_overview() -> None:
    """Of two it is one card among others; of eight it would be a narrow column beside three empty ones."""
    two = discrete_gpu()
    eight = replace(two, devices=tuple(replace(two.devices[0], id=f"gpu{index}") for index in range(8)))

    of_two, of_eight = (Pages().page("overview", snapshot).decode() for snapshot in (two, eight))

    assert of_two.index('<div class="cards">') < of_two.index('aria-labelledby="devices-label"')
    wide = '<section class="card many-devices" aria-labelledby="devices-label">'
    assert of_eight.index(wide) < of_eight.index('<div class="cards">')
    assert of_eight.count('class="device"') == 8
    assert of_eight.count('aria-labelledby="devices-label"') == 1
