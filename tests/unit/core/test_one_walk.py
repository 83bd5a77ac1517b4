"""Threads that read all processes take turns."""

from __future__ import annotations

import threading

import pytest

from memwatch.core.linux import process_files
from memwatch.core.linux.process_files import one_walk


def walk_in_thread(began: threading.Event, may_end: threading.Event) -> threading.Thread:
    def walk() -> None:
        with one_walk():
            began.set()
            may_end.wait(60)

    thread = threading.Thread(target=walk)
    thread.start()
    return thread


def test_walk_waits_for_that_of_another_thread() -> None:
    first, second, may_end = threading.Event(), threading.Event(), threading.Event()
    threads = [walk_in_thread(first, may_end)]
    assert first.wait(60)
    threads.append(walk_in_thread(second, may_end))
    assert not second.is_set()
    may_end.set()
    assert second.wait(60)
    for thread in threads:
        thread.join()


def test_walk_that_hangs_delays_another_and_is_not_ended_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_files, "MAX_WALK_WAIT_SECONDS", 0.001)
    began, may_end = threading.Event(), threading.Event()
    hanging = walk_in_thread(began, may_end)
    assert began.wait(60)
    for _ in range(2):
        with one_walk():
            assert process_files._WALK.locked()
    assert process_files._WALK.locked()
    may_end.set()
    hanging.join()
    assert not process_files._WALK.locked()
