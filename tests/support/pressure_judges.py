"""Who says what of a trace, and when: our model, plain thresholds, and the rules that others ship, re-stated.

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
from memwatch.pressure.inputs import Evidence, Target
from memwatch.pressure.judge import Memory, judge
from memwatch.pressure.rules import PressureRules, Thresholds
from memwatch.snapshot import Level, MemoryPsi, Pressure, PsiLine, Swap
from support.pressure_traces import LEAD_IN_SECONDS, TRACES, Sample, Trace

Said = list[tuple[float, Level]]


class Score(Struct, frozen=True):
    """`lead`: seconds between the first critical and the end; None if there was none. `flips`: changes of level."""

    lead: float | None
    criticals: int
    flips: int


def score_of(said: Said, trace: Trace) -> Score:
    levels = [level for _, level in said]
    onsets = [
        at
        for (at, level), before in zip(said, [Level.LOW, *levels], strict=False)
        if level is Level.CRITICAL and before is not Level.CRITICAL
    ]
    flips = sum(one is not other for one, other in pairwise(levels))
    lead = None if trace.ends_at is None or not onsets else trace.ends_at - onsets[0]
    return Score(lead, len(onsets), flips)


def evidence_of(sample: Sample, at: float, resumed: bool = False) -> Evidence:
    """A sample as the collectors hand it on: huge pages are set aside, ZFS's cache is available."""
    size = sample.total - sample.huge
    available = min(size, sample.available + sample.arc)
    psi = MemoryPsi(
        PsiLine(0.0, 0.0, 0.0, sample.some_seconds),
        PsiLine(0.0, 0.0, 0.0, sample.full_seconds),
    )
    swap = Swap(sample.swap_total, sample.swap_total - sample.swap_free)
    target = Target("ram", "system_ram", size, available, is_host=True)
    return Evidence(at, (target,), psi, swap, resumed=resumed)


def verdicts(trace: Trace, fixed: bool = False) -> Iterator[tuple[float, Pressure]]:
    """Our model with its own cadence, or with one tick a second."""
    memory, pacing, at, slept, available = Memory(), Pacing(), -LEAD_IN_SECONDS, 0.0, 0
    while at <= trace.seconds:
        sample = trace.at(at)
        moved = abs(sample.available - available)
        if not pacing.is_still(at, 1.0, partial(float, moved)):
            resumed = trace.gap is not None and at >= trace.gap[0] and not slept
            slept = trace.gap[1] - trace.gap[0] if resumed and trace.gap else slept
            (verdict,), memory = judge(evidence_of(sample, at, resumed), memory, PressureRules())
            pacing.judged((verdict,), at, 1.0)
            pacing.ticked_at, available = at, sample.available
            if at >= 0:
                yield at, verdict
        at = round(at + (1.0 if fixed else pacing.pace.interval(1.0)), 3)


def ours(trace: Trace) -> Said:
    return [(at, verdict.level) for at, verdict in verdicts(trace)]


def each_second(trace: Trace, rule: Callable[[Sample, Level, float], Level]) -> Said:
    said: Said = []
    level, at = Level.LOW, -LEAD_IN_SECONDS
    while at <= trace.seconds:
        level = rule(trace.at(at), level, at)
        said += [(at, level)] if at >= 0 else []
        at += 1.0
    return said


def used(sample: Sample) -> float:
    return 1 - sample.available / sample.total


def plain_thresholds(trace: Trace) -> Said:
    return each_second(trace, lambda sample, _before, _at: base_level(used(sample), Thresholds()))


def earlyoom(trace: Trace) -> Said:
    def rule(sample: Sample, _before: Level, _at: float) -> Level:
        swap_low = not sample.swap_total or sample.swap_free <= 0.10 * sample.swap_total
        return Level.CRITICAL if used(sample) >= 0.90 and swap_low else Level.LOW

    return each_second(trace, rule)


def node_mixin(trace: Trace) -> Said:
    since: list[float] = []

    def rule(sample: Sample, _before: Level, at: float) -> Level:
        if used(sample) <= 0.90:
            since.clear()
            return Level.LOW
        since.append(at)
        return Level.HIGH if at - since[0] >= 900 else Level.LOW

    return each_second(trace, rule)


def netdata(trace: Trace) -> Said:
    def rule(sample: Sample, before: Level, _at: float) -> Level:
        critical_line = 0.90 if before is Level.CRITICAL else 0.98
        if used(sample) > critical_line:
            return Level.CRITICAL
        return Level.HIGH if used(sample) > (0.80 if before >= Level.HIGH else 0.90) else Level.LOW

    return each_second(trace, rule)


RIVALS: dict[str, Callable[[Trace], Said]] = {
    "plain thresholds": plain_thresholds,
    "earlyoom": earlyoom,
    "node-mixin": node_mixin,
    "Netdata": netdata,
}


def cell_of(score: Score, trace: Trace) -> str:
    """What a judge did in a few words: how early, or how often it cried wolf, and how often it changed its mind."""
    if trace.critical == "must":
        what = "missed" if score.lead is None else f"{score.lead:.1f} s before"
    elif trace.critical == "never":
        what = "quiet" if not score.criticals else f"{score.criticals} false"
    else:
        what = "no alarm" if not score.criticals else f"{score.criticals} alarm"
    return f"{what}, {score.flips}"


def table() -> str:
    """Everybody's scores on every trace, as docs/explanation/pressure.md has them."""
    judges = {"memwatchd": ours, **RIVALS}
    lines = [f"| trace | {' | '.join(judges)} |", f"|---|{'---|' * len(judges)}"]
    for trace in TRACES:
        cells = [cell_of(score_of(said(trace), trace), trace) for said in judges.values()]
        lines.append(f"| {trace.name} | **{cells[0]}** | {' | '.join(cells[1:])} |")
    return "\n".join(lines)
