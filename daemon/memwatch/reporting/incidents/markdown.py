"""An incident as a Markdown report. Pure functions.

Any program chooses its name, and the report is posted in an issue. Texts with names are code: a forge makes
links of URLs and #12, and mentions of @user, even where they are escaped, but not in code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memwatch.core.owners import describe_home
from memwatch.core.units import size
from memwatch.core.wire import rfc3339
from memwatch.reporting.incidents.records import Incident, Suspect, Told, title_of
from memwatch.reporting.incidents.words import NOT_KNOWN, capitalize, list_facts, write_summary, write_title

BACKTICKS = re.compile("`+")
# A row of a table is split before its code is read.
PIPE = r"\|"


def render(found: Incident) -> str:
    """Return the report of an incident."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Incident) -> Iterator[str]:
    yield f"# {code(write_title(found))}"
    summary = write_summary(found)
    yield from ("", code(summary), "") if summary else ("",)
    yield from _table(_facts(found))
    yield from _suspects(found)
    if found.evidence:
        yield from ("", "## Evidence", "")
        yield from (f"- {code(one)}" for one in found.evidence)
    if found.told:
        yield from ("", "## Notifications", "")
        yield from (f"- {_told(one)}" for one in found.told)
    if found.timeline:
        yield from ("", "## Timeline", "")
        yield from (f"- {rfc3339(one.unix)} {one.kind}: {code(one.text)}" for one in found.timeline)


def _told(one: Told) -> str:
    when = "" if one.unix is None else f"{rfc3339(one.unix)} "
    reason = f": {code(one.reason)}" if one.reason else ""
    return f"{when}{code(one.receiver)} {one.rule} {one.result}{reason}"


def _facts(found: Incident) -> Iterator[tuple[str, str]]:
    yield "Incident", found.id
    yield "Began", rfc3339(found.began)
    ended = "not yet" if found.quiet_until is None else f"yes, being recorded until {rfc3339(found.quiet_until)}"
    yield "Ended", ended if found.ended is None else rfc3339(found.ended)
    yield "Target", code(f"{found.label} ({found.target})")
    yield "Kind", title_of(found.kind)
    if found.killer is not None:
        yield "Killer", title_of(found.killer.kind)
    if (victim := found.victim) is not None:
        yield "Victim", code(f"{victim.who} (PID {victim.pid})" if victim.pid else victim.who)
    for fact in list_facts(found)[2:]:
        yield capitalize(fact.name), ", ".join(part for part in (fact.value, fact.note) if part)
    for title, count in (("Lowest available", found.lowest_available_bytes), ("Came back", found.came_back_bytes)):
        yield title, NOT_KNOWN if count is None else size(count)


def _suspects(found: Incident) -> Iterator[str]:
    rows = (found.cause,) if found.cause is not None else found.candidates
    if not rows:
        return
    yield from ("", "## Candidates (undecided)" if found.cause is None else "## Cause", "")
    head = ("Who", "PID", "Unit or container", "Grew by", "To", "Since")
    yield from _rows(head, [_suspect(one) for one in rows])


def _suspect(one: Suspect) -> tuple[str, ...]:
    owner = describe_home(one.unit, one.container) or ""
    pid = "" if one.pid is None else str(one.pid)
    return code(one.who), pid, code(owner), size(one.growth_bytes), size(one.held_bytes), rfc3339(one.began)


def _table(facts: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield from _rows(("", ""), list(facts))


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(cell.replace('|', PIPE) for cell in row)} |" for row in rows)


def code(text: str) -> str:
    """Return a text as code between more backticks than it has in a row. An empty text stays empty."""
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, BACKTICKS.findall(text)), default=0))
    return f"{fence} {' '.join(text.split())} {fence}"
