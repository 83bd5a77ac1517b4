"""Incidents that an unclean end cut off, and that are found at the next start. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from memwatch.core.snapshot import Level
from memwatch.core.units import duration, size
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.incidents.cause import Finding, find_cause
from memwatch.reporting.incidents.readings import read_ticks
from memwatch.reporting.incidents.records import Entry, Incident, Killer
from memwatch.reporting.incidents.sentence import describe_cause, list_evidence
from memwatch_monitor.incidents.assemble import list_gpu_holders, measure_growth, sample
from memwatch_monitor.incidents.triggers import RAM

CUT_OFF = "the record ends here: memwatchd did not end cleanly"
FREEZE = "a freeze and a loss of power look the same from here"


def close_cut_off(incident: Incident, words: UncleanShutdown | None, crash: Sequence[str]) -> Incident:
    """Close an incident that was open when the previous run ended."""
    last = max([incident.began, *(one.unix for one in incident.samples), *(one.unix for one in incident.timeline)])
    end = last if words is None else max(last, words.unix)
    if words is None:
        return replace(incident, ended=end, evidence=(*incident.evidence, CUT_OFF))
    killer, text = explain_end(words, crash)
    timeline = (*incident.timeline, Entry(end, "unclean", text))
    return replace(
        incident,
        kind="unclean_end",
        ended=end,
        sentence=f"{incident.sentence.rstrip('.')}; {text}.",
        killer=incident.killer or killer,
        evidence=(*incident.evidence, killer.evidence),
        timeline=timeline,
    )


def explain_end(words: UncleanShutdown, crash: Sequence[str]) -> tuple[Killer, str]:
    """Return the killer of the previous run, and a clause.

    Another boot without a recorded stop is a crash, a reset or a loss of power. A crash record of the kernel tells
    the first; low use at the last sample speaks for the last.
    """
    if not words.machine_restarted:
        return (
            Killer("unknown", "same boot, and no clean stop was recorded: memwatchd crashed or was killed"),
            "then memwatchd itself was killed or crashed",
        )
    if crash:
        return Killer("unknown", f"crash record of the kernel: {'; '.join(crash)}"), "then the kernel crashed"
    worst = words.last.worst if words.last is not None else None
    if worst is not None and worst.level < Level.HIGH:
        level = Level(worst.level).label
        evidence = f"a new boot without a shutdown, no crash record, and {worst.label} was {level}"
        return Killer("power", evidence), "then the machine lost power or was reset, with memory left"
    evidence = f"a new boot without a shutdown and no crash record: {FREEZE}"
    return Killer("unknown", evidence), "then the machine stopped, by a freeze or a reset"


def build_unclean(words: UncleanShutdown, crash: Sequence[str], boot_id: str = "") -> Incident | None:
    """Build the incident of an unclean end from its last words. None if only memwatchd ended, with memory left."""
    worst = words.last.worst if words.last is not None else None
    if not words.machine_restarted and (worst is None or worst.level < Level.HIGH):
        return None
    target = worst.target if worst is not None else RAM
    readings = read_ticks(words.ticks, target)
    pool = next((one for one in words.last.pools if one.id == target), None) if words.last is not None else None
    size_bytes = None if pool is None else pool.size_bytes
    finding = Finding()
    # Without the size, nothing says how much growth is evidence.
    if readings and size_bytes is not None and worst is not None and worst.level >= Level.HIGH:
        finding = find_cause(readings, readings[-1].boottime, size_bytes)
    killer, text = explain_end(words, crash)
    label = worst.label if worst is not None else "System RAM"
    began = finding.rise.begin.unix if finding.rise is not None and finding.rise.taken else words.unix
    lowest = min((one.available for one in readings), default=None)
    parts = [describe_cause(label, finding)] if finding.rise is not None else []
    parts += [f"{size(lowest)} of {label} were left at the last sample"] if lowest is not None else []
    sentence = "; ".join([*parts, text])
    return Incident(
        id=datetime.fromtimestamp(words.unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
        kind="unclean_end",
        target=target,
        label=label,
        began=began,
        ended=words.unix,
        sentence=f"{sentence[0].upper()}{sentence[1:]}." if not finding.cause else f"{sentence}.",
        cause=finding.cause,
        candidates=finding.candidates,
        killer=killer,
        size_bytes=size_bytes,
        lowest_available_bytes=lowest,
        evidence=(*list_evidence(label, finding, ()), killer.evidence, _describe_words(words)),
        timeline=(Entry(words.unix, "unclean", words.sentence),),
        samples=sample(readings, finding),
        gpu_holders=list_gpu_holders(readings),
        boot_id=boot_id,
        growth_seconds=measure_growth(finding),
        rise_bytes=None if finding.rise is None or finding.is_long else finding.rise.taken,
    )


def _describe_words(words: UncleanShutdown) -> str:
    if not words.samples:
        return "the previous run wrote no sample"
    length = words.samples[-1].unix - words.samples[0].unix
    return f"last words: {len(words.samples)} samples of the last {duration(max(0.05, length))}"
