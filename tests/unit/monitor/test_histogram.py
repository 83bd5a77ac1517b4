"""Histogram of durations."""

from __future__ import annotations

from memwatch_monitor.feature import Histogram


def test_value_on_a_limit_belongs_to_its_bucket() -> None:
    """`le` in Prometheus: less than or equal."""
    found = Histogram((0.1, 1.0))

    for value in (0.05, 0.1, 0.2, 5.0):
        found.observe(value)

    assert found.cumulative() == [2, 3, 4]
    assert found.total == 5.35
