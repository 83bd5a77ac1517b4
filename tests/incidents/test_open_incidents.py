"""Test what an open incident keeps, which lines are about one end, and the mark of the cause."""

from __future__ import annotations

import pytest

from memwatch.core.events import MARK, Event
from memwatch.reporting.incidents.cause import Finding, Observed, Rise
from memwatch.reporting.incidents.killer import Death
from memwatch.reporting.incidents.readings import HolderKey, Holding, Reading, build_frame
from memwatch.reporting.incidents.records import IncidentKind, Killer, KillerKind, Suspect, Victim
from memwatch_monitor.incidents.assemble import (
    _describe_return,
    _find_largest,
    _list_driver_lines,
    build_incident,
    find_mark,
    sample,
)
from memwatch_monitor.incidents.open_incident import OpenIncident, is_same_end
from support.fakes import GIB
from support.sample_snapshots import calm_workstation

UNIX = 1_700_000_000.0


def incident(kind: IncidentKind = "critical") -> OpenIncident:
    return OpenIncident("inc_1", kind, "ram", "System RAM", 64 * GIB, UNIX, 100.0, 100.0, UNIX)


def death(pid: int | None, source: str = "kernel", killer: KillerKind = "kernel_oom", place: str = "") -> Death:
    who = f"p{pid}" if pid is not None else place.rsplit("/", 1)[-1]
    return Death(
        Victim(who, pid, None, None, GIB, UNIX, killer), Killer(killer, "a line"), source=source, place=place
    )


def test_frames_are_bounded_and_the_older_half_is_thinned_out() -> None:
    """The newest ones explain the end, so they stay as they are."""
    one, snapshot = incident(), calm_workstation()
    for second in range(601):
        one.add_frame(build_frame(float(second), snapshot))

    times = [frame.boottime for frame in one.frames]
    assert times == [*(float(at) for at in range(0, 300, 2)), *(float(at) for at in range(300, 601))]


@pytest.mark.parametrize(("later", "count"), [(0.0, 1), (15.0, 1), (15.5, 2)])
def test_lines_within_fifteen_seconds_are_about_one_end(later: float, count: int) -> None:
    one = incident("kill")

    first, second = one.add_death(100.0, death(7)), one.add_death(100.0 + later, death(7, "systemd"))

    assert (first, second, len(one.deaths)) == (True, count == 2, count)


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        (("unknown", "kernel_oom"), "kernel_oom"),
        (("kernel_oom", "unknown"), "kernel_oom"),
        (("kernel_oom", "systemd_oomd"), "kernel_oom"),
    ],
)
def test_line_that_names_the_killer_replaces_one_that_does_not(
    kinds: tuple[KillerKind, KillerKind], kept: KillerKind
) -> None:
    """Both at one time: known kills stay."""
    one = incident("kill")
    for kind in kinds:
        one.add_death(100.0, death(7, killer=kind))

    assert [known.killer.kind for _, known in one.deaths] == [kept]


def test_sixteen_victims_are_kept_and_others_are_still_new() -> None:
    one = incident("kill")

    found = [one.add_death(100.0, death(pid)) for pid in range(1, 19)]

    assert all(found)
    assert [known.victim.pid for _, known in one.deaths] == list(range(1, 17))
    text = "2 more processes were killed after 16 reports of kills; none is listed."
    assert text in build_incident(one).evidence


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        (death(7), death(7), True),
        (death(7), death(8), False),
        (death(None, "count"), death(7, "kernel"), True),
        (death(7, "oom_report"), death(None, "count"), True),
        (death(None, "count"), death(None, "runtime_oom"), True),
        (death(None, "count"), death(7, "systemd_oomd"), False),
        (death(None, "count"), death(None, "count"), False),
        (death(None, "cgroup", place="/a.service"), death(None, "cgroup", place="/a.service"), False),
        (death(None, "systemd", place="a.service"), death(None, "podman", place="x/a.service"), True),
        (death(None, "systemd", place="a.service"), death(None, "podman", place="x/b.service"), False),
    ],
)
def test_two_lines_are_about_one_end(first: Death, second: Death, is_one: bool) -> None:
    """By the number of the process if both have one, else by the place. The counter is that of the kernel."""
    assert is_same_end(first, second) is is_same_end(second, first) is is_one


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("critical", "kill", "kill"),
        ("kill", "critical", "kill"),
        ("kill", "unclean_end", "unclean_end"),
        ("unclean_end", "kill", "unclean_end"),
        ("wedge", "gpu_lost", "gpu_lost"),
        ("gpu_lost", "kill", "kill"),
        ("program", "critical", "program"),
    ],
)
def test_more_specific_kind_is_kept(first: IncidentKind, second: IncidentKind, kept: IncidentKind) -> None:
    one = incident(first)
    one.note(second, 120.0, UNIX + 20)

    assert (one.kind, one.bad_at, one.bad_unix) == (kept, 120.0, UNIX + 20)


def rise() -> Rise:
    begin, peak = (
        Reading(at, UNIX + at, used * GIB, (64 - used) * GIB, {}) for at, used in ((0.0, 10), (60.0, 60))
    )
    return Rise(begin, peak, peak)


