"""Figures of the benchmark: their tables, agreement of two runs, exponents of growth, and tables in pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.paths import TESTS

sys.path.append(str(TESTS / "bench"))

from bench_growth import exponent
from cost_tables import MissingFigureError, replace_blocks, write_tables
from sheet import Column, Run, Sheet, disagreement, read_run, write_run


def run_with(cpu: float | None, latency: float = 1.0, peer: float = 5.0) -> Run:
    sheet = Sheet()
    sheet.head("rest", "machine", Column("CPU", ".2f"), Column("ms", ".1f", is_exact=False))
    sheet.row("Spark", cpu, latency)
    sheet.row("collectd", peer, 1.0, is_ours=False)
    return sheet.run


def test_table_has_a_dash_for_a_figure_that_was_not_measured() -> None:
    assert run_with(None).table("rest") == [
        "| machine | CPU | ms |",
        "|---|---:|---:|",
        "| Spark | – | 1.0 |",
        "| collectd | 5.00 | 1.0 |",
    ]


@pytest.mark.parametrize(("cpu", "expected"), [(0.23, "0 of 1"), (0.21, "1 of 1"), (0.17, "0 of 1")])
def test_runs_agree_within_a_tenth_of_the_smaller_figure(cpu: float, expected: str) -> None:
    lines = disagreement(run_with(cpu), run_with(0.2))

    assert lines[-1].startswith(f"{expected} figures agree with the run of ")
    assert len(lines) == (1 if expected == "1 of 1" else 5)


def test_latencies_and_peers_are_not_compared() -> None:
    assert disagreement(run_with(0.2, latency=9.0, peer=50.0), run_with(0.2))[-1].startswith("1 of 1 ")


def test_figure_that_one_run_has_not_measured_is_not_compared() -> None:
    assert disagreement(run_with(None), run_with(0.2))[-1].startswith("0 of 0 ")


def test_figures_that_are_printed_alike_agree() -> None:
    """0.001 and 0.004 are both 0.00."""
    assert disagreement(run_with(0.001), run_with(0.004))[-1].startswith("1 of 1 ")


def test_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = run_with(0.2)

    write_run(run, tmp_path / "out/bench.json")

    assert read_run(tmp_path / "out/bench.json") == run


@pytest.mark.parametrize(
    ("costs", "expected"), [((1.0, 2.0, 4.0), 1.0), ((1.0, 4.0, 16.0), 2.0), ((3.0, 3.0, 3.0), 0.0)]
)
def test_exponent_is_that_of_the_power(costs: Sequence[float], expected: float) -> None:
    assert exponent((10, 20, 40), costs) == pytest.approx(expected)


def test_exponent_uses_all_sizes() -> None:
    """Between the ends alone it would be 1."""
    assert exponent((1, 2, 4), (1.0, 4.0, 4.0)) == pytest.approx(1.0)
    assert exponent((1, 2, 4, 8), (1.0, 8.0, 8.0, 8.0)) == pytest.approx(0.9)


def test_free_size_has_no_exponent() -> None:
    assert exponent((1, 2), (0.0, 3.0)) is None


def test_table_of_a_page_is_replaced_and_its_text_kept() -> None:
    page = "Text.\n\n<!-- bench: rest -->\n| old |\n<!-- bench: end -->\n\nMore.\n"

    found = replace_blocks(page.replace("bench: rest", "bench: run"), run_with(0.2))

    assert found.startswith("Text.\n\n<!-- bench: run -->\n\nThe tables are from `make bench` on ")
    assert found.endswith("\n\n<!-- bench: end -->\n\nMore.\n")
    assert "| old |" not in found


def test_page_is_not_written_from_a_run_without_its_section(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: memory -->\n| old |\n<!-- bench: end -->\n")

    with pytest.raises(MissingFigureError, match="memory: run make bench without --only"):
        write_tables(run_with(0.2), [page])

    assert "| old |" in page.read_text()


def test_table_that_is_measured_again_replaces_the_kept_one() -> None:
    """As with --only: tables of the same day and machine stay, others do not."""
    earlier, sheet = run_with(0.2), Sheet()
    sheet.keep(earlier)
    sheet.head("memory", "machine", Column("MiB"))
    sheet.row("Spark", 44.0)
    sheet.head("rest", "machine", Column("CPU", ".2f"))
    sheet.row("Orin", 0.3)

    assert [(figure.section, figure.row) for figure in sheet.run.figures] == [("memory", "Spark"), ("rest", "Orin")]

    sheet = Sheet()
    earlier.date = "2026-01-01"
    sheet.keep(earlier)

    assert sheet.run.figures == []
