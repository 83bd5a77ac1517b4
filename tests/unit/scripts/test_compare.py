"""Comparison of two commits: a change is named only if the rounds agree on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from support.paths import ROOT, TESTS

sys.path.append(str(TESTS / "bench"))

from compare import far_above, judge, reasons_of, rows, verdict


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.2, 1.1, 1.3), "more"),
        ((0.8, 0.9, 0.7), "less"),
        ((1.2, 0.99, 1.3), "no change shown"),
        ((1.01, 1.02, 1.03), "no change shown"),
        ((1.2, 1.3), "too few rounds"),
    ],
)
def test_change_is_named_only_if_all_rounds_agree(ratios: Sequence[float], expected: str) -> None:
    assert verdict(ratios) == expected


def test_row_has_medians_and_the_ratio_of_each_round() -> None:
    """The ratio is that of a round, not of the medians: what the host does affects both of a round."""
    rounds = [({"RSS": 10.0}, {"RSS": 11.0}), ({"RSS": 20.0}, {"RSS": 22.0}), ({"RSS": 40.0}, {"RSS": 48.0})]

    assert rows(rounds) == ["| RSS | 20 | 22 | 1.10 | 1.10 to 1.20 | more |"]


def looks(*ratios: float) -> list[tuple[dict[str, float], dict[str, float]]]:
    return [({"CPU": 2.0, "RSS": 40.0}, {"CPU": 2.0 * ratio, "RSS": 41.0}) for ratio in ratios]


@pytest.mark.parametrize(
    ("first", "second", "failed"),
    [
        ((1.3, 1.4, 1.26), (1.3, 1.3, 1.3), ["CPU"]),
        ((1.3, 1.24, 1.4), (1.3, 1.3, 1.3), []),
        ((1.3, 1.4, 1.3), (1.3, 1.3, 1.2), []),
        ((1.3, 1.4), (1.3, 1.4), []),
    ],
)
def test_figure_fails_only_above_the_limit_in_all_rounds_of_two_looks(
    first: Sequence[float], second: Sequence[float], failed: Sequence[str]
) -> None:
    assert judge(looks(*first), looks(*second), {}) == failed


def test_first_look_alone_fails_nothing() -> None:
    assert far_above(looks(1.5, 1.5, 1.5)) == ["CPU"]
    assert judge(looks(1.5, 1.5, 1.5), None, {}) == []


def test_reason_in_a_commit_allows_its_figure_only() -> None:
    """Names of figures have colons, and a line without a reason allows nothing."""
    names = ["Spark: CPU, % of a core", "Spark: wake-ups", "RSS"]
    message = "pages: load them earlier\n\nCost: Spark: CPU, % of a core: a new collector\nCost: RSS: \n"

    assert reasons_of(message, names) == {names[0]: f"Cost: {names[0]}: a new collector"}
    assert judge(looks(2.0, 2.0, 2.0), looks(2.0, 2.0, 2.0), {"CPU": "Cost: CPU: a new collector"}) == []


def test_figure_that_was_zero_has_no_ratio() -> None:
    assert rows([({"wake-ups": 0.0}, {"wake-ups": 1.0})] * 3) == []


@pytest.mark.process
def test_unknown_commit_is_refused() -> None:
    command = [sys.executable, "tests/bench/compare.py", "--old", "no-such-commit"]
    environ = {"PYTHONPATH": f"{TESTS}:{ROOT / 'daemon'}:{ROOT / 'web'}", "PATH": "/usr/bin:/bin"}

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("bench-compare: ")
    assert done.stderr.endswith("; name a commit of this repository\n")
