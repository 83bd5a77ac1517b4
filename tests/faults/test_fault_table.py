"""Test that every fault has existing tests and that the page shows their last outcomes."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from fault_cases import CASES, Case
from fault_table import MACHINES, NOT_RUN, PAGE, Outcome, name_of, outcomes_in, row_of, rows_in, shown_by

from support.paths import ROOT

NUMBERS = [*range(1, 10), *range(11, 26), *range(27, 31), *range(32, 40), *range(41, 46)]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_b[1]" time="1.5"/>
<testcase classname="tests.test_a" name="test_b[2]" time="1.0"><failure/></testcase>
<testcase classname="tests.test_a" name="test_c" time="0.1"/>
<testcase classname="tests.test_a" name="test_d" time="0.1"><skipped/></testcase>
</testsuite></testsuites>"""


@cache
def functions_in(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_listed_case_is_present() -> None:
    """Each number once, in order, with at least one test."""
    assert [case.number for case in CASES] == NUMBERS
    assert all(case.tests for case in CASES)


def test_tests_named_by_a_case_exist() -> None:
    """The named tests exist in the named files. Output of the virtual machine is checked there."""
    assert [f"{case.number}: {test}" for case in CASES for test in case.tests if not exists(test)] == []


def test_missing_test_is_found() -> None:
    assert exists("tests/faults/test_fault_table.py::test_missing_test_is_found")
    assert not exists("tests/faults/test_fault_table.py::test_nothing")
    assert not exists("tests/system/vm.py::test_nothing")


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    if Path(file).stem in MACHINES:
        return f'"{name.removeprefix("test_")}"' in (ROOT / file).read_text()
    return name in functions_in(ROOT / file)


def test_page_shows_the_outcomes_and_nothing_failed() -> None:
    """Regenerate it with `make faults`: a case that was added or reworded, or a failed row, fails here."""
    rows = rows_in(PAGE.read_text())

    assert list(rows) == NUMBERS
    for case in CASES:
        _, injected, expected, tests, outcome, _, system = rows[case.number]
        assert (injected, expected, tests) == (case.injected, case.expected, shown_by(case))
        assert outcome == ("✓" if case.of_suite else "–")
        assert system.startswith("✓ ") if case.of_system else system == "–"


def test_failed_or_skipped_outcome_is_marked_failed(tmp_path: Path) -> None:
    """A failed parameter, a skipped test and one that did not run are each named."""
    (tmp_path / "report").write_text(REPORT)
    outcomes = outcomes_in(tmp_path / "report")
    tests = tuple(f"tests/test_a.py::test_{name}" for name in "bcde")

    row = row_of(Case(1, "a", "b", tests), outcomes, {}, {})

    assert outcomes[tests[0]] == Outcome(False, 2.5)
    assert "✗ a: b, a: d, a: e" in row
    assert name_of(tests[1]) == "a: c"


def test_outcome_of_a_virtual_machine_is_that_of_its_last_run() -> None:
    """The outcome of this run, else of the existing table, else “not run”."""
    case = Case(1, "a", "b", ("tests/system/vm.py::test_x",))

    def last(system: dict[str, tuple[bool, str]], before: dict[int, str]) -> str:
        return rows_in(row_of(case, {}, system, before))[1][-1]

    assert last({case.tests[0]: (True, "2026-11-21")}, {}) == "✓ 2026-11-21"
    assert last({case.tests[0]: (False, "2026-11-21")}, {1: "✓ 2026-01-01"}) == "✗ 2026-11-21"
    assert last({}, {1: "✓ 2026-01-01"}) == "✓ 2026-01-01"
    assert last({}, {}) == NOT_RUN
