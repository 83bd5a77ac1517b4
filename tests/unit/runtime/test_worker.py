"""Test workers whose thread cannot be started at first."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from memwatch.core.runtime.worker import Worker
from support.thread_limit import no_threads
from support.waiting import MAX_WAIT_SECONDS


def test_failed_thread_start_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    """Failure and recovery are logged once each; a worker that runs or has ended is not started again."""
    ran: list[int] = []
    worker = Worker(lambda: ran.append(1), "outbox")

    with no_threads(), caplog.at_level(logging.INFO):
        assert [worker.begin() for _ in range(3)] == [False] * 3
    assert not worker.is_alive()
    assert worker.begin()
    worker.join(MAX_WAIT_SECONDS)

    assert worker.begin()
    assert ran == [1]
    waits, runs = caplog.messages
    assert waits.startswith("outbox cannot start a thread, retrying: can't start new thread")
    assert runs == "outbox has started its thread"


def test_two_threads_start_a_worker_once() -> None:
    """A reload adds the first neighbour while a tick asks for the state of its thread."""
    ran: list[int] = []
    begun: list[bool] = []
    workers = [Worker(lambda: ran.append(1), "neighbours") for _ in range(50)]
    gate = threading.Barrier(2)

    def begin_all() -> None:
        for worker in workers:
            gate.wait(MAX_WAIT_SECONDS)
            begun.append(worker.begin())

    other = threading.Thread(target=begin_all)
    other.start()
    begin_all()
    other.join()
    for worker in workers:
        worker.join(MAX_WAIT_SECONDS)

    assert begun == [True] * 100
    assert ran == [1] * 50


def test_finished_worker_is_freed_at_once() -> None:
    """A receiver that owns its thread, and with it a TLS context, does not wait for the garbage collector."""

    class Owner:
        def __init__(self) -> None:
            self.worker = Worker(self.work, "owner")

        def work(self) -> None:
            """Return at once."""

    owner = Owner()
    gone = weakref.ref(owner)
    gc.disable()
    try:
        assert owner.worker.begin()
        owner.worker.join(MAX_WAIT_SECONDS)
        del owner

        assert gone() is None
    finally:
        gc.enable()
