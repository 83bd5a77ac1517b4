"""Test that an OOM kill counted in one file and named in another is one kill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.linux.cgroup_kills import CgroupKill, CgroupKills
from memwatch.core.model import Absent
from memwatch.core.pressure import oom_kills
from memwatch.core.pressure.oom_kills import (
    GRACE_SECONDS,
    NewKills,
    OomKillCount,
    OwnKills,
    RamShortage,
    claim_own_kills,
    count_new_kills,
)
from memwatch.core.snapshot import Kernel


def log_of(kills: int) -> KernelLog:
    """Return a log that named this many kills; it keeps the last 16."""
    return KernelLog(tuple(OomKill(number, number, "x", 0, "machine") for number in range(1, kills + 1))[-16:])


def new_kills(ticks: list[tuple[int, int | None]], every: float = 1.0) -> list[tuple[int, int]]:
    """Return the new kills of each tick (named, unnamed), from ticks (counted, named; None without a log)."""
    before, found = OomKillCount(), []
    for at, (counted, named) in enumerate(ticks):
        log = None if named is None else log_of(named)
        before, new = count_new_kills(before, Kernel(counted), log, at * every)
        found.append((len(new.named), new.unnamed))
    return found


@pytest.mark.parametrize(
    ("ticks", "new"),
    [
        # Neither the count since boot nor the log entries at the start are new.
        ([(7, 3), (7, 3)], [(0, 0), (0, 0)]),
        # Counted first: reported with its name one tick later.
        ([(7, 0), (8, 0), *[(8, 1)] * 4], [(0, 0), (0, 0), (1, 0), *[(0, 0)] * 3]),
        # Named first: the count that follows is the same kill.
        ([(7, 0), (7, 1), *[(8, 1)] * 4], [(0, 0), (1, 0), *[(0, 0)] * 4]),
        # Without a log no name can follow.
        ([(7, None), (8, None)], [(0, 0), (0, 1)]),
    ],
    ids=["before the start", "counted first", "named first", "without a log"],
)
def test_kill_is_new_once(ticks: list[tuple[int, int | None]], new: list[tuple[int, int]]) -> None:
    assert new_kills(ticks) == new


HIDDEN = OomKill(1, 77, "x", 0, "cgroup", "/docker/1f6b")


def in_a_container(line: float, count: float, own: float, until: float = 20.0) -> list[tuple[float, int, int, int]]:
    """Return ticks with new kills: time, named, of the own cgroup, others. The arguments are times of the files.

    The container has its own cgroup namespace and reads the log of the kernel.
    """
    state, found = OomKillCount(), []
    for half in range(round(2 * until)):
        at = half / 2
        log = KernelLog((HIDDEN,) if at >= line else ())
        state, new = count_new_kills(state, Kernel(int(at >= count)), log, at, 0.2, None, int(at >= own))
        if new.named or new.of_cgroups or new.unnamed:
            found.append((at, len(new.named), sum(one.count for one in new.of_cgroups), new.unnamed))
    return found


@pytest.mark.parametrize(
    ("line", "count", "own", "reported"),
    [
        (1.0, 1.0, 1.0, (1.0, 1, 0, 0)),
        (1.5, 1.0, 1.0, (1.5, 1, 0, 0)),
        # The line waits for the count of the own cgroup, which has the target of its level.
        (1.0, 1.0, 1.5, (1.5, 1, 0, 0)),
        (1.0, 1.5, 1.5, (1.5, 1, 0, 0)),
        (1.0, 4.0, 4.0, (3.5, 1, 0, 0)),
        (4.0, 1.0, 1.0, (3.5, 0, 1, 0)),
        (15.0, 1.0, 1.0, (3.5, 0, 1, 0)),
    ],
)
def test_kill_whose_line_and_counts_are_read_apart_is_one(
    line: float, count: float, own: float, reported: tuple[float, int, int, int]
) -> None:
    assert in_a_container(line, count, own) == [reported]


@pytest.mark.parametrize(
    ("own", "other", "reported"),
    [
        (1.0, "", [(1.0, True)]),
        (2.0, "", [(2.0, True)]),
        (1.5, "", [(1.5, True)]),
        (99.0, "", [(3.5, False)]),
        # The count cannot tell which of two groups it is of.
        (2.0, "/docker/2222", [(3.5, False), (3.5, False)]),
    ],
    ids=["at once", "a tick later", "between", "of another container", "two groups"],
)
def test_line_before_the_count_of_the_own_cgroup_is_of_it(
    own: float, other: str, reported: list[tuple[float, bool]]
) -> None:
    """Without the target it would be a message beside that of the level."""
    lines = (HIDDEN, *([OomKill(2, 78, "x", 0, "cgroup", other)] if other else []))
    state, found = OomKillCount(), []
    for half in range(20):
        at = half / 2
        log = KernelLog(lines if at >= 1.0 else ())
        state, new = count_new_kills(state, Kernel(len(log.kills)), log, at, 0.2, None, int(at >= own))
        found += [(at, kill in new.named_of_own) for kill in new.named]

    assert found == reported


def test_kill_of_the_machine_is_not_held_behind_one_at_a_limit() -> None:
    state, _ = count_new_kills(OomKillCount(), Kernel(0), KernelLog(), 0.0, 0.2, None, 0)
    machine = OomKill(2, 78, "x", 0, "machine")
    _, new = count_new_kills(state, Kernel(2), KernelLog((HIDDEN, machine)), 1.0, 0.2, None, 0)

    assert new.named == (machine,)


@pytest.mark.parametrize(("apart", "kills"), [(59.0, 1), (61.0, 2)])
def test_line_is_of_an_earlier_count_for_a_minute(apart: float, kills: int) -> None:
    """Later it is another kill, which this kernel does not count."""
    assert len(in_a_container(3.5 + apart, 1.0, 1.0, until=70.0)) == kills


def test_second_kill_is_reported_if_the_line_of_the_first_was_lost() -> None:
    """Its own line is taken for that of the first, and its count is then without a line."""
    state, found = OomKillCount(), [0, 0]
    for at in range(20):
        log = KernelLog((HIDDEN,) if at >= 8 else ())
        state, new = count_new_kills(state, Kernel(int(at >= 1) + int(at >= 9)), log, float(at), 0.2)
        found = [found[0] + len(new.named), found[1] + new.unnamed]

    assert found == [0, 2]


@pytest.mark.parametrize(("waited", "unnamed"), [(2.4, 0), (2.5, 2)])
def test_missing_name_ends_the_wait(waited: float, unnamed: int) -> None:
    """Its log entry was overwritten, so the kill is reported without a name."""
    found = kills_at((0.0, 0.3, 7), (1.0, 0.3, 9), (1.0 + waited, 0.3, 9), log=log_of(0))

    assert [new.unnamed for new in found] == [0, 0, unnamed]


@pytest.mark.parametrize(("late", "is_own"), [(2.4, True), (2.5, False)])
def test_counter_of_the_own_cgroup_claims_a_name_that_comes_soon(late: float, is_own: bool) -> None:
    """The log has a path that the namespace hides. Later, the count was of another kill."""
    line = OomKill(1, 77, "x", 0, "cgroup", "/docker/1f6b")

    after, claimed = claim_own_kills(OwnKills(0), 1, (), "/", 1.0, is_owed=False)
    _, named = claim_own_kills(after, 1, (line,), "/", 1.0 + late, is_owed=False)

    assert claimed == ()
    assert named == ((line,) if is_own else ())


def test_named_kill_is_reported_without_a_counter() -> None:
    """Linux before 4.13 has no oom_kill counter."""
    before, _ = count_new_kills(OomKillCount(), None, log_of(0), 0.0)

    assert count_new_kills(before, None, log_of(1), 1.0)[1] == NewKills(log_of(1).kills)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_each_kill_is_reported_once(steps: list[tuple[int, int]]) -> None:
    """For any order of counts and names within a minute: as many as were counted or named, and none more."""
    counted, named, ticks = 0, 0, [(0, 0)]
    for more_counted, more_named in steps:
        counted, named = counted + more_counted, named + more_named
        ticks.append((counted, named))
    ticks += [(counted, named)] * 5

    found = new_kills([(count, name) for count, name in ticks])

    assert sum(one + other for one, other in found) == max(counted, named)


def shortage_of(*readings: tuple[float, float | Absent, int | None]) -> RamShortage:
    """Return the state after readings of time, use, and allocations that had to free memory."""
    found = RamShortage()
    for at, used, reclaims in readings:
        kernel = None if reclaims is None else Kernel(allocstall_total=reclaims)
        found = found.with_reading(at, used, kernel)
    return found


UNKNOWN = Absent.NOT_AVAILABLE


@pytest.mark.parametrize(("used", "is_short"), [(0.80, True), (0.799, False), (UNKNOWN, False)])
def test_full_ram_is_short(used: float | Absent, is_short: bool) -> None:
    assert shortage_of((10.0, used, 0)).was_short is is_short


@pytest.mark.parametrize(("seconds", "is_short"), [(1, True), (5, True), (6, True), (7, False), (60, False)])
def test_shortage_counts_for_five_seconds_and_the_reading_before(seconds: int, is_short: bool) -> None:
    """A kill makes room before the next reading."""
    after = [(10.0 + second, 0.2, 0) for second in range(1, seconds + 1)]

    assert shortage_of((10.0, 0.99, 0), *after).was_short is is_short


@pytest.mark.parametrize("pause", [0.1, 1.0, 7.5, 60.0])
def test_last_reading_before_a_standstill_counts(pause: float) -> None:
    """A machine that runs out of memory may stand still for longer than five seconds."""
    assert shortage_of((0.0, 0.3, 0), (1.0, 0.81, 0), (1.0 + pause, 0.2, 0)).was_short
    assert shortage_of((0.0, 0.3, 0), (1.0, 0.62, 0), (1.0 + pause, 0.2, 90_000)).was_short


@pytest.mark.parametrize(
    ("used", "rise", "is_short"),
    [
        (0.50, 5, True),
        (0.499, 5, False),
        (0.50, 4, False),
        (0.50, -500, False),
        (UNKNOWN, 5, True),
        (UNKNOWN, 4, False),
    ],
)
def test_reclaim_of_the_machine_is_a_shortage_from_half_full_on(
    used: float | Absent, rise: int, is_short: bool
) -> None:
    """The kernel does not count there what a cgroup at its limit frees. A counter that falls says nothing."""
    assert shortage_of((1.0, used, 700), (2.0, used, 700 + rise)).was_short is is_short


def test_reclaim_is_added_up_over_the_seconds_before() -> None:
    assert shortage_of(*((float(at), 0.6, at) for at in range(6))).was_short
    assert not shortage_of(*((float(at), 0.6, at // 3) for at in range(60))).was_short


def test_counters_that_come_later_are_no_reclaim() -> None:
    """Total since boot, read for the first time, or not counted by this kernel."""
    assert not shortage_of((1.0, 0.6, None), (2.0, 0.6, 500), (3.0, 0.6, None), (4.0, 0.6, 500)).was_short


def kills_at(*ticks: tuple[float, float, int], log: KernelLog | None = None) -> list[NewKills]:
    """Return the new kills of ticks of time, use, and counted kills."""
    state, found = OomKillCount(), []
    for at, used, counted in ticks:
        state, new = count_new_kills(state, Kernel(counted), log, at, used)
        found.append(new)
    return found


def test_kill_without_a_name_is_judged_when_it_is_counted() -> None:
    """While a log is read, its name is awaited for some seconds, in which the machine changes."""
    calm_later = kills_at((0.0, 0.3, 0), (1.0, 0.96, 0), (4.0, 0.2, 1), (5.0, 0.2, 1), (7.0, 0.2, 1), log=log_of(0))
    full_later = kills_at((0.0, 0.3, 0), (1.0, 0.3, 1), (2.0, 0.9, 1), (4.0, 0.9, 1), log=log_of(0))

    assert [new.unnamed_of_machine for new in calm_later] == [0, 0, 0, 0, 1]
    assert [(new.unnamed, new.unnamed_of_machine) for new in full_later] == [(0, 0)] * 3 + [(1, 0)]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.4999), st.integers(0, 3), st.integers(0, 9), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_no_kill_is_the_machines_while_half_of_it_is_available(ticks: list[tuple[float, int, int, bool]]) -> None:
    """For any order of kills, direct reclaim and rates of reading, without a log that names them."""
    counted = stalls = 0
    state, at, found = OomKillCount(), 0.0, []
    for used, kills, stalled, is_fast in ticks:
        counted, stalls, at = counted + kills, stalls + stalled, at + (0.1 if is_fast else 1.0)
        state, new = count_new_kills(state, Kernel(counted, allocstall_total=stalls), None, at, used)
        found.append(new)

    assert [new.unnamed_of_machine for new in found] == [0] * len(found)
    assert sum(new.unnamed for new in found) == counted - ticks[0][1]


def scan_of(counted: int, *kills: CgroupKill) -> CgroupKills:
    return CgroupKills(counted, sum(kill.count for kill in kills), kills)


JOB = CgroupKill(1, 1, "/job", 32 << 20)
Tick = tuple[float, float, int, CgroupKills]


def scanned(*ticks: Tick, log: KernelLog | None = None) -> list[NewKills]:
    """Return the new kills of ticks of time, use, counted kills, and the last scan of cgroups."""
    state, found = OomKillCount(), []
    for at, used, counted, scan in ticks:
        state, new = count_new_kills(state, Kernel(counted), log, at, used, scan)
        found.append(new)
    return found


def scopes(kills: list[NewKills]) -> list[tuple[int, int, int]]:
    """Return the number of kills by scope: cgroup, unknown, and those of them that count as the machine's."""
    return [(sum(one.count for one in new.of_cgroups), new.unnamed, new.unnamed_of_machine) for new in kills]


