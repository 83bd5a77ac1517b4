"""Everything in a bar is to scale: parts side by side fill it, and what is inside something lies inside it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.model import Absent, Content, Pool, PoolKind
from memwatch.pressure.rules import Thresholds
from memwatch_web.pages.bars import bars_of, segments_of
from support.sample_parts import GIB, MEASURED, system_ram, vram
from support.sample_snapshots import (
    SAMPLES,
    critical_gb10,
    hugepages_host,
    mig_server,
    stale_collector,
    unknown_figures,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_segments_fill_the_bar_without_gap_or_overlap(name: str) -> None:
    """Each part begins where the one before ends, and together they are the pool."""
    for bar in bars_of(SAMPLES[name](), {}):
        ends = [0.0, *(segment.start + segment.width for segment in bar.segments)]

        assert [segment.start for segment in bar.segments] == pytest.approx(ends[:-1])
        if bar.segments:
            assert ends[-1] == pytest.approx(1.0)
            assert sum(segment.size_bytes for segment in bar.segments) == bar.pool.size_bytes


def test_what_is_used_stands_left_of_what_is_available() -> None:
    """The edge of use is one line, and the marks of the levels can be read against it."""
    pool = system_ram(64 * GIB, 3 * GIB, 20 * GIB, 1 * GIB, 2 * GIB, 1 * GIB)

    kinds = [segment.kind for segment in segments_of(pool)]

    assert kinds == ["anonymous", "shared_memory", "huge_pages", "kernel", "unattributed", "page_cache", "free"]


def test_what_a_device_holds_is_not_called_unattributed() -> None:
    """The kernel cannot explain CUDA's memory, a share can: only the remainder is nobody's."""
    (bar,) = bars_of(critical_gb10(), {})

    sizes = {segment.kind: segment.size_bytes for segment in bar.segments}

    assert sizes["unattributed"] == bar.pool.unattributed_bytes
    assert sizes["devices"] == 109_049_173_606 - 5_583_457_484


def test_a_card_without_contents_shows_used_reserved_and_available() -> None:
    """What the driver keeps for itself is part of what is used, never beside it."""
    card = vram("gpu0.vram", "GPU 0 VRAM", size=24 * GIB, used=20 * GIB, reserved=GIB)

    sizes = {segment.kind: segment.size_bytes for segment in segments_of(card)}

    assert sizes == {"used": 19 * GIB, "reserved": GIB, "available": 4 * GIB}


def test_a_card_of_which_no_reserve_is_known_shows_none() -> None:
    """Not knowing the reserve is no reason to draw an empty one."""
    card = Pool("v", PoolKind.VRAM, "VRAM", 24 * GIB, 20 * GIB, 4 * GIB, "sysfs", MEASURED)

    assert [segment.kind for segment in segments_of(card)] == ["used", "available"]


def test_a_kind_from_the_future_counts_as_used() -> None:
    """Nothing a collector names is left out of the bar."""
    pool = Pool(
        "ram",
        PoolKind.SYSTEM_RAM,
        "System RAM",
        10,
        6,
        4,
        "meminfo",
        MEASURED,
        contents=(Content("free", 4), Content("page_tables", 6)),
    )

    assert [segment.kind for segment in segments_of(pool)] == ["page_tables", "free"]


def test_unknown_use_has_no_segments() -> None:
    """A stale pool keeps its size and loses its picture."""
    (stale,) = bars_of(stale_collector(), {})
    _, contradictory = bars_of(unknown_figures(), {})

    assert stale.segments == contradictory.segments == ()


def test_a_pool_of_no_size_is_drawn_empty() -> None:
    """Memory taken away while running divides nothing by zero."""
    empty = Pool("v", PoolKind.CARVEOUT, "Carve-out", 0, 0, 0, "sysfs", MEASURED)
    snapshot = replace(mig_server(), pools=(empty,), shares=(), devices=())

    (bar,) = bars_of(snapshot, {})

    assert (bar.segments, bar.lanes, bar.marks) == ((), (), ())


def test_an_inner_bar_is_to_the_scale_of_its_pool() -> None:
    """CUDA Pool ÷ System RAM, exactly."""
    (bar,) = bars_of(critical_gb10(), {})

    (lane,) = bar.lanes

    assert lane.used == 103_465_716_122 / 128_492_535_808
    assert (lane.depth, lane.around, lane.limit) == (0, (), Absent.NOT_SUPPORTED)


def test_a_share_inside_a_share_lies_inside_it() -> None:
    """The inner one comes right after the outer one, one step deeper, within its extent."""
    ram, _ = bars_of(mig_server(), {})

    outer, inner = ram.lanes

    assert (outer.share.id, outer.depth, inner.share.id, inner.depth) == ("slice", 0, "unit", 1)
    assert inner.around == (outer.used,)
    assert isinstance(inner.used, float)
    assert isinstance(outer.used, float)
    assert inner.used < outer.used < outer.limit  # type: ignore[operator]


def test_a_share_of_unknown_use_has_no_width() -> None:
    """Not permitted is not an empty bar."""
    ram, _ = bars_of(unknown_figures(), {})

    assert [lane.used for lane in ram.lanes] == [Absent.NOT_PERMITTED]


def test_marks_stand_where_levels_begin() -> None:
    """60, 80 and 95 % of the size, or what the settings say for this pool."""
    thresholds = {"ram": Thresholds(medium=0.5, high=0.7, critical=0.9)}

    (usual,) = bars_of(critical_gb10(), {})
    (other,) = bars_of(critical_gb10(), thresholds)

    assert [(mark.level, mark.position) for mark in usual.marks] == [
        ("medium", 0.6),
        ("high", 0.8),
        ("critical", 0.95),
    ]
    assert [mark.position for mark in other.marks] == [0.5, 0.7, 0.9]


def test_marks_stand_right_of_what_is_set_aside() -> None:
    """Huge pages say nothing about pressure, so levels are judged, and drawn, on the rest."""
    (bar,) = bars_of(hugepages_host(), {})

    aside = bar.pool.set_aside_bytes / bar.pool.size_bytes

    assert bar.marks[0].position == pytest.approx(aside + 0.6 * (1 - aside))
