"""An incident as a Markdown report. Pure functions of its JSON.

Any program chooses its name, and the report is posted in an issue. Texts with names are code: a forge makes
links of URLs and #12, and mentions of @user, even where they are escaped, but not in code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memwatch.core.owners import describe_home
from memwatch.core.units import size
from memwatch.reporting.incidents.records import title_of
from memwatch.reporting.incidents.words import NOT_KNOWN, capitalize
from memwatch.reporting.render.json import rfc3339

Json = Mapping[str, Any]
BACKTICKS = re.compile("`+")
# A row of a table is split before its code is read.
PIPE = r"\|"


def render(found: Json) -> str:
    """Return the report of an incident of the API."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Json) -> Iterator[str]:
    yield f"# {code(found['title'])}"
    yield from ("", code(found["summary"]), "") if found["summary"] else ("",)
    yield from _table(_facts(found))
    yield from _suspects(found)
    if found["evidence"]:
        yield from ("", "## Evidence", "")
        yield from (f"- {code(one)}" for one in found["evidence"])
    if found.get("told"):
        yield from ("", "## Notifications", "")
        yield from (f"- {_told(one)}" for one in found["told"])
    if found.get("timeline"):
        yield from ("", "## Timeline", "")
        yield from (f"- {one['time']} {one['kind']}: {code(one['text'])}" for one in found["timeline"])


def _told(one: Json) -> str:
    when = "" if one["unix"] is None else f"{rfc3339(one['unix'])} "
    reason = f": {code(one['reason'])}" if one["reason"] else ""
    return f"{when}{code(one['receiver'])} {one['rule']} {one['result']}{reason}"


def _facts(found: Json) -> Iterator[tuple[str, str]]:
    yield "Incident", found["id"]
    yield "Began", found["began"]
    yield "Ended", found["ended"] or "not yet"
    yield "Target", code(f"{found['label']} ({found['target']})")
    yield "Kind", title_of(found["kind"])
    killer, victim = found["killer"], found["victim"]
    if killer is not None:
        yield "Killer", title_of(killer["kind"])
    if victim is not None:
        yield "Victim", code(f"{victim['who']} (PID {victim['pid']})" if victim["pid"] else victim["who"])
    for fact in found["facts"][2:]:
        yield capitalize(fact["name"]), ", ".join(part for part in (fact["value"], fact["note"]) if part)
    for name, title in (("lowest_available_bytes", "Lowest available"), ("came_back_bytes", "Came back")):
        yield title, NOT_KNOWN if found[name] is None else size(found[name])


def _suspects(found: Json) -> Iterator[str]:
    cause = found["cause"]
    rows = [cause] if cause is not None else found["candidates"]
    if not rows:
        return
    yield from ("", "## Cause" if cause is not None else "## Candidates (undecided)", "")
    head = ("Who", "PID", "Unit or container", "Grew by", "To", "Since")
    yield from _rows(head, [_suspect(one) for one in rows])


def _suspect(one: Json) -> tuple[str, ...]:
    owner = describe_home(one["unit"], one["container"]) or ""
    pid = "" if one["pid"] is None else str(one["pid"])
    return code(one["who"]), pid, code(owner), size(one["growth_bytes"]), size(one["held_bytes"]), one["began"]


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