@pytest.mark.parametrize("used", [0.2, 0.99])
def test_kill_that_a_cgroup_explains_is_not_the_machines(used: float) -> None:
    """However full System RAM is: the kernel counted it at the limit of the cgroup."""
    found = scanned((0.0, used, 0, scan_of(0)), (1.0, used, 1, scan_of(0)), (1.1, used, 1, scan_of(1, JOB)))

    assert scopes(found) == [(0, 0, 0), (0, 0, 0), (1, 0, 0)]
    assert found[-1].of_cgroups == (JOB,)


def test_kill_that_is_scanned_first_is_explained_when_it_is_counted() -> None:
    """A scan comes every ten seconds as well, and /proc/vmstat is read once a second."""
    early = scan_of(1, JOB)
    found = scanned(
        (0.0, 0.2, 0, scan_of(0)), *[(1.0 + tick, 0.2, 0, early) for tick in range(9)], (11.0, 0.2, 1, early)
    )

    assert scopes(found)[-1] == (1, 0, 0)


def test_kill_that_the_machine_never_counts_explains_no_later_one() -> None:
    """It is taken note of when it is scanned, although nothing else has changed, and dropped some seconds later."""
    before, after = CgroupKills(0, 1, (JOB,)), CgroupKills(1, 1, (JOB,))
    found = scanned(
        (0.0, 0.99, 0, scan_of(0)),
        *[(1.0 + tick, 0.99, 0, before) for tick in range(9)],
        (60.0, 0.99, 1, after),
        (61.0, 0.99, 1, after),
    )

    assert (sum(one.unnamed_of_machine for one in found), [one.of_cgroups for one in found if one.of_cgroups]) == (
        1,
        [],
    )


