"""The page of an incident, and its row in the list: title, facts, timeline, evidence. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from memwatch.core.snapshot import Level
from memwatch.core.units import size
from memwatch.reporting.incidents.records import Entry, Incident
from memwatch.reporting.incidents.words import (
    Fact,
    describe_state,
    list_facts,
    list_timeline,
    write_summary,
    write_title,
)
from memwatch.reporting.render import words
from memwatch_web.pages.incident_picture import LAYOUTS, Picture, draw

UNRELATED = ("start", "end")
# An incident is one screen: more entries are folded, those of the last kinds first. "repeated" are alerts after the
# first one, and "" is any other kind.
MAX_ENTRIES = 7
KILLS = frozenset({"kill", "oom_kill", "unclean"})
ENTRY_ORDER = ("kill", "level", "alert", "", "repeated", "start", "end", "late", "stall")
# At least this many sentences of the evidence are shown, and as many lines as the timeline has entries. A line has
# about this many characters.
MIN_EVIDENCE, EVIDENCE_CHARACTERS = 3, 75
# The window of the history that a link opens, around a moment.
BEFORE_SECONDS, AFTER_SECONDS = 300.0, 120.0


class TimelineEntry(Struct, frozen=True):
    """An entry of the timeline: its first clause, and the link to the history of that time."""

    entry: Entry
    text: str
    href: str


class IncidentPage(Struct, frozen=True):
    """All that the page of an incident shows. `earlier` and `later`: its neighbours in the list.

    `folded`: entries that are shown on request, `unrelated` of them about other processes. `shown`: sentences of
    the evidence that are not folded.
    """

    one: Incident
    level: str
    title: str
    summary: str
    facts: tuple[Fact, ...]
    pictures: Mapping[str, Picture]
    entries: tuple[TimelineEntry, ...]
    folded: tuple[TimelineEntry, ...]
    unrelated: int
    shown: int
    href: str
    state: tuple[str, str] | None
    earlier: Incident | None = None
    later: Incident | None = None


class IncidentRow(Struct, frozen=True):
    """An incident in the list. `used`: part of the target in use at the worst, None if that is not known.

    `cause`: None if it is undecided. `state`: as of `describe_state`.
    """

    one: Incident
    title: str
    facts: tuple[Fact, ...]
    level: str
    used: float | None
    cause: str | None
    came_of_it: str
    state: tuple[str, str] | None


def build_row(one: Incident) -> IncidentRow:
    left, whole = one.lowest_available_bytes, one.size_bytes
    used = None if left is None or not whole else 1 - min(1.0, left / whole)
    facts = tuple(list_facts(one)[:2])
    cause = None if one.cause is None else ", ".join(part for part in (facts[0].value, facts[0].note) if part)
    came_of_it = [f"{facts[1].name} {facts[1].value}"] if one.victim is not None else []
    if one.came_back_bytes:
        came_of_it.append(f"{size(one.came_back_bytes)} came back")
    return IncidentRow(
        one, write_title(one), facts, level_of(one), used, cause, "; ".join(came_of_it), describe_state(one)
    )


def level_of(one: Incident) -> str:
    """Return the level whose glyph an incident has: high for a failed allocation, critical for all else."""
    return (Level.HIGH if one.kind == "program" else Level.CRITICAL).word


def build_page(one: Incident, heads: Sequence[Incident]) -> IncidentPage:
    """Return the page of an incident. `heads`: all that are kept, newest first."""
    places = [number for number, head in enumerate(heads) if head.id == one.id]
    place = places[0] if places else None
    related, unrelated = split_timeline(one)
    entries = choose_entries(related)
    folded = [entry for entry in list_timeline(one) if entry not in entries]
    drawn = {name: draw(one, layout) for name, layout in LAYOUTS.items()}
    return IncidentPage(
        one,
        level_of(one),
        write_title(one),
        write_summary(one),
        tuple(list_facts(one)),
        {name: picture for name, picture in drawn.items() if picture is not None},
        tuple(map(_build_entry, entries)),
        tuple(map(_build_entry, folded)),
        len(unrelated),
        count_evidence(one.evidence, len(entries) + bool(folded)),
        link_to_history(one.began, one.ended),
        describe_state(one),
        heads[place + 1] if place is not None and place + 1 < len(heads) else None,
        heads[place - 1] if place else None,
    )


def _build_entry(entry: Entry) -> TimelineEntry:
    return TimelineEntry(entry, first_clause(entry.text), link_to_history(entry.unix))


def first_clause(text: str) -> str:
    """Return a text up to its first semicolon: "System RAM: high → critical (95.2% used)"."""
    first, semicolon, _ = text.partition("; ")
    return f"{first})" if semicolon and first.count("(") > first.count(")") else first


def count_evidence(evidence: Sequence[str], rows: int) -> int:
    """Return how many sentences are as high as these rows, at least MIN_EVIDENCE. Others take a line as well."""
    ends = list(accumulate(-(-len(sentence) // EVIDENCE_CHARACTERS) for sentence in evidence))
    if not ends or ends[-1] <= rows:
        return len(evidence)
    return min(len(evidence), max(MIN_EVIDENCE, sum(end < rows for end in ends)))


def link_to_history(began: float, ended: float | None = None) -> str:
    start, end = (words.timestamp(unix) for unix in (began - BEFORE_SECONDS, (ended or began) + AFTER_SECONDS))
    return f"history?from={start}&to={end}"


def choose_entries(related: Sequence[Entry]) -> list[Entry]:
    """Return the entries that are not folded, in their order: kills and levels before all others."""
    kinds = list(_rank_kinds(related))
    kept: list[int] = []
    for kind in ENTRY_ORDER:
        found = [number for number, its in enumerate(kinds) if its == kind]
        left = MAX_ENTRIES - len(kept)
        kept += found if len(found) <= left else _pick_ends(found, left)
    return [related[number] for number in sorted(kept)]


def _rank_kinds(related: Iterable[Entry]) -> Iterator[str]:
    """Yield the kind of each entry, as in ENTRY_ORDER."""
    has_alert = False
    for entry in related:
        kind = "kill" if entry.kind in KILLS else entry.kind if entry.kind in ENTRY_ORDER else ""
        yield "repeated" if kind == "alert" and has_alert else kind
        has_alert |= kind == "alert"


def _pick_ends(found: Sequence[int], count: int) -> list[int]:
    """Return as many of these: the first ones and the last ones."""
    first = min(count, max(1, count // 2))
    return [*found[:first], *found[len(found) - count + first :]]


def split_timeline(one: Incident) -> tuple[list[Entry], list[Entry]]:
    """Return the entries about the incident, and starts and ends of processes that have no part in it."""
    involved = [one.cause, *one.candidates, *one.victims]
    marks = tuple(f"(PID {who.pid})" for who in involved if who is not None and who.pid is not None)
    related: list[Entry] = []
    unrelated: list[Entry] = []
    for entry in list_timeline(one):
        is_other = entry.kind in UNRELATED and not any(mark in entry.text for mark in marks)
        (unrelated if is_other else related).append(entry)
    return related, unrelated
