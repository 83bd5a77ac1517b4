"""Extremes, level times and durations between two scrapes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from memwatch.core.kernel_log import OomKill
from memwatch.core.linux.cgroup_kills import CgroupKill
from memwatch.core.model import Absent
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.snapshot import CollectorStatus, Level, Pressure, Snapshot
from memwatch_monitor.between_scrapes import (
    MAX_GONE_TARGETS,
    BetweenScrapes,
    KillCounts,
    LevelTimes,
    RecentExtremes,
)
from support.fakes import GIB, ram
from support.sample_snapshots import critical_gb10


def at(now: float, used: int | Absent, headroom: int = 0) -> Snapshot:
    base = critical_gb10()
    pool = ram(used if isinstance(used, int) else 0, 100 * GIB)
    if isinstance(used, Absent):
        pool = replace(pool, used_bytes=used, available_bytes=used)
    return replace(
        base,
        monotonic=now,
        pools=(pool,),
        devices=(replace(base.devices[0], headroom_after_reclaim_bytes=headroom),),
    )


def fed(*snapshots: Snapshot) -> RecentExtremes:
    recent = RecentExtremes()
    for snapshot in snapshots:
        recent.add(snapshot)
    return recent


def test_peak_of_a_tenth_of_a_second_is_in_the_next_scrape() -> None:
    """Ten ticks a second: the extreme of each counts, not only that of the last."""
    recent = fed(at(10.0, GIB, 50), at(10.1, 99 * GIB, 1), at(10.2, GIB, 50), at(25.0, GIB, 50))

    found = recent.extremes(25.0)

    assert (found.used["ram"], found.available["ram"], found.headroom["gpu0"]) == (99 * GIB, GIB, 1)


def test_extreme_ends_after_a_minute() -> None:
    recent = fed(at(10.0, 99 * GIB), *(at(float(second), GIB) for second in range(11, 70)))

    assert recent.extremes(69.9).used["ram"] == 99 * GIB
    recent.add(at(70.0, GIB))
    assert recent.extremes(70.0).used["ram"] == GIB


def test_extremes_are_those_of_all_seconds_at_any_time_of_a_scrape() -> None:
    """Seconds that are over are merged once. Scrapes are close, a minute apart and after a pause of the machine."""
    numbers, recent = random.Random(7), RecentExtremes()
    used: dict[float, int] = {}
    now, scrapes = 100.0, 0
    for _ in range(3000):
        now += numbers.choice([0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 7.0, 90.0 * (numbers.random() < 0.02)])
        figure = numbers.randrange(100 * GIB)
        used[now] = max(figure, used.get(now, 0))
        recent.add(at(now, figure, 100 * GIB - figure))
        if numbers.random() < 0.4:
            found, scrapes = recent.extremes(now), scrapes + 1
            most = max(one for when, one in used.items() if int(when) > int(now) - 60)
            assert (found.used["ram"], found.available["ram"]) == (most, 100 * GIB - most)
            assert found.headroom["gpu0"] == 100 * GIB - most

    assert scrapes > 1000


def test_recording_that_starts_again_has_its_own_extremes() -> None:
    recent = fed(*(at(float(second), 99 * GIB) for second in range(100, 200)))
    recent.extremes(199.0)
    for second in range(61):
        recent.add(at(float(second), GIB))

    assert recent.extremes(60.0).used["ram"] == GIB


def test_unknown_figure_is_no_extreme() -> None:
    recent = fed(at(10.0, Absent.STALE), at(11.0, 2 * GIB), at(12.0, Absent.STALE))

    assert recent.extremes(12.0).used == {"ram": 2 * GIB}


def test_extremes_keep_one_entry_a_second() -> None:
    """A minute of ten ticks a second takes the memory of one a second."""
    recent = fed(*(at(tick / 10, GIB) for tick in range(2000)))

    assert len(recent._seconds) <= 60


def levels(*words: Level | None) -> Iterable[tuple[float, list[Pressure]]]:
    for second, level in enumerate(words):
        yield float(second), [] if level is None else [Pressure("ram", level, level, 0.5)]


def times_of(*words: Level | None) -> LevelTimes:
    found = LevelTimes()
    for now, pressure in levels(*words):
        found.add(now, pressure)
    return found


def test_short_critical_level_is_counted() -> None:
    """A critical of two seconds is invisible to a gauge that is read every 15 s."""
    times = times_of(Level.LOW, Level.CRITICAL, Level.CRITICAL, Level.LOW).times(5.0)["ram"]

    assert times.seconds == (3.0, 0.0, 0.0, 2.0)
    assert times.changes == 2


def test_all_levels_start_at_zero() -> None:
    """increase() misses the first value of a series that appears."""
    times = times_of(Level.LOW).times(0.0)["ram"]

    assert times.seconds == (0.0, 0.0, 0.0, 0.0)
    assert times.changes == 0


def test_counters_continue_when_a_target_returns() -> None:
    """The time without the target counts at no level, and its return is no change."""
    found = times_of(Level.HIGH, Level.HIGH, None, None, Level.HIGH)

    assert found.times(6.0)["ram"].seconds[Level.HIGH] == 4.0
    assert found.times(6.0)["ram"].changes == 0
    assert times_of(Level.HIGH, None).times(9.0) == {}


def test_targets_that_ended_are_bounded() -> None:
    found = LevelTimes()
    for number in range(3 * MAX_GONE_TARGETS):
        found.add(float(number), [Pressure(f"cgroup{number}", Level.LOW, Level.LOW, 0.5)])

    assert len(found._targets) == MAX_GONE_TARGETS + 1


def test_counters_do_not_fall_if_a_scrape_uses_an_older_snapshot() -> None:
    """The tick changes them before it publishes its snapshot."""
    found = times_of(Level.LOW, Level.LOW, Level.HIGH)

    assert found.times(1.0)["ram"].seconds == (2.0, 0.0, 0.0, 0.0)


def status(name: str, at_unix: float, seconds: float) -> CollectorStatus:
    return CollectorStatus(name, "ok", 0.0, seconds, at_unix)


def test_each_run_of_a_collector_with_a_thread_counts_once() -> None:
    between = BetweenScrapes()
    for seq, unix in enumerate((1.0, 1.0, 2.0, 2.0, 3.0), 1):
        found = (status("nvml", unix, 0.05), status("meminfo", unix, 0.05))
        between.add(replace(at(float(seq), GIB), seq=seq, collectors=found))

    assert list(between.runs.durations) == ["nvml"]
    assert between.runs.durations["nvml"].cumulative() == [0, 3, 3, 3]
    assert between.ticks.cumulative()[-1] == 4


MACHINE = OomKill(1, 77, "x", 0, "machine")
AT_LIMIT = OomKill(2, 78, "x", 0, "cgroup", "/job")
OF_NODES = OomKill(3, 79, "x", 0, "nodes")


def test_kills_are_counted_by_scope_and_add_up_to_those_since_boot() -> None:
    """Those before the start are of unknown scope; so are those of some NUMA nodes."""
    found = KillCounts()
    found.add(NewKills(), Absent.NOT_SUPPORTED)
    unknown = dict(found.scopes)
    found.add(NewKills(), 7)
    start = dict(found.scopes)
    found.add(NewKills((MACHINE, AT_LIMIT, OF_NODES), 2, of_cgroups=(CgroupKill(3, 3, "/job"),)), 15)
    found.add(NewKills(), 15)

    assert [unknown, start] == [{}, {"machine": 0, "cgroup": 0, "unknown": 7}]
    assert found.scopes == {"machine": 1, "cgroup": 4, "unknown": 10}


def test_kills_while_memwatchd_did_not_run_are_in_its_first_tick() -> None:
    found = KillCounts()
    found.add(NewKills(unnamed=2), 7)

    assert found.scopes == {"machine": 0, "cgroup": 0, "unknown": 7}


@pytest.mark.parametrize(("total", "unknown", "cgroup"), [(9, 4, 5), (5, 0, 5), (3, 3, 0)])
def test_counts_of_an_earlier_run_continue(total: int, unknown: int, cgroup: int) -> None:
    """More kills than the kernel has counted are those of another boot."""
    found = KillCounts()
    found.restore({"cgroup": 5})
    found.add(NewKills(), total)

    assert found.scopes == {"machine": 0, "cgroup": cgroup, "unknown": unknown}
    assert found.figures() == ({"kernel.oom_kills_cgroup_total": 5} if cgroup else {})