@pytest.mark.parametrize("used", [0.2, 0.99])
def test_kills_that_no_cgroup_explains_are_judged_by_system_ram(used: float) -> None:
    after = scan_of(3, JOB)
    found = scanned(
        (0.0, used, 0, scan_of(0)), (1.0, used, 3, scan_of(0)), (1.1, used, 3, after), (2.0, used, 3, after)
    )

    assert scopes(found) == [(0, 0, 0), (0, 0, 0), (1, 2, 2 if used > 0.8 else 0), (0, 0, 0)]


@pytest.mark.parametrize(("used", "seconds"), [(0.99, 1.0), (0.2, GRACE_SECONDS)])
def test_scan_that_does_not_come_is_awaited_less_while_ram_is_short(used: float, seconds: float) -> None:
    """A machine that runs out of memory may not run the thread of the scan."""
    old = scan_of(0)
    ticks: list[Tick] = [(0.0, used, 0, old), *[(1.0 + tick / 10, used, 1, old) for tick in range(30)]]

    found = scopes(scanned(*ticks))

    (at,) = [ticks[number][0] for number, (_, unknown, _) in enumerate(found) if unknown]
    assert at - 1.0 == pytest.approx(seconds, abs=0.11)


def test_kill_that_the_log_names_is_not_one_of_its_cgroup_again() -> None:
    """Whichever comes first. A further kill of the same cgroup without a line is explained."""
    line = KernelLog((OomKill(1, 77, "x", 0, "cgroup", "/job"),))
    again = CgroupKill(2, 1, "/job")
    for first, second in ((scan_of(0), scan_of(1, JOB)), (scan_of(1, JOB), scan_of(1, JOB))):
        state, found = OomKillCount(), []
        for at, counted, log, scan in (
            (0.0, 0, KernelLog(), scan_of(0)),
            (1.0, 1, line, first),
            (2.0, 1, line, second),
            (60.0, 2, line, scan_of(2, JOB, again)),
            (63.0, 2, line, scan_of(2, JOB, again)),
        ):
            state, new = count_new_kills(state, Kernel(counted), log, at, 0.2, scan)
            found.append((len(new.named), sum(one.count for one in new.of_cgroups), new.unnamed))

        assert found == [(0, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 0)]


