"""Annotations of history charts: gaps, restarts, levels and events."""

from __future__ import annotations

import pytest

from memwatch.core.events import Event
from memwatch.core.snapshot import Level
from memwatch_monitor.history.tiers import Bucket
from memwatch_web.pages.charts import (
    MAX_ANNOTATIONS,
    Annotation,
    Gap,
    LevelSpan,
    build_annotations,
    build_older_annotations,
    describe_dropped,
    find_gaps,
    find_level_spans,
    find_restarts,
    most_telling,
)


def known(at: float, value: float = 1.0) -> Bucket:
    return Bucket(at, value, value, value)


def gap(at: float) -> Bucket:
    return Bucket(at, None, None, None)


def event(unix: float, kind: str, text: str = "") -> Event:
    return Event(1, unix, kind, text)


def test_gap_has_its_length_and_reason() -> None:
    """The reason is a suspend if one happened at that time, or a restart: CPU time is less after one.

    A daemon that went on missed samples. A start that the events have counts also if CPU time is not less.
    """
    buckets = [
        known(0, 9),
        known(10, 9),
        gap(20),
        known(100),
        known(110),
        gap(120),
        known(200),
        gap(300),
        known(302),
    ]
    started = [*buckets, gap(400), known(420)]

    gaps = find_gaps(started, 0, 425, 10, [event(200.5, "suspend"), event(420.5, "started")])

    assert gaps == [
        Gap(20, 100, "no data for 1 min 20 s: memwatchd was not running"),
        Gap(120, 200, "no data for 1 min 20 s: machine suspended"),
        Gap(300, 302, "no data for 2.0 s: the machine was too busy"),
        Gap(400, 420, "no data for 20 s: memwatchd was not running"),
    ]


def test_time_before_and_after_the_data_is_a_gap() -> None:
    gaps = find_gaps([known(100), known(110)], 0, 500, 10, ())

    assert gaps == [Gap(0, 100, "no older history"), Gap(120, 500, "no data since")]
    assert find_gaps([], 0, 500, 10, ()) == [Gap(0, 500, "no history in this range")]


def test_complete_range_has_no_gap() -> None:
    """A late or early point is not a gap."""
    assert find_gaps([known(15), known(24), known(35)], 0, 60, 10, ()) == []


def test_restart_is_detected_by_cpu_time_that_decreases() -> None:
    assert find_restarts([known(0, 1.0), known(10, 1.5), gap(20), known(30, 0.1), known(40, 0.1)]) == [30]


def test_level_run_ends_at_another_level_or_a_gap() -> None:
    """A bucket has the highest level within it. Low is not a run."""
    levels = [known(0, 0), Bucket(10, 0, 1, 2), known(20, 2), known(30, 3), gap(40), known(80, 3), known(90, 0)]

    runs = find_level_spans(levels, 10)

    assert runs == [
        LevelSpan(10, 30, Level.HIGH),
        LevelSpan(30, 40, Level.CRITICAL),
        LevelSpan(80, 90, Level.CRITICAL),
    ]


def test_events_outside_the_range_and_quiet_kinds_are_no_flags() -> None:
    """Alerts repeat levels, and a busy machine is late all the time."""
    events = [
        event(5, "mark", "a"),
        event(15, "mark", "b"),
        event(16, "late"),
        event(17, "alert"),
        event(99, "mark"),
    ]

    assert [flag.text for flag in build_annotations(events, 10, 50)] == ["b"]


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("mark", "Before VAE Load", "Before VAE Load"),
        ("level", "System RAM: OK → critical (96.4% used)", "critical"),
        ("level", "of an unusual form", "level"),
        ("driver", "the driver of gpu0 reported XID 79: fallen off the bus", "XID"),
        ("driver", "the driver of gpu0 reported a page fault of a GPU program", "driver"),
        ("oom_kill", "OOM killer: killed python", "OOM kill"),
        ("new_kind", "something", "new kind"),
    ],
)
def test_flag_has_a_short_label(kind: str, text: str, word: str) -> None:
    (flag,) = build_annotations([event(1, kind, text)], 0, 2)

    assert (flag.word, flag.text) == (word, text)


def test_flags_before_the_event_list_come_from_the_history() -> None:
    """Without stored events, levels and restarts are still known from the series."""
    runs = {
        "ram": [LevelSpan(10, 50, Level.HIGH), LevelSpan(60, 70, Level.MEDIUM), LevelSpan(90, 200, Level.CRITICAL)]
    }

    flags = build_older_annotations(runs, {"ram": "System RAM"}, [5.0, 100.0], known_from=100)

    assert [(flag.unix, flag.word, flag.text) for flag in flags] == [
        (5, "start", "memwatchd restarted"),
        (10, "high", "System RAM was high for up to 40 s"),
    ]


def test_level_changes_are_dropped_before_other_events() -> None:
    """A machine at a threshold does not push an OOM kill or a mark out of the list."""
    levels = [Annotation(at, "level", "high", "") for at in range(300)]
    kill, marks = (
        Annotation(5.5, "oom_kill", "OOM kill", ""),
        [Annotation(at + 0.5, "mark", "m", "") for at in range(150)],
    )

    assert len(most_telling([kill, *levels])) == MAX_ANNOTATIONS
    assert most_telling([kill, *levels])[:2] == [kill, Annotation(201, "level", "high", "")]
    assert most_telling([*levels, *marks]) == marks[-MAX_ANNOTATIONS:]
    assert most_telling(levels[:3]) == levels[:3]


@pytest.mark.parametrize(
    ("levels", "marks", "words"),
    [
        (0, MAX_ANNOTATIONS, ""),
        (MAX_ANNOTATIONS + 74, 0, "74 older level changes are not shown"),
        (MAX_ANNOTATIONS, 1, "1 older level change is not shown"),
        (1, MAX_ANNOTATIONS, "1 level change is not shown"),
        (3, MAX_ANNOTATIONS + 1, "3 level changes and 1 older event are not shown"),
        (0, MAX_ANNOTATIONS + 2, "2 older events are not shown"),
    ],
)
def test_events_that_are_left_out_are_named_as_what_they_are(levels: int, marks: int, words: str) -> None:
    """ "74 more not shown (level changes are dropped first)" stood above a list of level changes."""
    flags = [Annotation(float(at), "level", "high", "") for at in range(levels)]
    flags += [Annotation(float(at), "mark", "step", "") for at in range(marks)]

    assert describe_dropped(flags, most_telling(flags)) == words
