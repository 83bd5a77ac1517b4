"""Threads for which there is no room at first."""

from __future__ import annotations

import logging
import threading

import pytest

from memwatch.threads import started
from no_threads import no_threads


def test_a_thread_that_cannot_be_had_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so once, and once that it runs; who has begun, and who has ended, is not started again."""
    ran: list[int] = []
    thread = threading.Thread(target=lambda: ran.append(1), name="outbox", daemon=True)

    with no_threads(), caplog.at_level(logging.INFO):
        assert [started(thread) for _ in range(3)] == [False] * 3
    assert started(thread)
    thread.join(60)

    assert started(thread)
    assert ran == [1]
    waits, runs = caplog.messages
    assert waits.startswith("outbox waits for a thread to run in: can't start new thread")
    assert runs == "outbox has a thread and runs"
