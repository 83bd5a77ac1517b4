"""Title, summary and facts of incidents: of full records, and of those that know less."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.reporting.incidents import words
from memwatch.reporting.incidents.cause import NO_PROCESS
from memwatch.reporting.incidents.records import (
    Entry,
    Incident,
    IncidentKind,
    Killer,
    Sample,
    Suspect,
    Told,
    Victim,
)
from memwatch_monitor.incidents.store import head_of
from support.fakes import GIB
from support.sample_incident import INCIDENT

FULL = Incident(
    "20261127T101428Z",
    "kill",
    "ram",
    "System RAM",
    1000.0,
    1170.0,
    "train.py (PID 7) took 39.6 GiB.",
    cause=Suspect("train.py", 7, "session-7.scope", None, int(39.6 * GIB), 890.0, int(39.9 * GIB)),
    killer=Killer("kernel_oom", "kernel log"),
    victim=Victim("train.py", 7, None, None, int(39.9 * GIB), 1000.0, "kernel_oom", True),
    victims=(Victim("train.py", 7, None, None, int(39.9 * GIB), 1000.0, "kernel_oom", True),),
    size_bytes=int(121.7 * GIB),
    lowest_available_bytes=int(1.5 * GIB),
    came_back_bytes=int(39.9 * GIB),
    timeline=(Entry(979.0, "alert", "alert firing: System RAM critical"),),
    samples=(
        Sample(900.0, 80 * GIB, 41 * GIB, {"vLLM (3921)": 64 * GIB}, "medium"),
        Sample(933.0, 98 * GIB, 23 * GIB, {"vLLM (3921)": 64 * GIB}, "high"),
        Sample(999.0, 120 * GIB, int(1.5 * GIB), {"vLLM (3921)": 64 * GIB, "train.py (7)": 39 * GIB}, "critical"),
        Sample(1001.0, 80 * GIB, 41 * GIB, {"vLLM (3921)": 64 * GIB}, "critical"),
    ),
    growth_seconds=110.0,
    rise_bytes=int(39.6 * GIB),
    kills=1,
)


def facts(one: Incident) -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.value, fact.note) for fact in words.list_facts(one)}


def test_kill_by_the_kernel_in_words() -> None:
    assert words.write_title(FULL) == "train.py filled System RAM in 1 min 50 s; the kernel killed it"
    assert words.write_summary(FULL) == (
        "It grew by 39.6 GiB (all of the rise) beside vLLM with 64.0 GiB, until 1.5 GiB of 121.7 GiB was left. "
        "Nothing else was killed. 39.9 GiB came back."
    )
    assert facts(FULL) == {
        "cause": ("train.py 7", "session-7.scope"),
        "killed": ("train.py, 39.9 GiB", "by the kernel"),
        "warning before the kill": ("1 min 7 s", "high"),
        "alert before the kill": ("21 s", "receivers not recorded"),
    }


@pytest.mark.parametrize(
    ("told", "fact"),
    [
        ((), ("no receiver was notified", "")),
        ((Told("ops", "critical", 1001.0, "delivered"),), ("at once", "delivered to ops")),
    ],
)
def test_alert_at_once_that_nobody_got_says_so_first(told: tuple[Told, ...], fact: tuple[str, str]) -> None:
    """It was "at once", which reads as a notification."""
    lasted = replace(
        FULL, kind="critical", victim=None, victims=(), kills=0, began=979.0, timeline=FULL.timeline, told=told
    )

    assert facts(lasted)["alert"] == fact


def test_warning_is_as_old_as_the_change_of_the_level_in_the_timeline() -> None:
    """The head said 11:15:46 and the timeline 11:15:45: samples are seconds apart."""
    changed = Entry(931.2, "level", "System RAM: medium → high (80.7% used)")
    earlier = Entry(901.0, "level", "System RAM: medium → high (80.7% used)")
    other = Entry(932.0, "level", "HBM: medium → high (81% used)")

    times = []
    for timeline in ((changed, other), (earlier, other), ()):
        found = {fact.name: fact for fact in words.list_facts(replace(FULL, timeline=timeline))}
        times.append(found["warning before the kill"].unix)

    assert times == [931.2, 933.0, 933.0]


def test_record_of_an_earlier_version_claims_less() -> None:
    """It has no levels, and neither the time nor the part of the growth."""
    old = replace(
        FULL,
        growth_seconds=None,
        rise_bytes=None,
        kills=0,
        samples=tuple(replace(one, level=None) for one in FULL.samples),
    )

    assert words.write_title(old) == "train.py filled System RAM; the kernel killed it"
    assert words.write_summary(old).startswith("It grew by 39.6 GiB to 39.9 GiB beside vLLM")
    assert "Nothing else was killed." in words.write_summary(old)
    assert facts(old)["warning before the kill"] == ("not recorded", "")


def test_unlisted_kills_count() -> None:
    """Victims beyond the list are a number, never "nothing else"."""
    more = replace(FULL, kills=17)

    assert words.write_title(more).endswith("the kernel killed it and 16 more")
    assert "Nothing else" not in words.write_summary(more)


@pytest.mark.parametrize(
    ("kind", "came_back", "sentence"),
    [
        ("kill", 40 * GIB, "40.0 GiB came back."),
        ("kill", int(39.5 * GIB), "39.5 GiB of the killed 39.9 GiB came back."),
        ("kill", 0, "Nothing came back."),
        ("kill", None, None),
        ("program", GIB, None),
        ("unclean_end", GIB, None),
    ],
)
def test_memory_that_came_back_is_stated_where_it_is_known(
    kind: IncidentKind, came_back: int | None, sentence: str | None
) -> None:
    """Unknown is not "nothing", and a program that survived, or a machine that restarted, gave nothing back.

    A part is named with the size of the process, which the page shows as well.
    """
    summary = words.write_summary(replace(FULL, kind=kind, came_back_bytes=came_back))

    assert ("came back" in summary) is (sentence is not None)
    assert sentence is None or summary.endswith(sentence)


def test_other_victims_are_named() -> None:
    other = replace(FULL.victims[0], who="postgres", pid=8, held_bytes=GIB, is_cause=False)

    assert "Also killed: postgres with 1.0 GiB." in words.write_summary(
        replace(FULL, victims=(*FULL.victims, other), kills=2)
    )


def test_kill_without_a_cause_says_so() -> None:
    unknown = replace(FULL, cause=None, growth_seconds=None)

    assert words.write_title(unknown) == "System RAM was full; the kernel killed train.py; cause not known"
    assert facts(unknown)["cause"] == ("not known", "no process grew by enough")


def test_pool_with_memory_left_was_not_full() -> None:
    """A gap in the samples while another pool is short: of this one nothing is claimed."""
    gap = replace(FULL, kind="wedge", cause=None, killer=None, victim=None, victims=(), kills=0)
    roomy = replace(gap, lowest_available_bytes=100 * GIB)

    assert words.write_title(gap) == "System RAM was full; the machine did not respond; cause not known"
    assert list(facts(gap))[2] == "warning before the gap"
    assert words.write_title(roomy) == "The machine did not respond; cause not known"


def test_nothing_came_back_only_where_something_could() -> None:
    """A machine that did not respond with 1,600 of 2,016 GiB left lost no memory."""
    gap = replace(FULL, kind="wedge", cause=None, killer=None, victim=None, victims=(), kills=0, came_back_bytes=0)

    assert words.write_summary(gap).endswith("Nothing came back.")
    assert "came back" not in words.write_summary(replace(gap, lowest_available_bytes=90 * GIB))


def test_level_without_growth_says_how_long_it_lasted() -> None:
    calm = replace(FULL, kind="critical", cause=None, killer=None, victim=None, victims=(), ended=1180.0, kills=0)
    driver = replace(calm, candidates=(Suspect(NO_PROCESS, None, None, None, 9 * GIB, 900.0, 9 * GIB),))

    assert words.write_title(calm) == "System RAM was critical for 3 min; no process grew"
    assert words.write_title(driver) == "System RAM was critical for 3 min; memory of no process grew"
    assert words.write_title(replace(calm, ended=None)) == "System RAM is critical; no process grew"
    assert words.write_summary(replace(calm, ended=None)).endswith("It is not over.")
    quiet = replace(calm, ended=None, quiet_until=calm.began)
    assert words.write_summary(quiet) == words.write_summary(calm)


@pytest.mark.parametrize(
    ("kind", "size", "state"),
    [
        ("kill", 64 * GIB, ("critical for", "1 min 21 s")),
        ("wedge", 64 * GIB, ("no response for", "1 min 21 s")),
        ("unclean_end", 64 * GIB, None),
        ("kill", None, None),
    ],
)
def test_time_from_begin_to_end_is_that_of_a_state(
    kind: IncidentKind, size: int | None, state: tuple[str, str] | None
) -> None:
    """A row said "Lasted 1 min 21 s" of an incident that "filled System RAM in 1 min 28 s"."""
    found = replace(FULL, kind=kind, size_bytes=size, ended=FULL.began + 81.0)

    assert words.describe_state(found) == state
    assert words.describe_state(replace(found, ended=None)) is None


@pytest.mark.parametrize(
    ("growth", "words_of_share"),
    [(41, "41% of"), (99, "99% of"), (100, "all of"), (101, "more than"), (150, "more than")],
)
def test_growth_is_no_more_than_all_of_a_rise(growth: int, words_of_share: str) -> None:
    """It said "48.5 GiB, 100% of the 47.9 GiB by which use rose"."""
    assert words.share_of(growth * GIB, 100 * GIB) == words_of_share


def test_title_of_a_record_that_lasts_does_not_say_that_memory_is_full() -> None:
    """It was "train.py filled System RAM" beside "5.8 GiB left" and "full in ~6 s"."""
    lasts = replace(
        FULL, kind="critical", killer=None, victim=None, victims=(), kills=0, ended=None, growth_seconds=77.0
    )

    took = "train.py took 39.6 GiB of System RAM"
    assert words.write_title(lasts) == f"{took} in 1 min 17 s so far"
    assert words.write_title(replace(lasts, growth_seconds=None)) == f"{took} so far"
    assert words.write_title(replace(lasts, ended=1180.0)) == "train.py filled System RAM in 1 min 17 s"


def test_record_that_lasts_does_not_deny_an_alert() -> None:
    """Its page said "none fired" while the alert of the same second fired. It is written at its begin."""
    quiet = replace(FULL, timeline=())

    assert facts(quiet)["alert"] == ("none fired", "")
    assert facts(replace(quiet, ended=None))["alert"] == ("not recorded yet", "")


def test_small_growth_is_no_suspicion() -> None:
    """A candidate that grew by less than what counts as growth is in no title."""
    small = Suspect("tail", 9, None, None, 90 << 20, 900.0, GIB)
    calm = replace(FULL, kind="critical", cause=None, candidates=(small,), killer=None, victim=None, victims=())

    assert "tail" not in words.write_title(calm)
    assert words.list_grown(calm) == []
    assert words.list_grown(replace(calm, candidates=(replace(small, growth_bytes=GIB),))) != []


def test_repeated_incident_has_its_number() -> None:
    again = replace(FULL, times=12, first_began=400.0)

    assert words.write_title(again).endswith("the kernel killed it, 12 times in 10 min")


@pytest.mark.parametrize(
    ("sentence", "end"),
    [
        ("x; then the machine stopped, by a freeze or a reset.", "the machine stopped"),
        ("x; then the machine lost power or was reset, with memory left.", "the machine lost power or was reset"),
        ("x; then memwatchd itself was killed or crashed.", "memwatchd itself was killed or crashed"),
        ("x; then the kernel crashed.", "the kernel crashed"),
    ],
)
def test_unclean_end_is_the_end_of_the_title(sentence: str, end: str) -> None:
    one = replace(FULL, kind="unclean_end", sentence=sentence, killer=None, victim=None, victims=())

    assert words.write_title(one) == f"train.py filled System RAM in 1 min 50 s; {end}"


def test_warning_is_the_level_that_lasted_until_the_kill() -> None:
    """A high level that had cleared is no warning."""
    cleared = (replace(FULL.samples[0], level="high", unix=800.0), *FULL.samples[:1])

    assert words.find_warning(FULL.samples, 1000.0) == (933.0, "high")
    assert words.find_warning(cleared, 1000.0) is None


def test_cut_is_the_last_sample_before_the_kill() -> None:
    cut, calm = words.find_cut(FULL), words.find_cut(replace(FULL, victims=(), victim=None))

    assert cut is not None
    assert (cut.sample.unix, cut.kill) == (999.0, 1000.0)
    assert calm is not None
    assert (calm.sample.available_bytes, calm.kill) == (int(1.5 * GIB), None)
    assert words.find_cut(replace(FULL, samples=())) is None


def test_list_has_the_facts_that_need_no_timeline() -> None:
    assert list(facts(head_of(FULL))) == ["cause", "killed"]
    assert list(facts(INCIDENT))[2:] == ["warning before critical", "alert"]
