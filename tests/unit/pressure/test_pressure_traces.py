"""Test pressure against plain thresholds and common rules: earlier on real trouble, silent on designed load."""

from __future__ import annotations

import pytest

from memwatch.model import Absent
from memwatch.snapshot import Level
from support.paths import ROOT
from support.pressure_judges import RIVALS, Score, ours, score_of, table, verdicts
from support.pressure_traces import GIB, TRACES, Trace, plain

# Two minutes before the end are useful_lead to save work or to end a program.
ENOUGH_SECONDS = 120.0
BY_NAME = {trace.name: trace for trace in TRACES}


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_pressure_is_first_on_trouble_and_has_fewest_false_alarms(trace: Trace) -> None:
    """No rule is earlier on traces that need an alert, and none is quieter on traces that need none."""
    mine = score_of(ours(trace), trace)
    rivals = [score_of(rule(trace), trace) for rule in RIVALS.values()]

    if trace.critical == "must":
        assert mine.lead is not None
        assert useful_lead(mine) >= max(useful_lead(rival) for rival in rivals)
    if trace.critical == "never":
        assert mine.criticals == 0
    assert mine.criticals <= 1


def useful_lead(score: Score) -> float:
    """Return the lead, bounded to what is useful.

    earlyoom acts at 90 % used, whatever the trend: six minutes before the end of a slow leak, and all day on a
    machine that is 92 % full by design.
    """
    return min(score.lead or 0.0, ENOUGH_SECONDS)


def test_documented_scores_equal_the_results() -> None:
    """The table that `make bench` prints, to the letter."""
    assert table() in (ROOT / "docs" / "explanation" / "pressure.md").read_text()


def first(trace: Trace, level: Level, fixed: bool = False) -> float | None:
    return next((at for at, verdict in verdicts(trace, fixed=fixed) if verdict.level >= level), None)


def test_model_load_is_critical_before_the_end() -> None:
    """200 MiB/s on an 8 GB board from 35 %: high after three seconds, critical seven seconds before the end."""
    trace = BY_NAME["8 GB board, model until the end"]

    high, critical = first(trace, Level.HIGH), first(trace, Level.CRITICAL)

    assert high is not None
    assert high <= 3.1
    assert critical is not None
    assert trace.ends_at is not None
    assert trace.ends_at - critical >= 7.0


def test_fast_hog_needs_a_fast_tick() -> None:
    """1 GiB used up in 2.9 s: one tick a second never shows critical, the fast pace does."""
    trace = BY_NAME["1 GB machine, hog at 300 MiB/s"]

    assert first(trace, Level.CRITICAL) is not None
    assert first(trace, Level.CRITICAL, fixed=True) is None


def test_load_that_stops_in_time_is_a_short_alarm() -> None:
    """Up to 90 %: critical for less than a minute, then high; the known price of the lead."""
    found = ours(BY_NAME["8 GB board, model that stops at 90 %"])

    critical = [at for at, level in found if level is Level.CRITICAL]
    assert critical[-1] - critical[0] < 45
    assert found[-1][1] is Level.HIGH


def test_single_large_allocation_is_no_trend() -> None:
    """A cache of 20 GiB is allocated at once, up to 85 %: high by use, and never critical by forecast."""
    step = Trace("step", 60.0, plain(64 * GIB, lambda at: int((0.35 if at < 5.25 else 0.15) * 64 * GIB)), "never")

    found = list(verdicts(step))

    assert max(verdict.level for _, verdict in found) is Level.HIGH
    assert [at for at, verdict in found if not isinstance(verdict.seconds_to_full, Absent) and at > 7.0] == []


def test_stalls_of_a_cgroup_limit_are_named_as_such() -> None:
    """System-wide stalls with 80 % available: high, and the reason names a limit."""
    *_, (_, last) = verdicts(BY_NAME["one cgroup under pressure"])

    assert last.level is Level.HIGH
    assert last.base_level is Level.LOW
    assert "a cgroup is slowed by its memory limit" in last.reasons[0].text


def test_sawtooth_does_not_flip() -> None:
    """Ten minutes across a threshold every four seconds: one level."""
    levels = [level for _, level in ours(BY_NAME["sawtooth for 10 minutes"])]

    assert set(levels) == {Level.HIGH}


def test_thrashing_is_corroborated() -> None:
    """Use, floor and PSI agree; rules that wait for swap to run out stay silent."""
    *_, (_, last) = verdicts(BY_NAME["thrash with swap left"])

    assert last.level is Level.CRITICAL
    assert {reason.signal for reason in last.reasons} >= {"util", "floor", "psi_full"}
    assert last.corroborated
