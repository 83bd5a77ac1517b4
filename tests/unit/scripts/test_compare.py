"""Comparison of two commits: a change is named only if the rounds agree on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from support.paths import ROOT, TESTS

sys.path.append(str(TESTS / "bench"))

from compare import rows, verdict


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


@pytest.mark.process
def test_unknown_commit_is_refused() -> None:
    command = [sys.executable, "tests/bench/compare.py", "no-such-commit"]
    environ = {"PYTHONPATH": f"{TESTS}:{ROOT / 'daemon'}:{ROOT / 'web'}", "PATH": "/usr/bin:/bin"}

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("bench-compare: ")
    assert done.stderr.endswith("; name a commit of this repository\n")
