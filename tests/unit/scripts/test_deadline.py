"""When a test counts as one that hangs."""

from __future__ import annotations

import pytest

from support.deadline import seconds_more


@pytest.mark.parametrize(
    ("seconds", "cpu", "more"),
    [
        (240.0, 0.0, 0.0),  # it waits
        (240.0, 0.09, 0.0),
        (240.0, 0.1, 180.0),  # it computes beside nine others
        (240.0, 1.0, 180.0),
        (419.0, 1.0, 1.0),
        (420.0, 1.0, 0.0),  # an endless loop: before the timeout of the worker at 600 s, and half a deadline
        (500.0, 1.0, 0.0),
    ],
)
def test_only_a_test_that_computes_has_longer(seconds: float, cpu: float, more: float) -> None:
    assert seconds_more(seconds, cpu, 600.0) == pytest.approx(more)
