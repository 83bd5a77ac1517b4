"""Verdicts on a trace over time: of our model, of plain thresholds, and of common rules, re-implemented.

earlyoom 1.8: acts (SIGTERM) at 10 % available and 10 % swap free, both. node-mixin: a warning after 15 minutes
above 90 %. Netdata: critical above 98 % used (clear below 90), warning above 90.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from msgspec import Struct

from memwatch.monitor.pacing import Pacing
from memwatch.pressure.hysteresis import base_level
from memwatch.pressure.inputs import PressureInputs, Target
from memwatch.pressure.judge import JudgeState, judge
from memwatch.pressure.rules import PressureRules, Thresholds
from memwatch.snapshot import Level, MemoryPsi, Pressure, PsiLine, Swap
from support.pressure_traces import LEAD_IN_SECONDS, TRACES, Sample, Trace

Levels = list[tuple[float, Level]]


class Score(Struct, frozen=True):
    """`lead`: seconds from the first critical to the end; None without one. `flips`: level changes."""

    lead: float | None
    criticals: int
    flips: int


def score_of(found: Levels, trace: Trace) -> Score:
    levels = [level for _, level in found]
    onsets = [
        at
        for (at, level), before in zip(found, [Level.LOW, *levels], strict=False)
        if level is Level.CRITICAL and before is not Level.CRITICAL
    ]
    flips = sum(one is not other for one, other in pairwise(levels))
    lead = None if trace.ends_at is None or not onsets else trace.ends_at - onsets[0]
    return Score(lead, len(onsets), flips)


def evidence_of(sample: Sample, at: float, resumed: bool = False) -> PressureInputs:
    """Return a sample as collectors report it: huge pages are set aside, ZFS's cache is available."""
    size = sample.total - sample.huge
    available = min(size, sample.available + sample.arc)
    psi = MemoryPsi(
        PsiLine(0.0, 0.0, 0.0, sample.some_seconds),
        PsiLine(0.0, 0.0, 0.0, sample.full_seconds),
    )
    swap = Swap(sample.swap_total, sample.swap_total - sample.swap_free)
    target = Target("ram", "system_ram", size, available, is_host=True)
    return PressureInputs(at, (target,), psi, swap, resumed=resumed)


def verdicts(trace: Trace, fixed: bool = False) -> Iterator[tuple[float, Pressure]]:
    """Yield the verdicts of our model at its own pace, or with one tick a second."""
    memory, pacing, at, slept, available = JudgeState(), Pacing(), -LEAD_IN_SECONDS, 0.0, 0
    while at <= trace.seconds:
        sample = trace.at(at)
        moved = abs(sample.available - available)
        if not pacing.is_still(at, 1.0, partial(float, moved)):
            resumed = trace.gap is not None and at >= trace.gap[0] and not slept
            slept = trace.gap[1] - trace.gap[0] if resumed and trace.gap else slept
            (verdict,), memory = judge(evidence_of(sample, at, resumed), memory, PressureRules())
            pacing.on_pressure((verdict,), at, 1.0)
            pacing.ticked_at, available = at, sample.available
            if at >= 0:
                yield at, verdict
        at = round(at + (1.0 if fixed else pacing.pace.interval(1.0)), 3)


def ours(trace: Trace) -> Levels:
    return [(at, verdict.level) for at, verdict in verdicts(trace)]


def each_second(trace: Trace, rule: Callable[[Sample, Level, float], Level]) -> Levels:
    found: Levels = []
    level, at = Level.LOW, -LEAD_IN_SECONDS
    while at <= trace.seconds:
        level = rule(trace.at(at), level, at)
        found += [(at, level)] if at >= 0 else []
        at += 1.0
    return found


def used(sample: Sample) -> float:
    return 1 - sample.available / sample.total


def plain_thresholds(trace: Trace) -> Levels:
    return each_second(trace, lambda sample, _before, _at: base_level(used(sample), Thresholds()))


def earlyoom(trace: Trace) -> Levels:
    def rule(sample: Sample, _before: Level, _at: float) -> Level:
        swap_low = not sample.swap_total or sample.swap_free <= 0.10 * sample.swap_total
        return Level.CRITICAL if used(sample) >= 0.90 and swap_low else Level.LOW

    return each_second(trace, rule)


def node_mixin(trace: Trace) -> Levels:
    since: list[float] = []

    def rule(sample: Sample, _before: Level, at: float) -> Level:
        if used(sample) <= 0.90:
            since.clear()
            return Level.LOW
        since.append(at)
        return Level.HIGH if at - since[0] >= 900 else Level.LOW

    return each_second(trace, rule)


def netdata(trace: Trace) -> Levels:
    def rule(sample: Sample, before: Level, _at: float) -> Level:
        critical_line = 0.90 if before is Level.CRITICAL else 0.98
        if used(sample) > critical_line:
            return Level.CRITICAL
        return Level.HIGH if used(sample) > (0.80 if before >= Level.HIGH else 0.90) else Level.LOW

    return each_second(trace, rule)


RIVALS: dict[str, Callable[[Trace], Levels]] = {
    "plain thresholds": plain_thresholds,
    "earlyoom": earlyoom,
    "node-mixin": node_mixin,
    "Netdata": netdata,
}


def cell_of(score: Score, trace: Trace) -> str:
    """Format a score: the lead or the number of alarms, and the number of level changes."""
    if trace.critical == "must":
        outcome = "missed" if score.lead is None else f"{score.lead:.1f} s before"
    elif trace.critical == "never":
        outcome = "quiet" if not score.criticals else f"{score.criticals} false"
    else:
        outcome = "no alarm" if not score.criticals else f"{score.criticals} alarm"
    return f"{outcome}, {score.flips}"


def table() -> str:
    """Return the scores of all rules on every trace, as in docs/explanation/pressure.md."""
    judges = {"memwatchd": ours, **RIVALS}
    lines = [f"| trace | {' | '.join(judges)} |", f"|---|{'---|' * len(judges)}"]
    for trace in TRACES:
        aggregates = [cell_of(score_of(rule(trace), trace), trace) for rule in judges.values()]
        lines.append(f"| {trace.name} | **{aggregates[0]}** | {' | '.join(aggregates[1:])} |")
    return "\n".join(lines)
