"""The report in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from hardware.comparison import TOLERANCES, Row, Verdict
from hardware.figures import Figure

MIB = 1 << 20


class Section(Struct, frozen=True):
    """Rows of one check, and a sentence about it."""

    title: str
    rows: Sequence[Row] = ()
    note: str = ""


class Report(Struct, frozen=True):
    """Everything that a run found."""

    facts: Mapping[str, str]
    doctor: str
    sections: Sequence[Section]
    cost: Mapping[str, str]

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def is_right(self) -> bool:
        """True if at least one row was judged and none is wrong."""
        verdicts = {row.verdict for row in self.rows}
        return Verdict.OK in verdicts and Verdict.WRONG not in verdicts

    @property
    def result(self) -> str:
        counts = {verdict: sum(row.verdict is verdict for row in self.rows) for verdict in Verdict}
        listed = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
        return f"{'All figures are right' if self.is_right else 'FAILED'}: {listed or 'no row'}."


def render(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# memwatchd on real hardware"
    yield ""
    yield from _table(("fact", "value"), list(report.facts.items()))
    for section in report.sections:
        yield from _section_lines(section)
    yield ""
    yield "## Tolerances"
    yield ""
    yield from _table(("figure", "tolerance", "reason"), TOLERANCES)
    yield ""
    yield "## Cost of the daemon during the test"
    yield ""
    yield from _table(("cost", "value"), list(report.cost.items()))
    yield ""
    yield "## memwatch doctor"
    yield ""
    yield "```text"
    yield report.doctor.strip()
    yield "```"
    yield ""
    yield f"**{report.result}**"


def render_section(section: Section) -> str:
    return "\n".join(_section_lines(section)) + "\n"


def _section_lines(section: Section) -> Iterator[str]:
    yield ""
    yield f"## {section.title}"
    if section.note:
        yield ""
        yield section.note
    if section.rows:
        yield ""
        yield from _table(
            ("step", "figure", "asked", "shown", "vendor", "difference", "verdict"), map(_cells, section.rows)
        )


def _cells(row: Row) -> tuple[str, ...]:
    verdict = row.verdict.value + (f": {row.note}" if row.note else "")
    figures = (row.asked, row.shown, row.vendor, "" if row.difference is None else row.difference)
    asked, shown, vendor, difference = (_amount(figure, row.unit) for figure in figures)
    return row.step, row.figure, asked, shown, vendor, difference, verdict


def _amount(figure: Figure, unit: str) -> str:
    if not isinstance(figure, int):
        return figure or "–"
    if unit == "change":
        return f"{figure / MIB:+,.1f} MiB"
    return f"{figure / MIB:,.1f} MiB" if unit == "bytes" else f"{figure} {unit}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        cells = (cell.replace("|", "/").replace("\n", " ") for cell in row)
        yield f"| {' | '.join(cells)} |"
