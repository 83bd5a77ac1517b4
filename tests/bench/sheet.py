"""Figures of one run of the benchmark: printed as tables, kept as JSON, compared with those of another run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

# Two runs agree if a figure of ours differs by at most this fraction of the smaller one.
MAX_DISAGREEMENT = 0.1
ABSENT = "–"


class Column(Struct, frozen=True):
    """Column of a table. `form` is a format specification; `is_exact`: two runs must agree on it.

    Latencies and rates of requests are those of the host as well: they are printed, and not compared.
    """

    name: str
    form: str = ".1f"
    is_exact: bool = True


class Figure(Struct, frozen=True):
    """One cell. `value` is None if it was not measured. `is_exact` as in `Column`, and False for peers."""

    section: str
    row: str
    column: str
    value: float | None
    form: str
    is_exact: bool


class Run(Struct):
    """All figures of a run, and the machine and day they are from.

    `first`: head of the first column by section. `loads`: load average of a minute by section, at its table.
    """

    machine: str
    date: str
    figures: list[Figure]
    first: dict[str, str]
    loads: dict[str, float]

    def table(self, section: str) -> list[str]:
        """Return the lines of a table in Markdown, with columns in the order of their first cell."""
        cells = [figure for figure in self.figures if figure.section == section]
        columns = list(dict.fromkeys(figure.column for figure in cells))
        by_row: dict[str, dict[str, Figure]] = {}
        for figure in cells:
            by_row.setdefault(figure.row, {})[figure.column] = figure
        body = [_line(name, [_shown(own.get(column)) for column in columns]) for name, own in by_row.items()]
        return [_line(self.first.get(section, section), columns), f"|---|{'---:|' * len(columns)}", *body]


class Sheet:
    """Figures of the run so far. A row is printed when it is added."""

    def __init__(self) -> None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        self.run: Run = Run(machine, time.strftime("%F"), [], {}, {})
        self._section, self._columns = "", tuple[Column, ...]()

    def keep(self, earlier: Run) -> None:
        """Keep the tables of an earlier run of this machine and day, except those that are measured again."""
        if (earlier.machine, earlier.date) == (self.run.machine, self.run.date):
            self.run = earlier

    def head(self, section: str, first: str, *columns: Column) -> None:
        """Begin a table, in place of one that was kept."""
        self._section, self._columns = section, columns
        self.run.first[section] = first
        self.run.loads[section] = os.getloadavg()[0]
        self.run.figures = [figure for figure in self.run.figures if figure.section != section]
        print(_line(first, [column.name for column in columns]))
        print(f"|---|{'---:|' * len(columns)}", flush=True)

    def row(self, name: str, *values: float | None, is_ours: bool = True) -> None:
        """Add a row with a value for each column; None was not measured."""
        figures = [
            Figure(self._section, name, column.name, value, column.form, column.is_exact and is_ours)
            for column, value in zip(self._columns, values, strict=True)
        ]
        self.run.figures += figures
        print(_line(name, [_shown(figure) for figure in figures]), flush=True)

    def end(self, *sentences: str) -> None:
        """End a table with an empty line, and sentences below it."""
        print("\n".join(["", *sentences]), flush=True)


def read_run(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)


def write_run(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def disagreement(now: Run, before: Run) -> list[str]:
    """Return a table of the exact figures that differ by more than a tenth, and a sentence with their number."""
    both = [pair for pair in _pairs(now, before) if pair[0].is_exact]
    apart = [pair for pair in both if _difference(*pair) > MAX_DISAGREEMENT]
    rows = [
        _line(one.section, [one.row, one.column, _shown(other), _shown(one), f"{_difference(one, other):.0%}"])
        for one, other in sorted(apart, key=lambda pair: -_difference(*pair))
    ]
    head = ["| section | row | figure | earlier | now | difference |", "|---|---|---|---:|---:|---:|"]
    sentence = (
        f"{len(both) - len(apart)} of {len(both)} figures agree with the run of {before.date} "
        f"within {MAX_DISAGREEMENT:.0%}."
    )
    return [*(head if rows else []), *rows, *([""] if rows else []), sentence]


def _pairs(now: Run, before: Run) -> Iterator[tuple[Figure, Figure]]:
    earlier = {(one.section, one.row, one.column): one for one in before.figures}
    for figure in now.figures:
        other = earlier.get((figure.section, figure.row, figure.column))
        if other is not None and figure.value is not None and other.value is not None:
            yield figure, other


def _difference(one: Figure, other: Figure) -> float:
    """Return the difference as a fraction of the smaller figure, as they are printed: 0.0 and 0.04 are the same."""
    low, high = sorted(abs(float(_shown(figure).replace(",", ""))) for figure in (one, other))
    if low == high:
        return 0.0
    return high / low - 1 if low else float("inf")


def _shown(figure: Figure | None) -> str:
    return ABSENT if figure is None or figure.value is None else format(figure.value, figure.form)


def _line(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"
