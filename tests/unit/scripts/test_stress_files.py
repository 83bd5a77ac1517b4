"""Runs of each file of the process lane under load."""

import math

from msgspec.structs import replace

from scripts.stress import NO_TESTS, Row
from scripts.stress_files import (
    FULL_SECONDS,
    MAX_FILES,
    FileRuns,
    Results,
    Runner,
    add,
    list_files,
    next_file,
    render,
)


def row(failed: dict[str, str] | None = None, reason: str = "") -> Row:
    return Row("2026-11-30T12:00:00+00:00", "0123456789", ["a"], 2.0, "load 5", ["a::x"], failed or {}, reason)


def test_passes_count_since_the_last_failure() -> None:
    results: Results = {}
    for one in (row(), row({"a::y": "AssertionError: assert 1 == 2"}), row(), row()):
        add(results, "a", one)

    runs = results["a"]
    assert (runs.runs, runs.passes, runs.seconds) == (4, 2, 8.0)
    assert [(one.test, one.commit) for one in runs.failures] == [("a::y", "0123456789")]


def test_run_that_does_not_end_is_a_failure_of_its_file() -> None:
    results: Results = {}
    add(results, "a", row(reason="timed out"))

    assert results["a"].passes == 0
    assert [(one.test, one.message) for one in results["a"].failures] == [("a", "timed out")]


def test_file_without_tests_of_the_lane_is_left_out() -> None:
    """It has the fewest passes, and would be the next one for ever."""
    results: Results = {"a": FileRuns()}
    runner = Runner(results, ["a"], 20, math.inf)
    assert runner.take() == ["a"]
    runner.finish(["a"], row(reason=NO_TESTS))
    assert results == {}
    assert runner.take() == []


def test_run_of_several_files_counts_for_each() -> None:
    results: Results = {}
    runner = Runner(results, ["a", "b", "c"], 20, math.inf)
    assert runner.take() == ["a", "b", "c"]
    run = row({"b::x": "no"})
    runner.finish(["a", "b", "c"], replace(run, passed=["a::x", "a::y", "b::y"], seconds=8.0))
    assert {file: (runs.runs, runs.passes, runs.seconds) for file, runs in results.items()} == {
        "a": (1, 1, 4.0),
        "b": (1, 0, 4.0),
    }
    assert runner.take() == ["b", "a"]


def test_files_of_a_run_that_did_not_end_run_alone() -> None:
    results: Results = {}
    runner = Runner(results, ["a", "b"], 20, math.inf)
    runner.finish(runner.take(), row(reason="timed out"))
    assert results == {}
    assert [runner.take(), runner.take(), runner.take()] == [["a"], ["b"], []]


def test_run_takes_files_until_it_is_full() -> None:
    names = [f"file{number:02}" for number in range(MAX_FILES + 1)]
    assert len(Runner({}, names, 20, math.inf).take()) == MAX_FILES
    known = {name: FileRuns(1, 1, FULL_SECONDS / 2) for name in names}
    assert len(Runner(known, names, 20, math.inf).take()) == 2


def test_files_with_the_fewest_passes_and_the_shorter_ones_come_first() -> None:
    results = {
        "a": FileRuns(2, 2, 2.0),
        "b": FileRuns(1, 1, 9.0),
        "c": FileRuns(1, 1, 3.0),
        "d": FileRuns(3, 3, 1.0),
    }

    assert next_file(results, ["a", "b", "c", "d"], 3) == "c"
    assert next_file(results, ["a", "d"], 3) == "a"
    assert next_file(results, ["d"], 3) is None
    assert next_file(results, ["d", "new"], 3) == "new"


def test_page_has_each_failure_with_its_cause() -> None:
    results: Results = {}
    add(results, "a", row({"a::y": "no | yes"}))
    add(results, "b", row())

    page = render(results, times=1)

    assert "| 2 | 1 | 0 | 2 | 0.0 | 2026-11-30 to 2026-11-30 | 1 |" in page
    assert "| `a::y` | 2026-11-30, 0123456789 | no \\| yes | not known yet |" in page


def test_files_of_all_folders_of_the_lane_are_listed() -> None:
    files = list_files()

    assert "tests/integration/test_stress_run.py" in files
    assert "tests/unit/scripts/test_stress.py" in files  # one of its tests writes a file
    assert "tests/unit/scripts/test_stress_files.py" not in files