@pytest.mark.parametrize(
    ("at", "text", "found"),
    [
        (20.0, "weights loaded (process 7)", "weights loaded"),
        (10.0, "weights loaded (process 7)", "weights loaded"),
        (9.0, "weights loaded (process 7)", ""),
        (60.0, "weights loaded (process 7)", "weights loaded"),
        (61.0, "weights loaded (process 7)", ""),
        (30.0, "weights loaded (process 77)", ""),
        (30.0, "weights loaded", ""),
        (30.0, "out of memory for 2 GiB (process 7)", ""),
        (30.0, "x" * 90 + " (process 7)", "x" * 60),
    ],
)
def test_mark_of_the_cause_is_from_ten_seconds_before_its_growth_until_the_peak(
    at: float, text: str, found: str
) -> None:
    """The process grew from second 20 on, and the peak is at second 60."""
    one = incident()
    one.events = [Event(1, UNIX + 25, "level", "weights loaded (process 7)"), Event(2, UNIX + at, MARK, text)]
    cause = Suspect("train", 7, None, None, 50 * GIB, UNIX + 20, 55 * GIB)

    assert find_mark(one, Finding(cause, (), rise())) == found
    assert find_mark(one, Finding(None, (cause,), rise())) == ""


@pytest.mark.parametrize(
    ("largest", "second", "started", "pid"),
    [
        (4 * GIB, 2 * GIB, UNIX, 10),
        (4 * GIB, 2 * GIB + 1, UNIX, None),
        (4 * GIB, GIB, None, None),
        (64 << 20, 0, UNIX, 10),
        ((64 << 20) - 1, 0, UNIX, None),
    ],
)
def test_process_that_fills_a_cgroup_is_its_largest_by_far(
    largest: int, second: int, started: float | None, pid: int | None
) -> None:
    """Twice the next one, 64 MiB at least, and of known age."""
    holders = {
        HolderKey(10, 1.0): Holding("train", None, None, largest, started),
        HolderKey(11, 1.0): Holding("other", None, None, second, UNIX),
    }
    inside = [Reading(9.0, UNIX + 9, 5 * GIB, GIB, holders), Reading(12.0, UNIX + 12, GIB, 5 * GIB, {})]

    found = _find_largest(inside, {}, 10.0, Finding())

    assert (found.cause.pid if found.cause else None) == pid


def test_size_that_the_kernel_logged_counts_if_it_is_larger() -> None:
    holders = {
        HolderKey(10, 1.0): Holding("train", None, None, GIB, UNIX),
        HolderKey(11, 1.0): Holding("other", None, None, 2 * GIB, UNIX),
    }
    inside = [Reading(9.0, UNIX + 9, 5 * GIB, GIB, holders)]

    found = _find_largest(inside, {10: Observed("train", 5 * GIB)}, 10.0, Finding())

    assert found.cause is not None
    assert (found.cause.pid, found.cause.growth_bytes) == (10, 5 * GIB)
    assert _find_largest([], {}, 10.0, Finding()) == Finding()


@pytest.mark.parametrize(("at", "lines"), [(-60.0, ["XID 79"]), (-61.0, ["gpu0 is lost"]), (0.0, ["XID 79"])])
def test_lost_gpu_has_the_lines_of_its_driver(at: float, lines: list[str]) -> None:
    """Those of the last minute, else its state."""
    one = incident("gpu_lost")
    one.detail = "gpu0 is lost"
    one.events = [Event(1, UNIX + at, "driver", "XID 79"), Event(2, UNIX, "level", "System RAM: high → critical")]

    assert _list_driver_lines(one) == lines


def test_incident_lists_thirty_observations_at_most() -> None:
    """The last line counts the others."""
    notes = [f"observation {number}" for number in range(40)]
    left_out = len(build_incident(incident(), notes=notes[:30]).evidence) - 30

    found = build_incident(incident(), notes=notes).evidence

    assert left_out == 0
    assert (len(found), found[28], found[29]) == (30, "observation 28", "11 more observations")


def readings_of(count: int, holders: int) -> list[Reading]:
    """Return a reading per second, the last but one with the least available, each with this many processes."""
    held = {HolderKey(pid, 0.0): Holding(f"p{pid}", None, None, pid * GIB, None) for pid in range(1, holders + 1)}
    used = [10 * GIB] * (count - 2) + [60 * GIB, 50 * GIB]
    return [Reading(float(at), UNIX + at, one, 64 * GIB - one, held) for at, one in enumerate(used)]


@pytest.mark.parametrize(("count", "kept"), [(2, 2), (118, 118), (119, 61), (1180, 120), (1181, 110), (5000, 119)])
def test_picture_has_120_evenly_spaced_samples_at_most(count: int, kept: int) -> None:
    """With the last one and the worst one."""
    found = sample(readings_of(count, 1), Finding())

    assert len(found) == kept
    assert min(one.available_bytes for one in found) == 4 * GIB
    assert found[-1].unix == UNIX + count - 1


@pytest.mark.parametrize(
    ("holders", "kept"), [(5, [1, 2, 3, 4, 5]), (6, [1, 2, 3, 4, 5, 6]), (9, [4, 5, 6, 7, 8, 9])]
)
def test_picture_has_the_six_largest_processes(holders: int, kept: list[int]) -> None:
    (first, *_) = sample(readings_of(10, holders), Finding())

    assert sorted(first.holders.values()) == [pid * GIB for pid in kept]


@pytest.mark.parametrize(
    ("count", "names"), [(1, "p1"), (3, "p1, p2, p3"), (4, "p1, p2, p3 and 1 more"), (16, "p1, p2, p3 and 13 more")]
)
def test_memory_that_came_back_has_three_names(count: int, names: str) -> None:
    one = incident("kill")
    one.cgroup = "/system.slice/a.service"
    victims = [death(pid).victim for pid in range(1, count + 1)]

    assert _describe_return(one, (), victims, 5 * GIB) == f"5.0 GiB of {names} came back"
