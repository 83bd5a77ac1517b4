"""The table of results on real hardware is that of the reports, and each report is complete."""

from __future__ import annotations

import pytest

from hardware.comparison import Row, Verdict
from hardware.report import Report, Section, render
from scripts.hardware_results import FACTS, PAGE, RESULTS, ReportError, read_all, read_report, render_page


def report_of(*verdicts: Verdict, **facts: str) -> str:
    rows = [Row(f"step {number}", "VRAM", 1, 1, 1, 0, one) for number, one in enumerate(verdicts)]
    described = {**dict.fromkeys(FACTS, "some | text"), **facts}
    return render(Report(described, "✓ gpu0", [Section("steps", rows)], {"RSS": "1 MiB"}))


def test_page_is_that_of_the_reports() -> None:
    """Every report is complete and of a real machine; `make hardware-result` writes the page."""
    results = read_all()

    assert PAGE.read_text() == render_page(results)
    assert [one.name for one in results if "simulated" in one.facts] == []
    assert len(results) == len(list(RESULTS.glob("*"))) - (RESULTS / "README.md").exists()


def test_empty_table_says_that_there_is_no_result() -> None:
    assert "**There is no result yet.**" in render_page([])
    assert "| report | date |" not in render_page([])


def test_row_has_the_facts_and_the_count_of_each_verdict() -> None:
    text = report_of(Verdict.OK, Verdict.OK, Verdict.UNJUDGED, date="2026-11-26", GPU="NVIDIA GB10 (gpu0 of 1)")
    wrong = report_of(Verdict.OK, Verdict.WRONG)

    page = render_page([read_report("dgx-spark-1", text), read_report("mine", wrong)])

    assert (
        "| [dgx-spark-1](../../tests/hardware/results/dgx-spark-1.md) | 2026-11-26 | some / text | NVIDIA GB10"
        in page
    )
    assert "| 2 ok, 1 not judged |" in page
    assert "| 1 ok, 1 WRONG |" in page


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("A B", report_of(Verdict.OK), "is not a name for a result"),
        ("../x", report_of(Verdict.OK), "is not a name for a result"),
        ("a1", "hello", "does not begin with"),
        ("a1", report_of(Verdict.OK).replace("| date |", "| day |"), "lacks date"),
        (
            "a1",
            report_of(Verdict.OK, Verdict.WRONG).replace("| WRONG |", "| ok |"),
            "its last line is not the count",
        ),
        ("a1", report_of(Verdict.OK).replace("**All", "All"), "its last line is not the count"),
    ],
)
def test_incomplete_or_altered_report_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(ReportError, match=words):
        read_report(name, text)
