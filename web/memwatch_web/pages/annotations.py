"""Annotations of history charts: level shading, gaps and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch.core.events import Event
from memwatch.core.snapshot import Level
from memwatch.monitor.history.tiers import Bucket
from memwatch.monitor.render.words import duration

MAX_ANNOTATIONS = 100
# Shown elsewhere, or too frequent for a chart.
HIDDEN_KINDS = frozenset({"alert", "late", "reloaded", "silence", "test"})
WORDS = {
    "started": "start",
    "level": "level",
    "oom_kill": "OOM kill",
    "driver": "driver",
    "suspend": "suspended",
    "clock": "clock set",
    "collector": "collector",
    "release": "released",
    "unclean": "unclean shutdown",
    "replay": "replay",
    "leak": "leak?",
    "mark": "mark",
}


class Gap(Struct, frozen=True):
    """A time range without data; `words` give the reason if known."""

    start: float
    end: float
    words: str


class LevelSpan(Struct, frozen=True):
    """A time range at one level."""

    start: float
    end: float
    level: Level


class Annotation(Struct, frozen=True):
    """An event in a chart. `word` is the label above the plot; `target` is set for events of one target."""

    unix: float
    kind: str
    word: str
    text: str
    target: str | None = None


def find_gaps(
    buckets: Sequence[Bucket], start: float, end: float, step: float, events: Iterable[Event]
) -> list[Gap]:
    """Return the gaps of a series that exists whenever memwatchd runs, including those before and after its data.

    All times are Unix seconds, also in the buckets. `step` is the time that one point covers.
    """
    known = [bucket.boottime for bucket in buckets if bucket.average is not None]
    if not known:
        return [Gap(start, end, "no history in this range")]
    slept = [event.unix for event in events if event.kind == "suspend"]
    gaps = [Gap(start, known[0], "no older history")] if known[0] - start > 2 * step else []
    for bucket, after in pairwise(buckets):
        if bucket.average is None:
            began, ended = bucket.boottime, after.boottime
            why = suspended_or_down(any(began <= unix <= ended + 2 * step for unix in slept))
            gaps.append(Gap(began, ended, f"no data for {duration(ended - began)}: {why}"))
    if end - known[-1] > 4 * step:
        gaps.append(Gap(known[-1] + step, end, "no data since"))
    return gaps


def suspended_or_down(suspended: bool) -> str:
    return "machine suspended" if suspended else "memwatchd was not running"


def find_restarts(buckets: Iterable[Bucket]) -> list[float]:
    """Return the times of restarts of memwatchd. Its CPU time never decreases during a run."""
    known = [bucket for bucket in buckets if bucket.minimum is not None]
    return [
        after.boottime
        for before, after in pairwise(known)
        if after.minimum is not None and before.minimum is not None and after.minimum < before.minimum
    ]


def find_level_spans(buckets: Sequence[Bucket], step: float) -> list[LevelSpan]:
    """Return the runs of each level above OK. A bucket has the highest level within it."""
    runs: list[LevelSpan] = []
    for number, bucket in enumerate(buckets):
        if not bucket.maximum:
            continue
        end = buckets[number + 1].boottime if number + 1 < len(buckets) else bucket.boottime + step
        level = Level(int(bucket.maximum))
        if runs and runs[-1].level is level and bucket.boottime - runs[-1].end < step / 2:
            runs[-1] = LevelSpan(runs[-1].start, end, level)
        else:
            runs.append(LevelSpan(bucket.boottime, end, level))
    return runs


def build_annotations(events: Iterable[Event], start: float, end: float) -> list[Annotation]:
    """Return the events of a time range, oldest first."""
    return [
        Annotation(event.unix, event.kind, choose_word(event), event.text, event.target)
        for event in events
        if start <= event.unix <= end and event.kind not in HIDDEN_KINDS
    ]


def most_telling(flags: Sequence[Annotation]) -> list[Annotation]:
    """Return at most MAX_ANNOTATIONS, oldest first. Level changes are dropped first: they are also shown as
    shading."""
    if len(flags) <= MAX_ANNOTATIONS:
        return list(flags)
    others = [flag for flag in flags if flag.kind != "level"][-MAX_ANNOTATIONS:]
    levels = [flag for flag in flags if flag.kind == "level"]
    newest = levels[max(0, len(levels) + len(others) - MAX_ANNOTATIONS) :]
    return sorted([*others, *newest], key=lambda flag: flag.unix)


def choose_word(event: Event) -> str:
    """Return the label of an event: the text of a mark, the new level, or the kind of event."""
    if event.kind == "mark":
        return event.text
    if event.kind == "level":
        level = event.text.partition("→ ")[2].partition(" ")[0]
        return level or WORDS["level"]
    return "XID" if "XID" in event.text else WORDS.get(event.kind, event.kind.replace("_", " "))


def build_older_annotations(
    runs: Mapping[str, Sequence[LevelSpan]], labels: Mapping[str, str], restarts: Iterable[float], known_from: float
) -> list[Annotation]:
    """Return high levels and restarts from the time before the event list begins. `runs` are by target."""
    found = [
        Annotation(run.start, "level", run.level.word, _level_text(labels.get(target, target), run), target)
        for target, its_runs in runs.items()
        for run in its_runs
        if run.end < known_from and run.level >= Level.HIGH
    ]
    found += [
        Annotation(unix, "started", WORDS["started"], "memwatchd restarted")
        for unix in restarts
        if unix < known_from - 1
    ]
    return sorted(found, key=lambda flag: flag.unix)


def _level_text(label: str, run: LevelSpan) -> str:
    return f"{label} was {run.level.word} for up to {duration(run.end - run.start)}"
