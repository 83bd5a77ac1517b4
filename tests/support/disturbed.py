"""Tests that failed beside other work and passed alone, as tests/disturbed.toml lists them."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from support.function_changes import definitions, function_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "tests/disturbed.toml"
MAX_ENTRIES = 8
MAX_DAYS = 30
SUSPICIONS = ("test", "product")
# A wait of the test that ended: the machine was slow, or the daemon was.
_WAITED = re.compile(r"after [\d.]+ s|did not reach|[Tt]imed? ?out")
_CAUSE = re.compile(r"^Disturbed: (?P<test>\S.*?): (?P<cause>\S.*)$", re.MULTILINE)


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One test. `suspicion` names the part that is believed to be wrong; `last_line` is that of the failure."""

    test: str
    date: datetime.date
    seen: int
    suspicion: str
    last_line: str

    def __str__(self) -> str:
        """Render as TOML."""
        values = [
            f"test = {_toml(self.test)}",
            f"date = {self.date}",
            f"seen = {self.seen}",
            f"suspicion = {_toml(self.suspicion)}",
            f"last_line = {_toml(self.last_line)}",
        ]
        return "\n".join(["[[disturbed]]", *values])


class MalformedError(Exception):
    """File that cannot be read as a list of entries."""


def parse(text: str) -> list[Entry]:
    """Return the entries of a file."""
    try:
        document: dict[str, Any] = tomllib.loads(text)
        unknown = document.keys() - {"disturbed"}
        if unknown:
            raise MalformedError(f"unknown table {min(unknown)!r}; write [[disturbed]]")
        return msgspec.convert(document.get("disturbed", []), list[Entry])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MalformedError(f"{error}; an entry has test, date, seen, suspicion and last_line") from error


def seen_again(test: str, last_line: str, today: datetime.date, entries: Iterable[Entry]) -> Entry:
    """Return the entry to write: a new one, or the present one, seen once more."""
    for entry in entries:
        if entry.test == test:
            return msgspec.structs.replace(entry, seen=entry.seen + 1, last_line=last_line)
    return Entry(test, today, 1, "test" if _WAITED.search(last_line) else "product", last_line)


def findings(entries: list[Entry], texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons to refuse these entries. `texts` has the test files by path."""
    if len(entries) > MAX_ENTRIES:
        yield f"{len(entries)} entries; at most {MAX_ENTRIES}: find the cause of one before the next change"
    tests = [entry.test for entry in entries]
    for test in sorted({test for test in tests if tests.count(test) > 1}):
        yield f"{test}: listed twice; add up `seen`"
    for entry in entries:
        path, name = function_of(entry.test)
        if name not in definitions(texts.get(path, "")):
            yield f"{entry.test}: no such test; remove the entry, and name the cause in the commit"
        if entry.suspicion not in SUSPICIONS:
            yield f"{entry.test}: suspicion {entry.suspicion!r}; write one of {', '.join(SUSPICIONS)}"
        if entry.seen < 1:
            yield f"{entry.test}: seen {entry.seen} times; write 1 or more"


def warnings(entries: Iterable[Entry], today: datetime.date) -> Iterator[str]:
    """Yield the entries that are too old."""
    for entry in entries:
        days = (today - entry.date).days
        if days > MAX_DAYS:
            yield f"{entry.test}: listed for {days} days; find its cause by `make test-stress`"


def unexplained(before: Iterable[Entry], after: Iterable[Entry], message: str) -> Iterator[str]:
    """Yield the tests that a commit removes from the list without naming the cause in its message."""
    explained = {match["test"] for match in _CAUSE.finditer(message)}
    kept = {entry.test for entry in after}
    for test in sorted({entry.test for entry in before} - kept - explained):
        yield f"{test}: removed without a cause; add a line to the commit: `Disturbed: {test}: CAUSE`"


def read_entries(root: Path) -> list[Entry]:
    path = root / FILE
    return parse(path.read_text(encoding="utf-8")) if path.exists() else []


def _toml(text: str) -> str:
    """Quote a text; JSON's escapes are TOML's, except for this control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
