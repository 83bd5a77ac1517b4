"""Geometry of pool bars: segments fill the bar, shares lie inside their pool."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.model import Absent, Content, Pool, PoolKind
from memwatch.pressure.rules import Thresholds
from memwatch_web.pages.bars import build_bars, build_limit_bars, build_segments
from memwatch_web.pages.pattern_samples import leased
from support.sample_parts import GIB, MEASURED, system_ram, vram
from support.sample_snapshots import (
    SAMPLES,
    critical_gb10,
    hugepages_host,
    mig_server,
    partition,
    stale_collector,
    unknown_figures,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_segments_fill_the_bar_without_gap_or_overlap(name: str) -> None:
    """Each segment starts at the end of the previous one, and their sum is the pool."""
    for bar in build_bars(SAMPLES[name](), {}):
        ends = [0.0, *(segment.start + segment.width for segment in bar.segments)]

        assert [segment.start for segment in bar.segments] == pytest.approx(ends[:-1])
        if bar.segments:
            assert ends[-1] == pytest.approx(1.0)
            assert sum(segment.size_bytes for segment in bar.segments) == bar.pool.size_bytes


def test_used_segments_are_left_of_available_ones() -> None:
    """The threshold marks refer to the edge between them."""
    pool = system_ram(64 * GIB, 3 * GIB, 20 * GIB, 1 * GIB, 2 * GIB, 1 * GIB)

    kinds = [segment.kind for segment in build_segments(pool)]

    assert kinds == ["anonymous", "shared_memory", "huge_pages", "kernel", "unattributed", "page_cache", "free"]


def test_device_memory_is_not_shown_as_unattributed() -> None:
    """The CUDA Pool explains memory that the kernel does not report. Only the remainder is unattributed."""
    (bar,) = build_bars(critical_gb10(), {})

    sizes = {segment.kind: segment.size_bytes for segment in bar.segments}

    assert sizes["unattributed"] == bar.pool.unattributed_bytes
    assert sizes["devices"] == 109_049_173_606 - 5_583_457_484


def test_pool_without_contents_shows_used_reserved_and_available() -> None:
    """Memory reserved by the driver is part of the used memory."""
    card = vram("gpu0.vram", "GPU 0 VRAM", size=24 * GIB, used=20 * GIB, reserved=GIB)

    sizes = {segment.kind: segment.size_bytes for segment in build_segments(card)}

    assert sizes == {"used": 19 * GIB, "reserved": GIB, "available": 4 * GIB}


def test_unknown_reserve_is_not_drawn() -> None:
    card = Pool("v", PoolKind.VRAM, "VRAM", 24 * GIB, 20 * GIB, 4 * GIB, "sysfs", MEASURED)

    assert [segment.kind for segment in build_segments(card)] == ["used", "available"]


def test_unknown_kind_is_drawn_as_used() -> None:
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

    assert [segment.kind for segment in build_segments(pool)] == ["page_tables", "free"]


def test_unknown_use_has_no_segments() -> None:
    (stale,) = build_bars(stale_collector(), {})
    _, contradictory = build_bars(unknown_figures(), {})

    assert stale.segments == contradictory.segments == ()


def test_pool_of_zero_bytes_is_drawn_empty() -> None:
    """No division by zero after memory was removed at run time."""
    empty = Pool("v", PoolKind.CARVEOUT, "Carve-out", 0, 0, 0, "sysfs", MEASURED)
    snapshot = replace(mig_server(), pools=(empty,), shares=(), devices=())

    (bar,) = build_bars(snapshot, {})

    assert (bar.segments, bar.lanes, bar.marks) == ((), (), ())


def test_share_bar_has_the_scale_of_its_pool() -> None:
    """CUDA Pool ÷ System RAM."""
    (bar,) = build_bars(critical_gb10(), {})

    (lane,) = bar.lanes

    assert lane.used == 103_465_716_122 / 128_492_535_808
    assert (lane.depth, lane.around, lane.limit) == (0, (), Absent.NOT_SUPPORTED)


def test_nested_share_follows_its_parent_one_level_deeper() -> None:
    ram, _ = build_bars(mig_server(), {})

    outer, inner = ram.lanes

    assert (outer.share.id, outer.depth, inner.share.id, inner.depth) == ("slice", 0, "unit", 1)
    assert inner.around == (outer.used,)
    assert isinstance(inner.used, float)
    assert isinstance(outer.used, float)
    assert inner.used < outer.used < outer.limit  # type: ignore[operator]


def test_share_of_unknown_use_has_no_width() -> None:
    ram, _ = build_bars(unknown_figures(), {})

    assert [lane.used for lane in ram.lanes] == [Absent.NOT_PERMITTED]


def test_marks_are_at_the_thresholds() -> None:
    """60, 80 and 95% of the size, or the configured thresholds of the pool."""
    thresholds = {"ram": Thresholds(medium=0.5, high=0.7, critical=0.9)}

    (usual,) = build_bars(critical_gb10(), {})
    (other,) = build_bars(critical_gb10(), thresholds)

    assert [(mark.level, mark.position) for mark in usual.marks] == [
        ("medium", 0.6),
        ("high", 0.8),
        ("critical", 0.95),
    ]
    assert [mark.position for mark in other.marks] == [0.5, 0.7, 0.9]


def test_marks_exclude_reserved_huge_pages() -> None:
    """Levels do not include reserved huge pages, so the marks are scaled to the rest."""
    (bar,) = build_bars(hugepages_host(), {})

    aside = bar.pool.set_aside_bytes / bar.pool.size_bytes

    assert bar.marks[0].position == pytest.approx(aside + 0.6 * (1 - aside))


def test_leases_follow_used_memory_and_are_no_segment() -> None:
    """They lie in available memory, side by side, and never beyond the pool."""
    snapshot = leased()
    (bar,) = build_bars(snapshot, {})
    pool, (one, other) = bar.pool, bar.leases
    more = replace(snapshot.leases[1], held={"leased": pool.size_bytes})
    (full,) = build_bars(replace(snapshot, leases=(more,)), {})

    assert isinstance(pool.used_bytes, int)
    assert one.start == pool.used_bytes / pool.size_bytes
    assert one.width == 14 * GIB / pool.size_bytes
    assert other.start == pytest.approx(one.start + one.width)
    assert sum(segment.size_bytes for segment in bar.segments) == pool.size_bytes
    assert full.leases[0].start + full.leases[0].width == pytest.approx(1.0)


def test_leases_of_another_pool_are_not_shown() -> None:
    snapshot = replace(mig_server(), leases=leased().leases)

    assert [bar.leases for bar in build_bars(snapshot, {})] == [()] * len(snapshot.pools)


def test_limit_without_a_pool_has_a_bar_of_its_own() -> None:
    """Its full width is the limit. A limit inside has the same scale."""
    (bar,) = build_limit_bars(partition(), {"gpu0.limit": Thresholds(medium=0.5)})

    assert (bar.whole.label, bar.device, bar.whole.size_bytes) == ("GPU memory limit", "NVIDIA L40S", 20 * GIB)
    assert [(segment.kind, segment.size_bytes) for segment in bar.segments] == [
        ("used", 15 * GIB),
        ("available", 5 * GIB),
    ]
    assert [(lane.share.id, lane.used, lane.limit) for lane in bar.lanes] == [("gpu0.limit.job", 0.45, 0.6)]
    assert (bar.marks[0].position, bar.device_bytes) == (0.5, Absent.NOT_AVAILABLE)


def test_limit_in_a_pool_has_no_bar_of_its_own() -> None:
    assert build_limit_bars(mig_server(), {}) == ()


@pytest.mark.parametrize(("used", "expected"), [(Absent.STALE, []), (25 * GIB, [1.0, 0.0])])
def test_limit_of_unknown_or_exceeded_use_stays_in_its_bar(used: int | Absent, expected: list[float]) -> None:
    """A limit may be lowered below the use."""
    snapshot = partition()
    shares = tuple(replace(one, used_bytes=used) if one.id == "gpu0.limit" else one for one in snapshot.shares)

    (bar,) = build_limit_bars(replace(snapshot, shares=shares), {})

    assert [segment.width for segment in bar.segments] == expected


def test_lease_of_a_partition_is_in_the_bar_of_its_limit() -> None:
    lease = replace(leased().leases[0], held={"gpu0.limit": 4 * GIB})
    (bar,) = build_limit_bars(replace(partition(), leases=(lease,)), {})

    assert [(one.start, one.width) for one in bar.leases] == [(0.75, 0.2)]
