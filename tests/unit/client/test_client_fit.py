"""Test the sentences of `memwatch fit`."""

from __future__ import annotations

import pytest

from memwatch.cli.fit import describe_missing_gpus


@pytest.mark.parametrize(
    ("wanted", "gpus", "sentence"),
    [
        (0, 0, ""),
        (1, 0, ""),
        (2, 2, ""),
        (4, 1, "The plan is for 4 GPUs: this machine has 1."),
        (2, 0, "The plan is for 2 GPUs: this machine has none."),
    ],
)
def test_plan_for_more_gpus_than_there_are_has_a_reason(wanted: int, gpus: int, sentence: str) -> None:
    verdicts = [{"device": name} for name in (*(f"gpu{number}" for number in range(gpus)), "cpu")]

    assert describe_missing_gpus(wanted, verdicts) == sentence
