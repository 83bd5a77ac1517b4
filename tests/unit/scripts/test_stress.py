"""Results of `make test-stress`."""

from pathlib import Path

import msgspec
import pytest

from scripts.stress import LOG, Plan, Row, Stress, is_clean, summarize


def row(passed: list[str], failed: dict[str, str] | None = None, reason: str = "") -> Row:
    return Row("2026-11-27T12:00:00+00:00", "", ["tests"], 2.0, "load 5", passed, failed or {}, reason)


def test_passes_and_failures_are_counted_by_test() -> None:
    rows = [row(["a", "b"]), row(["a"], {"b": "assert 1 == 2"})]

    assert summarize(rows) == [
        "   2 passed    0 failed  a",
        "   1 passed    1 failed  b: assert 1 == 2",
        "2 runs, 1 failures, 0 runs not completed",
    ]


def test_of_many_tests_only_failed_ones_are_listed() -> None:
    rows = [row([f"test_{n}" for n in range(41)], {"bad": "no"})]

    assert summarize(rows)[:2] == ["   0 passed    1 failed  bad: no", "41 other tests never failed"]


def test_only_complete_runs_without_failures_are_clean() -> None:
    assert is_clean([row(["a"]), row(["a"])])
    assert not is_clean([row(["a"]), row(["a"], {"b": "no"})])
    assert not is_clean([row(["a"], reason="timed out")])
    assert not is_clean([row([])])


@pytest.mark.process
def test_resumed_runs_count_those_of_the_same_tests(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.parent.mkdir()
    others = msgspec.structs.replace(row(["x"]), tests=["other"])
    log.write_bytes(b"\n".join(msgspec.json.encode(one) for one in (row(["a"]), others)))

    assert Stress(tmp_path, Plan(["tests"], resume=True)).rows() == [row(["a"])]
    assert Stress(tmp_path, Plan(["tests"])).rows() == []
