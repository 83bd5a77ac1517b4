"""Rules of the second look."""

import pytest

from support.function_changes import Versions
from support.run_records import End, Failure, Outcome, Record, Run, run_of
from support.second_look import (
    FAILED,
    PASSED_ALONE,
    Attempt,
    is_passed_alone,
    look_of,
    refusal,
    render,
    suspects_of,
    verdict_of,
    whole_run_reason,
)


def failure(test: str, phase: str = "call") -> Failure:
    return Failure(test, phase, "AssertionError: no", ["E  no"], "load 9.0", 1.5, [], [["memwatchd stopped"]])


def run(*tests: str) -> Run:
    return Run(int(bool(tests)), [failure(test) for test in tests], is_complete=True)


def attempts(outcomes: str) -> list[Attempt]:
    return [Attempt(outcome == "p", 1.0, "load 0.5") for outcome in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ("", ""),
        ("p", ""),
        ("f", ""),
        ("pf", ""),
        ("pp", PASSED_ALONE),
        ("ff", FAILED),
        ("pfp", PASSED_ALONE),
        ("fpf", FAILED),
    ],
)
def test_two_passes_or_two_failures_decide(outcomes: str, verdict: str) -> None:
    assert verdict_of(attempts(outcomes)) == verdict


def reason_for(*tests: str) -> str:
    return whole_run_reason(run(*tests), suspects_of(run(*tests)))


@pytest.mark.parametrize(
    ("files", "functions", "reason"),
    [(1, 0, ""), (3, 6, ""), (1, 7, "too many for load"), (4, 4, "too many for load")],
)
def test_six_functions_of_three_files_are_within_the_budget(files: int, functions: int, reason: str) -> None:
    assert reason_for(*(f"tests/{n % files}.py::test_{n}" for n in range(functions))) == reason


def test_parameters_of_a_function_count_as_one() -> None:
    tests = [f"tests/0.py::test_x[{n}]" for n in range(20)]

    (suspect,) = suspects_of(run(*tests))
    assert suspect.tests == tests
    assert suspect.name == "tests/0.py::test_x"
    assert reason_for(*tests) == ""


@pytest.mark.parametrize("code", [2, 3, 4, 124, -9])
def test_run_that_pytest_did_not_end_fails_as_a_whole(code: int) -> None:
    stopped = Run(code, [failure("tests/0.py::test_x")], is_complete=True)

    assert f"exit code {code}" in whole_run_reason(stopped, suspects_of(stopped))


def test_run_without_an_end_fails_as_a_whole() -> None:
    assert whole_run_reason(Run(0), []) == "pytest was stopped before all tests were run"
    stopped = run_of(1, [failure("tests/0.py::test_x"), End(1, stopped=True)])
    assert whole_run_reason(stopped, suspects_of(stopped)) == "pytest was stopped before all tests were run"


def test_failed_run_without_failed_tests_fails_as_a_whole() -> None:
    assert whole_run_reason(Run(1, is_complete=True), []) == "pytest failed without a failed test"


@pytest.mark.parametrize("phase", ["crash", "collection"])
def test_crash_and_collection_error_get_no_second_look(phase: str) -> None:
    (suspect,) = suspects_of(Run(1, [failure("tests/0.py::test_x", phase)]))

    assert refusal(suspect) != ""


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_failed_phase_of_an_old_test_gets_a_second_look(phase: str) -> None:
    changed = {"tests/1.py": Versions("", "def test_x(): pass")}
    (suspect,) = suspects_of(Run(1, [failure("tests/0.py::test_x", phase)]), changed)

    assert refusal(suspect) == ""
    assert suspect.change == ""


def test_new_test_has_to_pass_ten_times() -> None:
    """Two passes would say little of a test that has never been seen."""
    changed = {"tests/0.py": Versions("", "def test_x(n): pass")}
    (suspect,) = suspects_of(run("tests/0.py::test_x[1]"), changed)

    assert suspect.change == "its body changed"
    assert verdict_of(attempts(9 * "p"), suspect.change) == ""
    assert look_of(suspect, attempts(10 * "p")).verdict == PASSED_ALONE
    assert look_of(suspect, attempts("ppf")).verdict == FAILED
    assert look_of(suspect, attempts("ppf")).reason == "alone, 2 of 3 runs passed (its body changed)"


def test_new_test_of_minutes_passes_by_those_of_five() -> None:
    long = [Attempt(passed=True, seconds=160.0, load="load 1.2") for _ in range(2)]

    assert verdict_of(long[:1], "its body changed") == ""
    assert verdict_of(long, "its body changed") == PASSED_ALONE
    assert verdict_of([Attempt(passed=True, seconds=400.0, load="load 1.2")], "its body changed") == ""
    assert verdict_of([*long[:1], Attempt(passed=False, seconds=160.0, load="")], "its body changed") == FAILED


def test_run_alone_passes_only_if_each_parameter_passed() -> None:
    (suspect,) = suspects_of(run("tests/0.py::test_x[1]", "tests/0.py::test_x[2]"))
    one, both = suspect.tests[:1], suspect.tests

    assert is_passed_alone(suspect, Run(0, passed=both, is_complete=True))
    assert not is_passed_alone(suspect, Run(0, passed=one, skipped=both[1:], is_complete=True))
    assert not is_passed_alone(suspect, Run(1, passed=both, is_complete=True))
    assert not is_passed_alone(suspect, Run(0, passed=both))


def test_record_of_a_test_keeps_its_first_failure() -> None:
    test = "tests/0.py::test_x"
    records: list[Record] = [
        failure(test),
        Outcome(test, "passed", 0.1),
        failure(test, "teardown"),
        End(1, stopped=False),
    ]

    ended = run_of(1, records)
    assert [one.phase for one in ended.failures] == ["call"]
    assert ended.passed == []


def test_second_look_is_printed_with_both_loads_and_the_daemon() -> None:
    (suspect,) = suspects_of(run("tests/0.py::test_x[1]"))

    assert render([look_of(suspect, attempts("pfp"))]) == [
        "",
        "PASSED ALONE tests/0.py::test_x: alone, 2 of 3 runs passed",
        "  tests/0.py::test_x[1] failed in call, 1.5 s; load 9.0",
        "    | E  no",
        "  daemon:",
        "    | memwatchd stopped",
        "  alone: passed, 1.0 s; load 0.5",
        "  alone: failed, 1.0 s; load 0.5",
        "  alone: passed, 1.0 s; load 0.5",
    ]