def test_collector_that_starts_again_counts_from_0() -> None:
    found = scanned(
        (0.0, 0.2, 0, scan_of(0)),
        (1.0, 0.2, 5, scan_of(5, CgroupKill(5, 5, "/job"))),
        (2.0, 0.2, 5, scan_of(5)),
        (3.0, 0.2, 6, scan_of(6, JOB)),
    )

    assert scopes(found) == [(0, 0, 0), (5, 0, 0), (0, 0, 0), (1, 0, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=40))
def test_each_counted_kill_has_one_scope(steps: list[tuple[int, int, bool]]) -> None:
    """For any order of kills at limits, other kills, and scans: none is lost, and none is explained twice."""
    counted, kills, scan, at = 0, list[CgroupKill](), scan_of(0), 0.0
    ticks: list[Tick] = [(at, 0.2, counted, scan)]
    for at_limits, others, is_scanned in steps:
        counted, at = counted + at_limits + others, at + 1.0
        if at_limits:
            kills.append(CgroupKill(sum(one.count for one in kills) + at_limits, at_limits, "/job"))
        scan = scan_of(counted, *kills) if is_scanned else scan
        ticks.append((at, 0.2, counted, scan))
    ticks += [(at + after, 0.2, counted, scan_of(counted, *kills)) for after in range(1, 5)]

    found = scopes(scanned(*ticks))

    assert sum(cgroup + unknown for cgroup, unknown, _ in found) == counted
    assert sum(cgroup for cgroup, _, _ in found) <= sum(one.count for one in kills)


