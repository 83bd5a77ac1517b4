"""What stands beside the curves is true: gaps are named, restarts found, and a level lasts as long as it did."""

from __future__ import annotations

import pytest

from memwatch.events import Event
from memwatch.history.tiers import Bucket
from memwatch.snapshot import Level
from memwatch_web.pages.annotations import (
    MOST_FLAGS,
    Flag,
    Gap,
    Run,
    flags_of,
    gaps_of,
    most_telling,
    older_flags,
    restarts_of,
    runs_of,
)


def known(at: float, value: float = 1.0) -> Bucket:
    return Bucket(at, value, value, value)


def gap(at: float) -> Bucket:
    return Bucket(at, None, None, None)


def event(unix: float, kind: str, text: str = "") -> Event:
    return Event(1, unix, kind, text)


def test_a_gap_says_how_long_and_why() -> None:
    """memwatchd did not run; where the machine slept at that time, that is why."""
    buckets = [known(0), known(10), gap(20), known(100), known(110), gap(120), known(200)]

    gaps = gaps_of(buckets, 0, 205, 10, [event(200.5, "suspend")])

    assert gaps == [
        Gap(20, 100, "memwatchd did not run: nothing is known of 1 min 20 s"),
        Gap(120, 200, "the machine was suspended: nothing is known of 1 min 20 s"),
    ]


def test_what_is_before_and_after_the_figures_is_a_gap_as_well() -> None:
    """The page never leaves it open whether nothing was there or nothing was known."""
    gaps = gaps_of([known(100), known(110)], 0, 500, 10, ())

    assert gaps == [Gap(0, 100, "nothing older is remembered"), Gap(120, 500, "nothing is known of the time after")]
    assert gaps_of([], 0, 500, 10, ()) == [Gap(0, 500, "nothing is remembered of this time")]


def test_a_range_that_is_full_has_no_gap() -> None:
    """A point late or early is none."""
    assert gaps_of([known(15), known(24), known(35)], 0, 60, 10, ()) == []


def test_a_restart_is_seen_by_processor_time_that_begins_anew() -> None:
    """It only grows while one daemon runs."""
    assert restarts_of([known(0, 1.0), known(10, 1.5), gap(20), known(30, 0.1), known(40, 0.1)]) == [30]


def test_a_level_lasts_until_another_or_a_gap_begins() -> None:
    """A bucket stands at the worst level that was in it, and low is no stretch."""
    levels = [known(0, 0), Bucket(10, 0, 1, 2), known(20, 2), known(30, 3), gap(40), known(80, 3), known(90, 0)]

    runs = runs_of(levels, 10)

    assert runs == [Run(10, 30, Level.HIGH), Run(30, 40, Level.CRITICAL), Run(80, 90, Level.CRITICAL)]


def test_events_outside_of_the_time_and_repetitions_are_no_flags() -> None:
    """Alerts say again what levels say, and a busy machine is late all the time."""
    events = [
        event(5, "mark", "a"),
        event(15, "mark", "b"),
        event(16, "late"),
        event(17, "alert"),
        event(99, "mark"),
    ]

    assert [flag.text for flag in flags_of(events, 10, 50)] == ["b"]


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("mark", "Before VAE Load", "Before VAE Load"),
        ("level", "System RAM: low → critical (96.4 % used)", "critical"),
        ("level", "of an unusual form", "level"),
        ("driver", "the driver of gpu0 reported XID 79: fallen off the bus", "XID"),
        ("driver", "the driver of gpu0 reported a page fault of a GPU program", "driver"),
        ("oom_kill", "the kernel killed python", "OOM kill"),
        ("new_kind", "something", "new kind"),
    ],
)
def test_a_flag_has_a_word_that_fits(kind: str, text: str, word: str) -> None:
    """What happened in a word or two."""
    (flag,) = flags_of([event(1, kind, text)], 0, 2)

    assert (flag.word, flag.text) == (word, text)


def test_what_was_before_the_list_of_events_comes_from_the_history() -> None:
    """After a restart the events are gone; levels and restarts are still known."""
    runs = {"ram": [Run(10, 50, Level.HIGH), Run(60, 70, Level.MEDIUM), Run(90, 200, Level.CRITICAL)]}

    flags = older_flags(runs, {"ram": "System RAM"}, [5.0, 100.0], known_from=100)

    assert [(flag.unix, flag.word, flag.text) for flag in flags] == [
        (5, "start", "memwatchd was started again"),
        (10, "high", "System RAM was high for up to 40 s"),
    ]


def test_changes_of_level_give_way_to_what_stands_nowhere_else() -> None:
    """A machine that wavers at a threshold does not push a kill or a mark out of the list."""
    levels = [Flag(at, "level", "high", "") for at in range(300)]
    kill, marks = Flag(5.5, "oom_kill", "OOM kill", ""), [Flag(at + 0.5, "mark", "m", "") for at in range(150)]

    assert len(most_telling([kill, *levels])) == MOST_FLAGS
    assert most_telling([kill, *levels])[:2] == [kill, Flag(201, "level", "high", "")]
    assert most_telling([*levels, *marks]) == marks[-MOST_FLAGS:]
    assert most_telling(levels[:3]) == levels[:3]
