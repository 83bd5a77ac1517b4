"""Read the table of docs/quality/fuzz.md, and write it again with the rows of this run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from fuzz.targets import FOLDER

HEAD = """# Fuzzing

<!-- The table is written by `make fuzz`; the text below it is not. -->

Coverage-guided fuzzing of every parser with arbitrary bytes (`make fuzz`, atheris). One row is one target.

| target | seconds | executions | edges covered | finds | fixed | date |
|---|---|---|---|---|---|---|
"""
# The text below the table of a new page. That of a page that exists is kept: it has measurements of other programs.
FOOT = """
`finds` counts inputs of that run that broke a promise, `fixed` those of earlier runs and of writing the target.
"""
# Minimum time of each target; `make fuzz` without SECONDS runs as long.
FULL_SECONDS = 600
RULE = "|---|---|---|---|---|---|---|\n"
FIGURE = r" ([\d,]+) \|"
ROW = re.compile(rf"^\| (\w+) \|{5 * FIGURE} (\d{{4}}-\d\d-\d\d) \|$", re.MULTILINE)


class Row(Struct, frozen=True):
    """The run of one target."""

    name: str
    seconds: int
    executions: int
    edges: int
    finds: int
    date: str

    @property
    def line(self) -> str:
        fixed = len(list((FOLDER / "corpus" / self.name).glob("found-*")))
        figures = (self.seconds, self.executions, self.edges, self.finds, fixed)
        return f"| {self.name} | {' | '.join(f'{figure:,}' for figure in figures)} | {self.date} |\n"


def rows_in(page: str) -> list[Row]:
    return [
        Row(name, _number(seconds), _number(executions), _number(edges), _number(finds), date)
        for name, seconds, executions, edges, finds, _, date in ROW.findall(page)
    ]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def text_below(page: str) -> str:
    """Return what follows the table of a page. Raises ValueError for a page without one, rather than lose it."""
    if not page:
        return FOOT
    _, found, rest = page.partition(RULE)
    if not found:
        raise ValueError(f"the page has no table with a line {RULE.strip()}; restore it before it is written")
    lines = rest.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return "".join(lines[first:])


def written(rows: Iterable[Row], page: str = "") -> str:
    """Return the page with one row a target. A later row counts, unless its run was short and shorter.

    `page`: the page as it is. The text below its table stays.
    """
    kept: dict[str, Row] = {}
    for row in rows:
        before = kept.get(row.name)
        if before is None or before.finds or row.finds or row.seconds >= min(FULL_SECONDS, before.seconds):
            kept[row.name] = row
    return HEAD + "".join(kept[name].line for name in sorted(kept)) + text_below(page)