TICK_OF_KILLS = st.tuples(
    st.integers(0, 1), st.integers(0, 1), st.booleans(), st.integers(0, 1), st.none() | st.integers(0, 1)
)


@given(st.lists(TICK_OF_KILLS, min_size=3, max_size=30), st.sampled_from([0.1, 1.0]))
def test_tick_without_kills_is_the_same_as_one_that_looks_for_them(
    steps: list[tuple[int, int, bool, int, int | None]], every: float
) -> None:
    """Nearly all ticks are quiet, and skip the rest of the work. States and kills are those of the whole work."""
    whole = quiet = OomKillCount()
    counted = logged = grouped = own = 0
    for at, (kills, named, has_log, of_group, of_own) in enumerate(steps):
        counted, logged, grouped = counted + kills, logged + named, grouped + of_group
        own += of_own or 0
        log = log_of(logged) if has_log else None
        groups = tuple(CgroupKill(number, 1, "/job") for number in range(1, grouped + 1))
        scan = CgroupKills(counted, grouped, groups[-16:])
        given_now = Kernel(counted), log, at * every, 0.5, scan, None if of_own is None else own
        quiet, found = count_new_kills(quiet, *given_now)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(oom_kills, "_is_quiet", lambda *_: False)
            whole, expected = count_new_kills(whole, *given_now)

        assert (quiet, found) == (whole, expected)
