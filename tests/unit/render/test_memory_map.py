"""Geometry of pool bars: segments fill the bar, shares lie inside their pool."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Content, Pool, PoolKind, Process, Share, ShareKind, Thresholds
from memwatch.reporting.render.memory_map import build_limit_maps, build_maps, build_parts
from support.pattern_samples import leased
from support.sample_parts import GIB, MEASURED, system_ram, vram
from support.sample_snapshots import (
    SAMPLES,
    critical_gb10,
    discrete_gpu,
    hugepages_host,
    mig_server,
    partition,
    stale_collector,
    unknown_figures,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_segments_fill_the_bar_without_gap_or_overlap(name: str) -> None:
    """Each segment starts at the end of the previous one, and their sum is the pool."""
    for bar in build_maps(SAMPLES[name](), {}):
        ends = [0.0, *(segment.start + segment.width for segment in bar.segments)]

        assert [segment.start for segment in bar.segments] == pytest.approx(ends[:-1])
        if bar.segments:
            assert ends[-1] == pytest.approx(1.0)
            assert sum(segment.size_bytes for segment in bar.segments) == bar.whole.size_bytes


def test_used_segments_are_left_of_available_ones() -> None:
    """The threshold marks refer to the edge between them."""
    pool = system_ram(64 * GIB, 3 * GIB, 20 * GIB, 1 * GIB, 2 * GIB, 1 * GIB)

    kinds = [segment.kind for segment in build_parts(pool)]

    assert kinds == ["anonymous", "shared_memory", "huge_pages", "kernel", "unattributed", "page_cache", "free"]


def test_device_memory_is_not_shown_as_unattributed() -> None:
    """The CUDA Pool explains memory that the kernel does not report. Only the remainder is unattributed."""
    (bar,) = build_maps(critical_gb10(), {})

    sizes = {part.kind: part.size_bytes for part in bar.parts}

    assert bar.pool is not None
    assert sizes["unattributed"] == bar.pool.unattributed_bytes
    assert sizes["devices"] == 109_049_173_606 - 5_583_457_484


def test_pool_without_contents_shows_used_reserved_and_available() -> None:
    """Memory reserved by the driver is part of the used memory."""
    card = vram("gpu0.vram", "GPU 0 VRAM", size=24 * GIB, used=20 * GIB, reserved=GIB)

    sizes = {segment.kind: segment.size_bytes for segment in build_parts(card)}

    assert sizes == {
        "used": 19 * GIB - 322_122_547,
        "reserved": GIB,
        "unattributed": 322_122_547,
        "available": 4 * GIB,
    }


def test_unknown_reserve_is_not_drawn() -> None:
    card = Pool("v", PoolKind.VRAM, "VRAM", 24 * GIB, 20 * GIB, 4 * GIB, "sysfs", MEASURED)

    assert [segment.kind for segment in build_parts(card)] == ["used", "available"]


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

    assert [segment.kind for segment in build_parts(pool)] == ["page_tables", "free"]


def test_unknown_use_has_no_segments() -> None:
    (stale,) = build_maps(stale_collector(), {})
    _, contradictory = build_maps(unknown_figures(), {})

    assert stale.segments == contradictory.segments == ()


def test_pool_of_zero_bytes_is_drawn_empty() -> None:
    """No division by zero after memory was removed at run time."""
    empty = Pool("v", PoolKind.CARVEOUT, "Carve-out", 0, 0, 0, "sysfs", MEASURED)
    snapshot = replace(mig_server(), pools=(empty,), shares=(), devices=())

    (bar,) = build_maps(snapshot, {})

    assert (bar.segments, bar.rows, bar.marks) == ((), (), ())


def test_bracket_lies_under_the_bytes_of_its_share() -> None:
    """The CUDA Pool is bracketed within the segments of devices, not from the left edge of the map."""
    (bar,) = build_maps(critical_gb10(), {})

    cuda, processes, available = bar.brackets
    held = [segment for segment in bar.segments if segment.holder == "gpu"]

    assert cuda.share is bar.rows[0].share
    assert (cuda.start, cuda.width) == (held[0].start, 103_465_716_122 / 128_492_535_808)
    assert processes.start == pytest.approx(held[-1].start + held[-1].width)
    assert (processes.label, available.label) == ("processes", "available")
    assert available.start + available.width == pytest.approx(1.0)
    assert available.start == pytest.approx(bar.edge)


def test_two_shares_are_bracketed_side_by_side() -> None:
    ram = system_ram(64 * GIB, 3 * GIB, 20 * GIB, 1 * GIB, 2 * GIB, 12 * GIB, unexplained=GIB)
    one = Share("a", ShareKind.GTT, "GTT", "ram", 6 * GIB, "drm", MEASURED)
    shares = (one, replace(one, id="b", label="NPU buffers", used_bytes=5 * GIB))
    (bar,) = build_maps(replace(critical_gb10(), pools=(ram,), shares=shares), {})

    found = [bracket for bracket in bar.brackets if bracket.share]

    assert [bracket.start for bracket in found] == [0.0, 6 / 64]
    assert found[1].start + found[1].width == pytest.approx(11 / 64)


def test_share_that_does_not_fit_is_a_row_without_a_bracket() -> None:
    """It may share pages with the resident sets of processes, so its place is not known."""
    base = critical_gb10()
    large = replace(base.shares[0], used_bytes=110_000_000_000)
    (bar,) = build_maps(replace(base, shares=(large,)), {})

    assert [bracket.share for bracket in bar.brackets] == [None, None]
    assert [row.share for row in bar.rows] == [large]


def test_largest_processes_are_named_inside_their_kind_of_holder() -> None:
    """The GPU memory of a process is in the segment of devices, its resident set in that of processes."""
    (bar,) = build_maps(critical_gb10(), {})

    named = [(one.kind, one.label, one.size_bytes, one.basis) for one in bar.segments if one.process]
    largest = critical_gb10().processes[0]

    assert ("devices", largest.title, largest.device_bytes["cuda0"], "GPU") in named
    assert {kind for kind, *_ in named} == {"devices", "anonymous"}


def test_process_larger_than_its_segment_is_not_named() -> None:
    """Resident sets share pages, so they may add up to more than the segment has."""
    base = critical_gb10()
    huge = replace(base.processes[0], rss_bytes=100 * GIB, device_bytes={})
    (bar,) = build_maps(replace(base, processes=(huge,)), {})

    assert [one.process for one in bar.segments if one.process] == []


def test_mig_instances_stand_side_by_side() -> None:
    """They partition the GPU: each begins at the end of the one before, as wide as its limit."""
    _, card = build_maps(mig_server(), {})

    one, other = card.slices

    assert (one.start, one.width) == (0.0, 42_412_802_048 / 85_520_809_984)
    assert other.start == one.width
    assert other.used == pytest.approx(0.968, abs=0.001)
    assert card.brackets == ()


def test_limit_is_a_row_with_its_own_scale() -> None:
    """A cgroup equals no content. Nested shares follow theirs one level deeper."""
    ram, _ = build_maps(mig_server(), {})

    outer, inner = ram.rows

    assert (outer.share.id, outer.depth, outer.used) == ("slice", 0, 0.75)
    assert (inner.share.id, inner.depth, inner.used) == ("unit", 1, Absent.NOT_SUPPORTED)


def test_share_of_unknown_use_has_no_bracket() -> None:
    ram, _ = build_maps(unknown_figures(), {})

    assert [bracket for bracket in ram.brackets if bracket.share] == []
    assert [row.share.used_bytes for row in ram.rows] == [Absent.NOT_PERMITTED]


def test_every_content_has_a_holder_and_no_level_has_one() -> None:
    """Each kind of holder has one colour in every display."""
    holders = {
        segment.holder for make in SAMPLES.values() for one in build_maps(make(), {}) for segment in one.segments
    }

    assert holders <= {"gpu", "processes", "shared", "huge", "kernel", "unattributed", "reclaimable", "free"}


def test_marks_are_at_the_thresholds() -> None:
    """60, 80 and 95% of the size, or the configured thresholds of the pool."""
    thresholds = {"ram": Thresholds(medium=0.5, high=0.7, critical=0.9)}

    (usual,) = build_maps(critical_gb10(), {})
    (other,) = build_maps(critical_gb10(), thresholds)

    assert [(mark.level, mark.position) for mark in usual.marks] == [
        ("medium", 0.6),
        ("high", 0.8),
        ("critical", 0.95),
    ]
    assert [mark.position for mark in other.marks] == [0.5, 0.7, 0.9]


def test_marks_exclude_reserved_huge_pages() -> None:
    """Levels do not include reserved huge pages, so the marks are scaled to the rest."""
    (bar,) = build_maps(hugepages_host(), {})

    aside = hugepages_host().pools[0].set_aside_bytes / hugepages_host().pools[0].size_bytes

    assert bar.marks[0].position == pytest.approx(aside + 0.6 * (1 - aside))


def test_leases_follow_used_memory_and_are_no_segment() -> None:
    """They lie in available memory, side by side, and never beyond the pool."""
    snapshot = leased()
    (bar,) = build_maps(snapshot, {})
    pool, (one, other) = bar.whole, bar.leases
    more = replace(snapshot.leases[1], held={"leased": pool.size_bytes})
    (full,) = build_maps(replace(snapshot, leases=(more,)), {})

    assert isinstance(pool.used_bytes, int)
    assert one.start == pool.used_bytes / pool.size_bytes
    assert one.width == 14 * GIB / pool.size_bytes
    assert other.start == pytest.approx(one.start + one.width)
    assert sum(segment.size_bytes for segment in bar.segments) == pool.size_bytes
    assert full.leases[0].start + full.leases[0].width == pytest.approx(1.0)


def test_leases_of_another_pool_are_not_shown() -> None:
    snapshot = replace(mig_server(), leases=leased().leases)

    assert [bar.leases for bar in build_maps(snapshot, {})] == [()] * len(snapshot.pools)


def test_limit_without_a_pool_has_a_bar_of_its_own() -> None:
    """Its full width is the limit. A limit inside has the same scale."""
    (bar,) = build_limit_maps(partition(), {"gpu0.limit": Thresholds(medium=0.5)})

    assert (bar.whole.label, bar.device, bar.whole.size_bytes) == ("GPU memory limit", "NVIDIA L40S", 20 * GIB)
    assert [(segment.kind, segment.size_bytes) for segment in bar.segments] == [
        ("used", 15 * GIB),
        ("available", 5 * GIB),
    ]
    assert [(row.share.id, row.used) for row in bar.rows] == [("gpu0.limit.job", 0.75)]
    assert (bar.marks[0].position, bar.device_bytes) == (0.5, Absent.NOT_AVAILABLE)


def test_limit_in_a_pool_has_no_bar_of_its_own() -> None:
    assert build_limit_maps(mig_server(), {}) == ()


@pytest.mark.parametrize(("used", "expected"), [(Absent.STALE, []), (25 * GIB, [1.0, 0.0])])
def test_limit_of_unknown_or_exceeded_use_stays_in_its_bar(used: int | Absent, expected: list[float]) -> None:
    """A limit may be lowered below the use."""
    snapshot = partition()
    shares = tuple(replace(one, used_bytes=used) if one.id == "gpu0.limit" else one for one in snapshot.shares)

    (bar,) = build_limit_maps(replace(snapshot, shares=shares), {})

    assert [segment.width for segment in bar.segments] == expected


def test_lease_of_a_partition_is_in_the_bar_of_its_limit() -> None:
    lease = replace(leased().leases[0], held={"gpu0.limit": 4 * GIB})
    (bar,) = build_limit_maps(replace(partition(), leases=(lease,)), {})

    assert [(one.start, one.width) for one in bar.leases] == [(0.75, 0.2)]


def test_rest_that_one_process_holds_has_its_name() -> None:
    """ "other" beside a table with a single further process said less than the machine knows."""
    card = vram("gpu0", "VRAM", size=24 * GIB, used=13 * GIB, reserved=0)
    card = replace(card, unattributed_bytes=0)
    base = replace(discrete_gpu(), pools=(card,), shares=(), devices=(), pressure=())
    large, small, other = (
        Process(pid, 1.0, name, 0, size, "", device_bytes={"gpu0": size})
        for pid, name, size in ((1, "llama", 12 * GIB), (2, "firefox", GIB // 4), (3, "Xorg", 3 * GIB // 4))
    )

    (one,) = build_maps(replace(base, processes=(large, small, other)), {})
    (unknown,) = build_maps(replace(base, processes=(large, small)), {})

    named = [(segment.label, segment.process and segment.process.pid) for segment in one.segments]
    assert named == [("llama", 1), ("Xorg", 3), ("firefox", 2), ("available", None)]
    assert [segment.process for segment in unknown.segments if segment.process] == [large]


def test_used_is_the_word_for_all_that_is_used() -> None:
    """Parts of it have other names: a tower said "used 20.1 GiB" below "used 34.6 GiB"."""
    apple = Pool("m", PoolKind.SYSTEM_RAM, "Unified memory", 36 * GIB, 30 * GIB, 6 * GIB, "sysctl", MEASURED)
    working_set = Share("w", ShareKind.METAL_WORKING_SET, "Metal working set", "m", 14 * GIB, "Metal", MEASURED)
    card = vram("gpu0", "VRAM", size=24 * GIB, used=20 * GIB, reserved=GIB)

    assert [part.label for part in build_parts(apple)] == ["used", "available"]
    assert "other used" in [part.label for part in build_parts(apple, (working_set,))]
    assert "used" not in [part.label for part in build_parts(card)]


def test_free_memory_of_a_pool_without_contents_is_apart_from_its_page_cache() -> None:
    """As in its past. Of GPU memory all that is available is free."""
    apple = Pool("m", PoolKind.SYSTEM_RAM, "Unified memory", 36 * GIB, 30 * GIB, 6 * GIB, "sysctl", MEASURED)
    apple = replace(apple, free_bytes=GIB)

    sizes = {part.kind: part.size_bytes for part in build_parts(apple)}

    assert sizes == {"used": 30 * GIB, "page_cache": 5 * GIB, "free": GIB}
