"""Against plain thresholds and the rules others ship: earlier on real trouble, silent on designed load."""

from __future__ import annotations

import pytest

from memwatch.model import Absent
from memwatch.snapshot import Level
from support.paths import ROOT
from support.pressure_judges import RIVALS, Score, ours, score_of, table, verdicts
from support.pressure_traces import GIB, TRACES, Trace, plain

# Two minutes before the end are enough to save one's work or to kill a program.
ENOUGH_SECONDS = 120.0
BY_NAME = {trace.name: trace for trace in TRACES}


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_we_speak_first_and_cry_wolf_least(trace: Trace) -> None:
    """Where somebody must be woken nobody leads us; where nobody must be, no rival is quieter."""
    mine = score_of(ours(trace), trace)
    rivals = [score_of(rule(trace), trace) for rule in RIVALS.values()]

    if trace.critical == "must":
        assert mine.lead is not None
        assert enough(mine) >= max(enough(rival) for rival in rivals)
    if trace.critical == "never":
        assert mine.criticals == 0
    assert mine.criticals <= 1


def enough(score: Score) -> float:
    """A lead, up to what is enough.

    earlyoom speaks at 90 % whatever moves: six minutes before the end of a slow leak, and all day on a machine
    that is 92 % full by design.
    """
    return min(score.lead or 0.0, ENOUGH_SECONDS)


def test_page_about_pressure_has_these_scores() -> None:
    """The table that `make bench` prints, to the letter."""
    assert table() in (ROOT / "docs" / "explanation" / "pressure.md").read_text()


def first(trace: Trace, level: Level, fixed: bool = False) -> float | None:
    return next((at for at, verdict in verdicts(trace, fixed=fixed) if verdict.level >= level), None)


def test_a_model_load_is_seen_coming() -> None:
    """200 MiB/s on an 8 GB board from 35 %: high three seconds in, critical seven seconds before the end."""
    trace = BY_NAME["8 GB board, model until the end"]

    high, critical = first(trace, Level.HIGH), first(trace, Level.CRITICAL)

    assert high is not None
    assert high <= 3.1
    assert critical is not None
    assert trace.ends_at is not None
    assert trace.ends_at - critical >= 7.0


def test_only_a_fast_tick_sees_a_fast_hog() -> None:
    """1 GiB gone in 2.9 s: with one tick a second critical is never seen, with ours it is."""
    trace = BY_NAME["1 GB machine, hog at 300 MiB/s"]

    assert first(trace, Level.CRITICAL) is not None
    assert first(trace, Level.CRITICAL, fixed=True) is None


def test_a_load_that_stops_in_time_is_a_short_alarm_and_ends() -> None:
    """At 90 %: critical for less than a minute, then high; the price of the lead, and it is known."""
    said = ours(BY_NAME["8 GB board, model that stops at 90 %"])

    critical = [at for at, level in said if level is Level.CRITICAL]
    assert critical[-1] - critical[0] < 45
    assert said[-1][1] is Level.HIGH


def test_one_large_allocation_is_no_trend() -> None:
    """A cache of 20 GiB is set aside at once, to 85 %: high by use, and never critical by forecast."""
    step = Trace("step", 60.0, plain(64 * GIB, lambda at: int((0.35 if at < 5.25 else 0.15) * 64 * GIB)), "never")

    said = list(verdicts(step))

    assert max(verdict.level for _, verdict in said) is Level.HIGH
    assert [at for at, verdict in said if not isinstance(verdict.seconds_to_full, Absent) and at > 7.0] == []


def test_a_cgroup_under_pressure_is_named_as_one() -> None:
    """System-wide waiting with 80 % available: high, and the words say that it is a limit."""
    *_, (_, last) = verdicts(BY_NAME["one cgroup under pressure"])

    assert last.level is Level.HIGH
    assert last.base_level is Level.LOW
    assert "a cgroup is slowed by its memory limit" in last.reasons[0].text


def test_a_sawtooth_does_not_flip() -> None:
    """Ten minutes across a threshold every four seconds: one level."""
    levels = [level for _, level in ours(BY_NAME["sawtooth for 10 minutes"])]

    assert set(levels) == {Level.HIGH}


def test_thrash_is_corroborated() -> None:
    """Use, floor and waiting say the same; rules that wait for swap to be gone say nothing."""
    *_, (_, last) = verdicts(BY_NAME["thrash with swap left"])

    assert last.level is Level.CRITICAL
    assert {reason.signal for reason in last.reasons} >= {"util", "floor", "psi_full"}
    assert last.corroborated
