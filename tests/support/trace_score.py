"""Score of levels and forecasts on the traces: leads, false alarms, and how often a forecast came true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.core.snapshot import Level, Pressure
from support.paths import ROOT
from support.trace_file import Trace, load_trace
from support.trace_replay import replay
from support.trace_rivals import RIVALS, Levels, levels_of

FOLDER = ROOT / "tests" / "traces"
OURS = "memwatchd"
DEFAULT = "memwatchd, without the kernel log"
DAY_SECONDS = 86_400.0
# Longer traces are judged up to 22,000 times: half of all, and five sixths of the CPU time. They are `long` tests,
# which `.ci/run` runs after a change of the pressure, of its words or of the pace of ticks.
SHORT_SECONDS = 420.0
# A warning is in time this long before the end, or a third of the collapse before it if that is less.
LEAD_SECONDS = 3.0
# Memory is full with less than this left: GB10 machines were lost at 2.5 of 121.7 GiB.
FULL_RATIO = 0.025
BINS = ((0.0, 10.0), (10.0, 30.0), (30.0, 60.0), (60.0, 300.0), (300.0, 1800.0))
SOON_SECONDS = 60.0


class Score(Struct, frozen=True):
    """Levels of one rule on one trace.

    `lead`: seconds from the critical level that lasts or began after the start of the collapse to the end; None
    without one. `false_criticals` and `false_highs` count their beginnings where they were not justified. `flips`:
    changes of the level. `seconds`: time without a collapse.
    """

    lead: float | None
    false_criticals: int
    false_highs: int
    flips: int
    seconds: float
    missed: tuple[str, ...] = ()


class Statement(Struct, frozen=True):
    """A forecast: the seconds to full that it stated, and those that it took. None: not stated, never full."""

    stated: float | None
    took: float | None

    @property
    def came_true(self) -> bool:
        """Full within twice the stated time."""
        return self.took is not None and self.stated is not None and self.took <= 2 * self.stated


def load_all(folder: Path = FOLDER) -> list[Trace]:
    return [load_trace(path) for path in sorted(folder.glob("*.jsonl"))]


def needed_lead(trace: Trace) -> float:
    assert trace.header.ends is not None
    return min(LEAD_SECONDS, (trace.header.ends - trace.header.begins) / 3)


def score_levels(found: Levels, trace: Trace) -> Score:
    header = trace.header
    is_wedge = header.half == "wedge"
    calm_until = header.begins if is_wedge else header.seconds
    highest = Level[header.highest.upper()]
    calm = [(at, level) for at, level in found if at < calm_until]
    lead = None
    if is_wedge and header.ends is not None:
        critical = [at for at, level in found if level is Level.CRITICAL and at >= header.begins]
        lead = header.ends - critical[0] if critical else None
    justified = Level.HIGH if is_wedge else highest
    return Score(
        lead,
        _count_beginnings(calm, Level.CRITICAL) if justified < Level.CRITICAL else 0,
        _count_beginnings(calm, Level.HIGH) if justified < Level.HIGH else 0,
        sum(one[1] is not other[1] for one, other in pairwise(found)),
        calm_until,
        tuple(f"{due.level} by {due.by:g} s" for due in header.due if not _was_said(found, due.level, due.by)),
    )


def score_verdicts(verdicts: Iterable[tuple[float, Pressure]], trace: Trace) -> Score:
    return score_levels([(at, verdict.level) for at, verdict in verdicts], trace)


def _count_beginnings(found: Levels, level: Level) -> int:
    said = [False, *(one >= level for _, one in found)]
    return sum(now and not before for before, now in pairwise(said))


def _was_said(found: Levels, level: str, by: float) -> bool:
    return any(one >= Level[level.upper()] for at, one in found if at <= by)


def is_in_time(score: Score, trace: Trace) -> bool:
    return score.lead is not None and score.lead >= needed_lead(trace)


def forecasts(verdicts: Iterable[tuple[float, Pressure]], trace: Trace) -> list[Statement]:
    """Return one statement a second, the first of each second."""
    full_at, found, next_at = _full_at(trace), [], 0.0
    for at, verdict in verdicts:
        if at < next_at:
            continue
        next_at = float(int(at) + 1)
        stated = None if isinstance(verdict.seconds_to_full, Absent) else verdict.seconds_to_full
        found.append(Statement(stated, None if full_at is None else max(0.0, full_at - at)))
    return found


def _full_at(trace: Trace) -> float | None:
    """Return the time of a collapse at which nothing was left, or its end."""
    ends, step = trace.header.ends, 0.25
    if ends is None:
        return None
    times = (number * step for number in range(int(ends / step)))
    return next((at for at in times if trace.value("available_bytes", at) <= FULL_RATIO * trace.size), ends)


class Result(Struct, frozen=True):
    """Scores of every rule on every trace, and the forecasts of memwatchd, which need no log."""

    traces: Sequence[Trace]
    scores: Mapping[str, Sequence[Score]]
    statements: Sequence[Statement]


def run_all(traces: Sequence[Trace]) -> Result:
    scores: dict[str, list[Score]] = {OURS: [], DEFAULT: []}
    statements = []
    for trace in traces:
        verdicts = list(replay(trace))
        scores[OURS].append(score_verdicts(verdicts, trace))
        scores[DEFAULT].append(score_verdicts(replay(trace, has_log=False), trace))
        statements += forecasts(verdicts, trace)
    for name, rule in RIVALS.items():
        scores[name] = [score_levels(levels_of(rule, trace), trace) for trace in traces]
    return Result(traces, scores, statements)


class Total(Struct, frozen=True):
    """One row of the table of rules."""

    in_time: int
    wedges: int
    median_lead: float | None
    false_criticals: int
    false_highs: int
    criticals_per_day: float
    highs_per_day: float
    flips: int


def total_of(scores: Sequence[Score], traces: Sequence[Trace]) -> Total:
    wedges = [(score, trace) for score, trace in zip(scores, traces, strict=True) if trace.header.half == "wedge"]
    leads = sorted(score.lead for score, _ in wedges if score.lead is not None)
    criticals, highs = (sum(getattr(one, name) for one in scores) for name in ("false_criticals", "false_highs"))
    days = sum(score.seconds for score in scores) / DAY_SECONDS
    return Total(
        sum(is_in_time(score, trace) for score, trace in wedges),
        len(wedges),
        leads[len(leads) // 2] if leads else None,
        criticals,
        highs,
        criticals / days,
        highs / days,
        sum(score.flips for score in scores),
    )


def came_true_ratio(statements: Sequence[Statement], within: float = SOON_SECONDS) -> float:
    """Return the fraction of "full within N seconds" that came true within twice the stated time."""
    said = [one for one in statements if one.stated is not None and one.stated <= within]
    return sum(one.came_true for one in said) / len(said) if said else 1.0


def brier_score(statements: Sequence[Statement], within: float = SOON_SECONDS) -> float:
    """Return the Brier score of "full within N seconds", said or not said in every second: 0 is perfect."""
    wrong = sum(
        (one.stated is not None and one.stated <= within) != (one.took is not None and one.took <= within)
        for one in statements
    )
    return wrong / len(statements)
