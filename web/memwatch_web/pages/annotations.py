"""What stands behind and above the curves: levels, gaps, and what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch.events import Event
from memwatch.history.tiers import Bucket
from memwatch.render.words import duration
from memwatch.snapshot import Level

MOST_FLAGS = 100
# Told elsewhere, or too often to be told in a chart.
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
    "unclean": "unclean end",
    "replay": "replay",
    "leak": "leak?",
    "mark": "mark",
}


class Gap(Struct, frozen=True):
    """A stretch of which nothing is known; `words` say why, as far as that is known."""

    start: float
    end: float
    words: str


class Run(Struct, frozen=True):
    """A stretch at one level."""

    start: float
    end: float
    level: Level


class Flag(Struct, frozen=True):
    """Something that happened. `word` fits above a curve; `target` is what it happened to, if to one thing."""

    unix: float
    kind: str
    word: str
    text: str
    target: str | None = None


def gaps_of(buckets: Sequence[Bucket], start: float, end: float, step: float, events: Iterable[Event]) -> list[Gap]:
    """Where a series that is always there has nothing, and what was before its first figure and after its last.

    Times are Unix seconds, those of the buckets as well. `step` is what one point stands for.
    """
    known = [bucket.boottime for bucket in buckets if bucket.average is not None]
    if not known:
        return [Gap(start, end, "nothing is remembered of this time")]
    slept = [event.unix for event in events if event.kind == "suspend"]
    gaps = [Gap(start, known[0], "nothing older is remembered")] if known[0] - start > 2 * step else []
    for bucket, after in pairwise(buckets):
        if bucket.average is None:
            began, ended = bucket.boottime, after.boottime
            why = suspended_or_down(any(began <= unix <= ended + 2 * step for unix in slept))
            gaps.append(Gap(began, ended, f"{why}: nothing is known of {duration(ended - began)}"))
    if end - known[-1] > 4 * step:
        gaps.append(Gap(known[-1] + step, end, "nothing is known of the time after"))
    return gaps


def suspended_or_down(suspended: bool) -> str:
    return "the machine was suspended" if suspended else "memwatchd did not run"


def restarts_of(buckets: Iterable[Bucket]) -> list[float]:
    """When memwatchd began anew: its processor time only ever grows while it runs."""
    known = [bucket for bucket in buckets if bucket.minimum is not None]
    return [
        after.boottime
        for before, after in pairwise(known)
        if after.minimum is not None and before.minimum is not None and after.minimum < before.minimum
    ]


def runs_of(buckets: Sequence[Bucket], step: float) -> list[Run]:
    """Stretches of one level above low, each bucket at the highest level that was in it."""
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
    """The events of this time, oldest first."""
    return [
        Flag(event.unix, event.kind, word_of(event), event.text, event.target)
        for event in events
        if start <= event.unix <= end and event.kind not in QUIET
    ]


def most_telling(flags: Sequence[Flag]) -> list[Flag]:
    """As many as are listed, oldest first. Levels stand behind the curves as well: they are left out first."""
    if len(flags) <= MOST_FLAGS:
        return list(flags)
    others = [flag for flag in flags if flag.kind != "level"][-MOST_FLAGS:]
    levels = [flag for flag in flags if flag.kind == "level"]
    newest = levels[max(0, len(levels) + len(others) - MOST_FLAGS) :]
    return sorted([*others, *newest], key=lambda flag: flag.unix)


def word_of(event: Event) -> str:
    """What stands above the curve: a mark's own words, a level's new word, or what kind of thing it is."""
    if event.kind == "mark":
        return event.text
    if event.kind == "level":
        level = event.text.partition("→ ")[2].partition(" ")[0]
        return level or WORDS["level"]
    return "XID" if "XID" in event.text else WORDS.get(event.kind, event.kind.replace("_", " "))


def older_flags(
    runs: Mapping[str, Sequence[Run]], labels: Mapping[str, str], restarts: Iterable[float], known_from: float
) -> list[Flag]:
    """What the history alone remembers of the time before the list of events begins, high levels and restarts.
    `runs` are by target."""
    found = [
        Flag(run.start, "level", run.level.word, _told(labels.get(target, target), run), target)
        for target, its_runs in runs.items()
        for run in its_runs
        if run.end < known_from and run.level >= Level.HIGH
    ]
    found += [
        Flag(unix, "started", WORDS["started"], "memwatchd was started again")
        for unix in restarts
        if unix < known_from - 1
    ]
    return sorted(found, key=lambda flag: flag.unix)


def _told(label: str, run: Run) -> str:
    return f"{label} was {run.level.word} for up to {duration(run.end - run.start)}"
