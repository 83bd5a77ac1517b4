"""Write the figures of a run into README and docs/quality/cost.md: make bench BENCH_ARGS='--docs out/bench.json'.

A table stands between `<!-- bench: NAME -->` and `<!-- bench: end -->`; all other text is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench_rest import AUDIENCE, NO_PSI, TRIGGER, UNIT
from sheet import ABSENT, Run

from support.paths import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs/quality/cost.md")
BLOCK = re.compile(r"(<!-- bench: (?!end)([a-z ]+) -->\n).*?(<!-- bench: end -->)", re.DOTALL)
PAGE_COLUMNS = (TRIGGER, UNIT, NO_PSI)


class MissingFigureError(Exception):
    """A run without a section that a table needs, such as one of `--only`."""


def write_tables(run: Run, pages: Sequence[Path] = PAGES) -> None:
    """Replace all tables. Raise MissingFigureError if the run lacks a section, and write nothing then."""
    written = {page: replace_blocks(page.read_text(), run) for page in pages}
    for page, text in written.items():
        page.write_text(text)


def replace_blocks(text: str, run: Run) -> str:
    def table(found: re.Match[str]) -> str:
        make = TABLES.get(found[2])
        lines = make(run) if make is not None else run.table(found[2])
        if len(lines) < 3 and found[2] != "run":
            raise MissingFigureError(f"the run has no figures of {found[2]}: run make bench without --only")
        return "\n".join([found[1].rstrip("\n"), "", *lines, "", found[3]])

    return BLOCK.sub(table, text)


def cell(run: Run, section: str, row: str, column: str) -> str:
    for figure in run.figures:
        if (figure.section, figure.row, figure.column) == (section, row, column):
            return ABSENT if figure.value is None else format(figure.value, figure.form)
    raise MissingFigureError(f"the run has no {column!r} of {row!r} in {section}: run make bench without --only")


def readme(run: Run) -> list[str]:
    """Return the rows of the README: machines that serve models first, then others."""
    head = "| load | CPU, % of one core | wake-ups a second | resident memory | written a day |"
    rows = []
    for spec in AUDIENCE:
        names = (f"CPU %, {UNIT}", f"wake-ups/s, {UNIT}", "RSS MiB", "helper PSS MiB", "written MB/day")
        cpu, woken, rss, helper, written = (cell(run, "rest", spec.name, name) for name in names)
        rows.append(f"| {spec.name} | {cpu} | {woken} | {memory(rss, helper)} | {written} MB |")
    for name in ("no GPU, 300 processes", "8 GPUs, 5,000 processes"):
        names = ("CPU %", "helper CPU %", "wake-ups/s, both", "RSS MiB", "helper PSS MiB")
        own, of_helper, woken, rss, helper = (cell(run, "machines", name, column) for column in names)
        cpu = f"{float(own) + float(of_helper):.3f}"
        rows.append(f"| {name} | {cpu} | {woken} | {memory(rss, helper)} | {ABSENT} |")
    cpu, rss = (cell(run, "streams", "200", name) for name in ("CPU %", "RSS MiB"))
    rows.append(f"| 200 open pages | {cpu} | {ABSENT} | {rss} MiB | {ABSENT} |")
    size = cell(run, "rest", AUDIENCE[0].name, "installed MiB")
    return [head, "|---|---:|---:|---:|---:|", *rows, "", f"Installed size with all dependencies: {size} MiB."]


def memory(rss: str, helper: str) -> str:
    return f"{rss} MiB" if helper in (ABSENT, "0.0") else f"{rss} MiB + {helper} MiB helper"


def rest(run: Run) -> list[str]:
    """Return CPU and wake-ups of each machine by the kind of PSI, and the rest as with the default unit."""
    columns = {
        **{f"CPU %, {psi}": f"CPU %, {psi}" for psi in PAGE_COLUMNS},
        f"× a bare read, {UNIT}": "× a bare read",
        **{f"wake-ups/s, {psi}": f"wake-ups/s, {psi}" for psi in PAGE_COLUMNS},
        "RSS MiB": "RSS MiB",
        "helper PSS MiB": "helper PSS MiB",
        "written MB/day": "written MB/day",
    }
    return selected(run, "rest", columns)


def machines(run: Run) -> list[str]:
    names = ("CPU %", "× a bare read", "helper CPU %", "helper × a bare read", "RSS MiB", "helper PSS MiB")
    return selected(run, "machines", {name: name for name in (*names, "wake-ups/s, both")})


def selected(run: Run, section: str, columns: Mapping[str, str]) -> list[str]:
    """Return a table of some columns, with other names."""
    rows = dict.fromkeys(figure.row for figure in run.figures if figure.section == section)
    body = [f"| {row} | {' | '.join(cell(run, section, row, column) for column in columns)} |" for row in rows]
    head = run.first.get(section, section)
    return [f"| {head} | {' | '.join(columns.values())} |", f"|---|{'---:|' * len(columns)}", *body]


def when(run: Run) -> list[str]:
    """Return the sentence about the run itself."""
    loads = run.loads.values()
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    return [f"The tables are from `make bench` on {run.date} ({run.machine}; {busy})."]


TABLES: Mapping[str, Callable[[Run], list[str]]] = {
    "readme": readme,
    "rest": rest,
    "machines": machines,
    "run": when,
}
