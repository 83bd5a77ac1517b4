"""Test the evidence that a cause needs: half of the rise, and twice as much as any other. No wrong name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.reporting.incidents.cause import Finding, Rise, find_cause, find_rise, grown_part
from memwatch.reporting.incidents.readings import HolderKey, Holding, Reading
from memwatch.reporting.incidents.records import Suspect
from memwatch_monitor.incidents.sentence import describe_cause, list_evidence
from support.fakes import GIB

MIB = 1 << 20
UNIX = 1_700_000_000.0
SIZE = 64 * GIB


def reading(at: float, used: int, **sizes: int) -> Reading:
    """Return a reading with the sizes of processes by name, of which the last digits are the PID."""
    holders = {
        HolderKey(int(name[-2:]), UNIX - 86_400): Holding(name, f"{name}.service", None, size, UNIX - 86_400)
        for name, size in sizes.items()
    }
    return Reading(at, UNIX + at, used, SIZE - used, holders)


def explain(*grown: int, beside: int = 0) -> Finding:
    """Return the cause of a rise of ten seconds, by growth of processes and of memory of no process."""
    names = [f"p{10 + number}" for number in range(len(grown))]
    readings = [
        reading(
            float(second),
            20 * GIB + (sum(grown) + beside) * second // 10,
            **{name: GIB + size * second // 10 for name, size in zip(names, grown, strict=True)},
        )
        for second in range(11)
    ]
    return find_cause(readings, 10.0, SIZE)


def culprit(found: Finding) -> int | None:
    return found.cause.pid if found.cause else None


@pytest.mark.parametrize(
    ("first", "second", "pid"),
    [
        (12 * GIB, 0, 10),
        (12 * GIB, 6 * GIB, 10),
        (12 * GIB, 6 * GIB + 10 * MIB, None),
        (12 * GIB, 8 * GIB, None),
        (12 * GIB, 10 * GIB, None),
        (12 * GIB, 12 * GIB, None),
        (6 * GIB, 12 * GIB, 11),
    ],
)
def test_cause_leads_twice(first: int, second: int, pid: int | None) -> None:
    """With a smaller lead both are listed, and none is named."""
    found = explain(first, second)

    assert culprit(found) == pid
    if pid is None:
        assert {one.pid for one in found.candidates} == {10, 11}


@pytest.mark.parametrize(("beside", "pid"), [(0, 10), (4 * GIB, 10), (4 * GIB + 20 * MIB, None), (12 * GIB, None)])
def test_cause_explains_half_of_the_rise(beside: int, pid: int | None) -> None:
    """4 GiB of a rise by 8 GiB."""
    found = explain(4 * GIB, beside=beside)

    assert culprit(found) == pid


@pytest.mark.parametrize(
    ("first", "second", "pid"), [(12 * GIB, 7 * GIB, None), (7 * GIB, 7 * GIB, None), (4 * GIB, GIB, None)]
)
def test_cause_needs_both_lead_and_part(first: int, second: int, pid: int | None) -> None:
    """The last one leads, but explains less than half; the first explains half, but does not lead."""
    found = explain(first, second, beside=0 if first > 4 * GIB else 8 * GIB)

    assert culprit(found) == pid


@pytest.mark.parametrize(("grown", "is_named"), [(320 * MIB, False), (340 * MIB, True)])
def test_growth_below_half_a_percent_is_no_cause(grown: int, is_named: bool) -> None:
    """64 GiB: 328 MiB."""
    assert bool(explain(grown).cause) is is_named


def suspect(pid: int, growth: int) -> Suspect:
    return Suspect(f"p{pid}", pid, None, None, growth, UNIX, growth, False)


@pytest.mark.parametrize(
    ("growths", "pid"),
    [
        ((6 * GIB, 2 * GIB), 10),
        ((6 * GIB, 2 * GIB + MIB), None),
        ((6 * GIB, 3 * GIB), None),
        ((SIZE // 20,), 10),
        ((SIZE // 20 - MIB,), None),
    ],
)
def test_growth_of_the_last_hour_leads_three_times(growths: tuple[int, ...], pid: int | None) -> None:
    """And is a twentieth of the memory: 3.2 GiB."""
    steady = [reading(float(second), 60 * GIB, p10=GIB) for second in range(11)]
    long = [suspect(10 + number, growth) for number, growth in enumerate(growths)]

    found = find_cause(steady, 10.0, SIZE, long=long)

    assert culprit(found) == pid
    assert found.is_long
    assert len(found.candidates) == (0 if pid else len(growths))


@pytest.mark.parametrize(("growth", "is_long"), [(int(1.9 * GIB), False), (2 * GIB, True)])
def test_slow_growth_of_the_cause_is_that_of_the_last_hour(growth: int, is_long: bool) -> None:
    """If it is twice that of the last minutes."""
    readings = [
        reading(float(second), 40 * GIB + second * GIB // 10, p10=GIB + second * GIB // 10) for second in range(11)
    ]

    found = find_cause(readings, 10.0, SIZE, long=[suspect(10, growth), suspect(11, 9 * GIB)])

    assert culprit(found) == 10
    assert found.is_long is is_long


@pytest.mark.parametrize(("ago", "is_seen"), [(15.0, True), (16.0, False)])
def test_peak_before_a_kill_is_looked_for_in_fifteen_seconds(ago: float, is_seen: bool) -> None:
    """The kill freed the memory before it was noticed."""
    readings = [reading(0.0, 20 * GIB), reading(50.0, 60 * GIB), reading(50.0 + ago, 30 * GIB)]

    rise = find_rise(readings, 50.0 + ago)

    assert rise is not None
    assert (rise.peak.used == 60 * GIB) is is_seen


@pytest.mark.parametrize(("late", "is_seen"), [(0.049, True), (0.05, True), (0.051, False)])
def test_reading_of_the_tick_that_noticed_the_end_counts(late: float, is_seen: bool) -> None:
    """It is taken some milliseconds after the end: its use, and the sizes of its processes."""
    readings = [reading(-9.0, 20 * GIB, p10=GIB), reading(late, 40 * GIB, p10=21 * GIB)]

    rise = find_rise(readings, 0.0)
    found = find_cause(readings, 0.0, SIZE)

    assert rise is not None
    assert rise.taken == (20 * GIB if is_seen else 0)
    assert culprit(found) == (10 if is_seen else None)


@pytest.mark.parametrize(("seconds", "taken"), [(130.0, 20 * GIB), (131.0, 10 * GIB)])
def test_rise_is_looked_for_in_the_last_two_minutes(seconds: float, taken: int) -> None:
    readings = [reading(0.0, 20 * GIB), reading(100.0, 30 * GIB), reading(seconds, 40 * GIB)]

    rise = find_rise(readings, seconds)

    assert rise is not None
    assert rise.taken == taken


def test_least_growth_of_a_small_machine_is_64_mib() -> None:
    """Half a percent of its memory is less."""
    below, above = (
        find_cause([reading(0.0, GIB, p10=GIB), reading(5.0, GIB + grown, p10=GIB + grown)], 5.0, 2 * GIB)
        for grown in (63 * MIB, 64 * MIB)
    )

    assert (culprit(below), culprit(above)) == (None, 10)


def test_growth_began_with_the_first_reading_of_the_scan_before_it() -> None:
    """A scan is in ten readings: the process may have grown since the first of them."""
    readings = [reading(float(second), 20 * GIB + second * GIB, p10=GIB) for second in range(10)]
    readings.append(reading(10.0, 30 * GIB, p10=9 * GIB))

    found = find_cause(readings, 10.0, SIZE)

    assert found.cause is not None
    assert (found.cause.pid, found.cause.began) == (10, UNIX)


def steady(begin: int, end: int, rate: int, drift: int = 0) -> list[Reading]:
    """Return readings of each second: a process takes `rate` a second from `begin` to `end`, others `drift`."""
    sizes = [GIB + rate * min(max(0, second - begin), end - begin) for second in range(end + 10)]
    return [reading(float(second), 20 * GIB + size + drift * second, p10=size) for second, size in enumerate(sizes)]


@pytest.mark.parametrize("late", [False, True], ids=["on time", "late"])
@pytest.mark.parametrize("drift", [0, 10 * MIB], ids=["alone", "beside a slow one"])
def test_growth_has_one_beginning_at_its_foot(drift: int, late: bool) -> None:
    """An incident said "in 1 min 28 s", its evidence "after 1 min 32 s", and its red began 10 s before the flag."""
    readings = steady(20, 120, 400 * MIB, drift)
    for number in (22, 23, 118) if late else ():  # figures of the second before
        readings[number] = replace(readings[number - 1], boottime=float(number), unix=UNIX + number)

    found = find_cause(readings, 129.0, SIZE)

    assert found.cause is not None
    assert found.rise is not None
    assert (found.rise.begin.boottime, found.rise.end.boottime) == (20.0, 120.0)
    assert found.cause.began == found.rise.begin.unix
    assert found.cause.growth_bytes == 100 * 400 * MIB
    title, evidence = describe_cause("System RAM", found), next(list_evidence("System RAM", found, ()))
    assert "in 1 min 40 s" in title
    assert evidence.endswith("after 1 min 40 s")


def test_growth_without_a_process_is_that_of_parts_that_both_readings_have() -> None:
    """A kernel may begin to report a part, such as huge pages, in between."""
    begin = Reading(0.0, 0.0, GIB, GIB, {}, {"kernel": 1 * GIB, "unattributed": 5 * GIB, "page_cache": GIB})
    peak = Reading(9.0, 9.0, GIB, GIB, {}, {"kernel": 4 * GIB, "huge_pages": 7 * GIB, "page_cache": 9 * GIB})

    assert grown_part(Rise(begin, peak, peak)) == 3 * GIB
