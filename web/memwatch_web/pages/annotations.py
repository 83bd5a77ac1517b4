"""Annotations of history charts: level shading, gaps and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch.events import Event
from memwatch.history.tiers import Bucket
from memwatch.render.words import duration
from memwatch.snapshot import Level

MOST_FLAGS = 100
# Shown elsewhere, or too frequent for a chart.
QUIET = frozenset({"alert", "late", "reloaded"})
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


class Run(Struct, frozen=True):
    """A time range at one level."""

    start: float
    end: float
    level: Level


class Flag(Struct, frozen=True):
    """An event in a chart. `word` is the label above the plot; `target` is set for events of one target."""

    unix: float
    kind: str
    word: str
    text: str
    target: str | None = None


def gaps_of(buckets: Sequence[Bucket], start: float, end: float, step: float, events: Iterable[Event]) -> list[Gap]:
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


def restarts_of(buckets: Iterable[Bucket]) -> list[float]:
    """Return the times of restarts of memwatchd. Its CPU time never decreases during a run."""
    known = [bucket for bucket in buckets if bucket.minimum is not None]
    return [
        after.boottime
        for before, after in pairwise(known)
        if after.minimum is not None and before.minimum is not None and after.minimum < before.minimum
    ]


def runs_of(buckets: Sequence[Bucket], step: float) -> list[Run]:
    """Return the runs of each level above low. A bucket has the highest level within it."""
    runs: list[Run] = []
    for number, bucket in enumerate(buckets):
        if not bucket.maximum:
            continue
        end = buckets[number + 1].boottime if number + 1 < len(buckets) else bucket.boottime + step
        level = Level(int(bucket.maximum))
        if runs and runs[-1].level is level and bucket.boottime - runs[-1].end < step / 2:
            runs[-1] = Run(runs[-1].start, end, level)
        else:
            runs.append(Run(bucket.boottime, end, level))
    return runs


def flags_of(events: Iterable[Event], start: float, end: float) -> list[Flag]:
    """Return the events of a time range, oldest first."""
    return [
        Flag(event.unix, event.kind, word_of(event), event.text, event.target)
        for event in events
        if start <= event.unix <= end and event.kind not in QUIET
    ]


def most_telling(flags: Sequence[Flag]) -> list[Flag]:
    """Return at most MOST_FLAGS, oldest first. Level changes are dropped first: they are also shown as shading."""
    if len(flags) <= MOST_FLAGS:
        return list(flags)
    others = [flag for flag in flags if flag.kind != "level"][-MOST_FLAGS:]
    levels = [flag for flag in flags if flag.kind == "level"]
    newest = levels[max(0, len(levels) + len(others) - MOST_FLAGS) :]
    return sorted([*others, *newest], key=lambda flag: flag.unix)


def word_of(event: Event) -> str:
    """Return the label of an event: the text of a mark, the new level, or the kind of event."""
    if event.kind == "mark":
        return event.text
    if event.kind == "level":
        level = event.text.partition("→ ")[2].partition(" ")[0]
        return level or WORDS["level"]
    return "XID" if "XID" in event.text else WORDS.get(event.kind, event.kind.replace("_", " "))


def older_flags(
    runs: Mapping[str, Sequence[Run]], labels: Mapping[str, str], restarts: Iterable[float], known_from: float
) -> list[Flag]:
    """Return high levels and restarts from the time before the event list begins. `runs` are by target."""
    found = [
        Flag(run.start, "level", run.level.word, _level_text(labels.get(target, target), run), target)
        for target, its_runs in runs.items()
        for run in its_runs
        if run.end < known_from and run.level >= Level.HIGH
    ]
    found += [
        Flag(unix, "started", WORDS["started"], "memwatchd restarted") for unix in restarts if unix < known_from - 1
    ]
    return sorted(found, key=lambda flag: flag.unix)


def _level_text(label: str, run: Run) -> str:
    return f"{label} was {run.level.word} for up to {duration(run.end - run.start)}"
