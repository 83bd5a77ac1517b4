"""Single-flight execution: shared results, deadline, errors and shutdown."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from memwatch_web.asgi.single_flight import NotCompletedError, SingleFlight
from support.thread_limit import no_threads


def test_concurrent_callers_share_the_result() -> None:
    """Three concurrent callers cause one run. A later caller causes another."""
    asked: list[str] = []

    def work(about: str) -> str:
        asked.append(about)
        time.sleep(0.1)
        return about.upper()

    async def three_and_one() -> list[str]:
        shared = SingleFlight(work, "letters", 5.0)
        return [*await asyncio.gather(*(shared.ask(about) for about in "abc")), await shared.ask("d")]

    assert asyncio.run(three_and_one()) == ["A", "A", "A", "D"]
    assert asked == ["a", "d"]


def test_hanging_work_times_out_and_is_not_restarted() -> None:
    """Callers get NotCompletedError after the deadline. The next caller starts no second thread, and exit waits for
    none."""
    held = threading.Event()
    begun: list[int] = []

    def work(about: int) -> None:
        begun.append(about)
        held.wait(30)

    async def twice() -> list[str]:
        shared = SingleFlight(work, "a disk", 0.1)
        found = [
            *await asyncio.gather(shared.ask(1), shared.ask(2), return_exceptions=True),
            *await asyncio.gather(shared.ask(3), return_exceptions=True),
        ]
        return [f"{type(one).__name__}: {one}" for one in found]

    started = time.monotonic()
    answers = asyncio.run(twice())
    took = time.monotonic() - started
    held.set()

    assert answers == ["NotCompletedError: timed out after 0.1 s: a disk"] * 3
    assert begun == [1]
    assert took < 5


def test_exception_is_raised_in_the_caller() -> None:
    """The next call tries again."""

    def work(about: int) -> int:
        return 1 // about

    async def twice() -> int:
        shared = SingleFlight(work, "numbers", 5.0)
        with pytest.raises(ZeroDivisionError):
            await shared.ask(0)
        return await shared.ask(1)

    assert asyncio.run(twice()) == 1


def test_close_ends_waiting_callers() -> None:
    """Closing does not wait for hanging work."""
    held = threading.Event()

    def work(_about: None) -> bool:
        return held.wait(30)

    async def closed_while_asked() -> None:
        shared = SingleFlight(work, "a disk", 20.0)
        waiting = asyncio.ensure_future(shared.ask(None))
        await asyncio.sleep(0.05)
        shared.close()
        await waiting

    with pytest.raises(NotCompletedError, match="memwatchd is stopping"):
        asyncio.run(closed_while_asked())
    held.set()


def test_cancelled_caller_does_not_affect_others() -> None:

    def work(about: str) -> str:
        time.sleep(0.2)
        return about

    async def one_leaves() -> str:
        shared = SingleFlight(work, "letters", 5.0)
        leaving, staying = (asyncio.ensure_future(shared.ask(about)) for about in "ab")
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    assert asyncio.run(one_leaves()) == "a"


def test_missing_thread_raises_not_done() -> None:
    """The next call works."""

    async def twice() -> list[str]:
        shared = SingleFlight(str.upper, "letters", 5.0)
        with no_threads(), pytest.raises(NotCompletedError) as caught:
            await shared.ask("a")
        return [str(caught.value), await shared.ask("b")]

    assert asyncio.run(twice()) == ["no thread for letters: can't start new thread", "B"]
