"""Words of the decisive seconds over all recorded runs: the time left is said first, and countdowns come true."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memwatch.cli.terminal.frame import View, header_of
from memwatch.cli.terminal.moment import Moment, outlook
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import clip_line, plain
from memwatch.core import units
from memwatch.core.model import Absent
from memwatch.core.pressure.signals import PAST
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.core.snapshot_json import snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch.reporting.render.summary import build_sentence, build_title
from memwatch.reporting.render.words import full_after
from memwatch_monitor.render.status_line import build_status_line
from support.sample_snapshots import calm_workstation
from support.trace_file import load_trace
from support.trace_replay import replay
from support.trace_score import FOLDER, SHORT_SECONDS

TRACES = {path.stem: load_trace(path) for path in sorted(FOLDER.glob("*.jsonl"))}
NAMES = [
    pytest.param(name, marks=pytest.mark.long if trace.header.seconds > SHORT_SECONDS else ())
    for name, trace in TRACES.items()
]
COUNTDOWN = re.compile(r"(?:OK|medium|high) in (\d+)")
CALM = calm_workstation()
EPSILON = 1e-6


def is_true_now(verdict: Pressure) -> bool:
    """Check that something holds the level now: a signal, or use above the line from which it clears."""
    others = [one for one in verdict.reasons if one.signal != "util"]
    use = [one.text for one in verdict.reasons if one.signal == "util"]
    return any(not PAST.fullmatch(one.text) for one in others) or any("calm for" not in one for one in use)


@pytest.mark.parametrize("name", NAMES)
def test_time_left_is_said_first_and_countdowns_come_true(name: str) -> None:
    """A countdown of a level ends when it said, or a cause of the level is true again before.

    The level that follows is the named one, a higher one of a new cause, or a lower one if its cause ended too.
    """
    before, end, shown_at, named = Level.LOW, None, -1.0, Level.LOW
    for at, verdict in replay(TRACES[name]):
        left = verdict.clears_in_seconds
        if end is not None and verdict.level < before:
            assert at >= end - EPSILON, at
            assert verdict.level <= named or is_true_now(verdict), (at, named, verdict)
            assert verdict.level >= named or at > end + EPSILON, (at, named, verdict)
        elif end is not None and isinstance(left, float) and verdict.level is before:
            assert at + left == pytest.approx(end), at
        elif end is not None:
            assert is_true_now(verdict), (at, verdict)
        assert not isinstance(left, float) or verdict.level > Level.LOW
        if verdict.level > Level.LOW and at - shown_at >= 1.0:
            check_words(verdict)
            shown_at = at
        before, end = verdict.level, at + left if isinstance(left, float) else None
        assert isinstance(verdict.clears_to, Level) == isinstance(left, float)
        named = verdict.clears_to if isinstance(verdict.clears_to, Level) else Level.LOW
        assert named < before or end is None


def test_level_that_falls_had_a_countdown() -> None:
    """Else the test above could not fail."""
    verdicts = [verdict for _, verdict in replay(TRACES["healthy-compile-6-of-32-gb"])]

    ends = [one for one, after in pairwise(verdicts) if after.level < one.level]
    assert [(one.level, one.clears_in_seconds) for one in ends] == [(Level.MEDIUM, 1.0)]
    assert build_sentence(replace(CALM, pressure=(ends[0],)), ends[0]).endswith("; OK in 1 s")


def check_words(verdict: Pressure) -> None:
    """Check the status line, the verdict, the title, and the first line of `memwatch top`."""
    snapshot = replace(CALM, pressure=(verdict,))
    status, sentence = build_status_line(snapshot), build_sentence(snapshot, verdict)
    tops = tops_of(snapshot, (40, 80)) if verdict.level is Level.CRITICAL else []
    check_countdowns(verdict, ("; ".join((status.headline, *status.details)), sentence, *tops))
    left = verdict.seconds_to_full
    if verdict.level is Level.CRITICAL and not isinstance(left, Absent):
        time_left = units.forecast(left)
        deadline = full_after(left)
        assert status.headline == deadline.capitalize()
        assert sentence.startswith(f"System RAM is critical: full in about {time_left} at the current rate")
        assert all(f"{deadline} " in f"{one} " for one in (build_title(snapshot, verdict), *tops))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if TRACES[name].header.seconds > SHORT_SECONDS else ())
        for name in TRACES
        if name.startswith("healthy-")
    ],
)
def test_terminal_counts_nothing_down_that_the_status_line_does_not(name: str) -> None:
    """Nothing at OK, no time to full that is not forecast, and nothing of a past moment or of one without news."""
    for _, verdict in replay(TRACES[name]):
        now, later = outlook(verdict, is_now=True), outlook(verdict, is_now=False)
        assert now == "" or verdict.level > Level.LOW
        assert later in ("", "recovering")
        assert ("full in" in now) == (verdict.level > Level.LOW and not isinstance(verdict.seconds_to_full, Absent))
        if verdict.level > Level.LOW:
            headline = build_status_line(replace(CALM, pressure=(verdict,))).headline
            assert headline.startswith("Full in") == now.startswith("full in")
            assert (headline == "Recovering") == now.startswith("recovering")


def test_use_above_a_threshold_has_no_countdown() -> None:
    """66.0% with medium from 60%: the level stays as long as the use does, whatever a signal does."""
    steady = Pressure("ram", Level.MEDIUM, Level.MEDIUM, 0.66)

    assert outlook(steady, is_now=True) == ""
    assert outlook(replace(steady, seconds_to_full=17.0), is_now=True) == "full in ~17 s"
    assert outlook(replace(steady, seconds_to_full=17.0), is_now=False) == ""
    held = replace(steady, clears_in_seconds=12.0, clears_to=Level.LOW)
    assert outlook(held, is_now=True) == "OK in 12 s"
    assert outlook(replace(held, clears_to=Absent.NOT_AVAILABLE), is_now=True) == "medium clears in 12 s"


def check_countdowns(verdict: Pressure, texts: tuple[str, ...]) -> None:
    """Check that texts name the end of the level, if it has one, and no other time."""
    left = verdict.clears_in_seconds
    for text in texts:
        found = [int(one) for one in COUNTDOWN.findall(text)]
        assert len(found) <= 1, text
        assert not found or isinstance(left, float), text
        assert all(abs(one - float(left)) <= 0.5 or one == 1 for one in found), text  # type: ignore[arg-type]


def tops_of(snapshot: Snapshot, widths: tuple[int, ...]) -> list[str]:
    """Return the first line of `memwatch top` in terminals of these widths."""
    sent = snapshot_from(to_bytes(snapshot_json(snapshot)))
    views = [View(Moment(sent), State(), width, 24, snapshot.unix, has_colour=False) for width in widths]
    return [plain(clip_line(header_of(view), view.width)) for view in views]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1 s"),
        (7.04, "7 s"),
        (19.6, "20 s"),
        (22.4, "20 s"),
        (61, "1 min"),
        (700, "12 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_forecast_has_no_digits_that_it_does_not_have(seconds: float, text: str) -> None:
    assert units.forecast(seconds) == text
