"""The table of docs/fuzz.md: read, and written anew with the rows of this run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from fuzz.targets import FOLDER

HEAD = """# What the fuzzers did

Written by `make fuzz` (atheris, guided by coverage): every parser with bytes that nobody meant, each input within
5 s and 1 GiB. A target fails where a parser raises anything but its own error, or where a figure is negative,
infinite, or nowhere in the input. What was found is an input under `tests/fuzz/corpus` now, and each of those goes
through every promise again in `make test`. A row is of the newest run that had its ten minutes.

`mended` counts inputs that once broke a promise, found by a run or while its target was written. Rows of less than
600 s are what there was time for; `make fuzz` without SECONDS gives every target its ten minutes.

| target | seconds | executions | edges covered | finds | mended | date |
|---|---|---|---|---|---|---|
"""
# What every target is to have had; `make fuzz` gives it without SECONDS.
FULL_SECONDS = 600
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
        mended = len(list((FOLDER / "corpus" / self.name).glob("found-*")))
        figures = (self.seconds, self.executions, self.edges, self.finds, mended)
        return f"| {self.name} | {' | '.join(f'{figure:,}' for figure in figures)} | {self.date} |\n"


def rows_in(page: str) -> list[Row]:
    return [
        Row(name, _number(seconds), _number(executions), _number(edges), _number(finds), date)
        for name, seconds, executions, edges, finds, _, date in ROW.findall(page)
    ]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def written(rows: Iterable[Row]) -> str:
    """The page, with one row a target. The later row counts, unless its time was short and shorter than before."""
    kept: dict[str, Row] = {}
    for row in rows:
        before = kept.get(row.name)
        if before is None or before.finds or row.finds or row.seconds >= min(FULL_SECONDS, before.seconds):
            kept[row.name] = row
    return HEAD + "".join(kept[name].line for name in sorted(kept))
