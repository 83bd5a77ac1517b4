"""Log lines about failures that repeat, in bounds."""

from __future__ import annotations

import logging

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.linux.files import ParseError
from memwatch.core.reading.collector_runner import CollectorRunner
from support.fakes import FakeClock, FakeCollector


def fail_for_a_minute(errors: list[str | None]) -> None:
    """Run a collector once a second with these errors in turn; None is a success."""
    collector, clock = FakeCollector(), FakeClock()
    runner = CollectorRunner(CollectorEntry("fake", lambda: collector, may_block=False), clock)
    for second in range(60):
        error = errors[second % len(errors)]
        collector.error = None if error is None else ParseError(error.format(second))
        runner.run()
        clock.now += 1.0


@pytest.mark.parametrize(
    ("errors", "most"),
    [
        (["broken"], 1),
        (["broken", None], 2),
        (["line {} is unreadable"], 5),
        (["line {} is unreadable", None], 10),
    ],
    ids=["the same each second", "every other second", "another text each second", "another text and success"],
)
def test_failing_collector_is_logged_in_bounds(
    caplog: pytest.LogCaptureFixture, errors: list[str | None], most: int
) -> None:
    with caplog.at_level(logging.INFO):
        fail_for_a_minute(errors)

    assert 1 <= len(caplog.messages) <= most
