"""Slow work that faces share: once for all who ask, given up by them after a while, told when all ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from memwatch_web.asgi.single_flight import NotDone, Shared
from support.thread_limit import no_threads


def test_who_asks_meanwhile_gets_the_same() -> None:
    """Three ask while it works, and it works once; who asks later has it done anew."""
    asked: list[str] = []

    def work(about: str) -> str:
        asked.append(about)
        time.sleep(0.1)
        return about.upper()

    async def three_and_one() -> list[str]:
        shared = Shared(work, "letters", 5.0)
        return [*await asyncio.gather(*(shared.ask(about) for about in "abc")), await shared.ask("d")]

    assert asyncio.run(three_and_one()) == ["A", "A", "A", "D"]
    assert asked == ["a", "d"]


def test_work_that_hangs_is_given_up_and_not_begun_again() -> None:
    """Who waits is told after the deadline, and who asks next starts no second thread; the end waits for none."""
    held = threading.Event()
    begun: list[int] = []

    def work(about: int) -> None:
        begun.append(about)
        held.wait(30)

    async def twice() -> list[str]:
        shared = Shared(work, "a disk", 0.1)
        found = [
            *await asyncio.gather(shared.ask(1), shared.ask(2), return_exceptions=True),
            *await asyncio.gather(shared.ask(3), return_exceptions=True),
        ]
        return [f"{type(one).__name__}: {one}" for one in found]

    started = time.monotonic()
    answers = asyncio.run(twice())
    took = time.monotonic() - started
    held.set()

    assert answers == ["NotDone: looking for a disk took more than 0.1 s"] * 3
    assert begun == [1]
    assert took < 5


def test_what_goes_wrong_is_raised_where_it_was_asked() -> None:
    """And the next who asks has it tried again."""

    def work(about: int) -> int:
        return 1 // about

    async def twice() -> int:
        shared = Shared(work, "numbers", 5.0)
        with pytest.raises(ZeroDivisionError):
            await shared.ask(0)
        return await shared.ask(1)

    assert asyncio.run(twice()) == 1


def test_at_the_end_who_waits_is_told() -> None:
    """Closing does not wait for work that hangs."""
    held = threading.Event()

    def work(_about: None) -> bool:
        return held.wait(30)

    async def closed_while_asked() -> None:
        shared = Shared(work, "a disk", 20.0)
        waiting = asyncio.ensure_future(shared.ask(None))
        await asyncio.sleep(0.05)
        shared.close()
        await waiting

    with pytest.raises(NotDone, match="memwatchd is stopping"):
        asyncio.run(closed_while_asked())
    held.set()


def test_who_stops_waiting_spoils_nothing_for_others() -> None:
    """One of two is cancelled; the other gets what comes of it."""

    def work(about: str) -> str:
        time.sleep(0.2)
        return about

    async def one_leaves() -> str:
        shared = Shared(work, "letters", 5.0)
        leaving, staying = (asyncio.ensure_future(shared.ask(about)) for about in "ab")
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    assert asyncio.run(one_leaves()) == "a"


def test_without_a_thread_it_is_not_done() -> None:
    """Who asks is told why, and the next who asks is answered."""

    async def twice() -> list[str]:
        shared = Shared(str.upper, "letters", 5.0)
        with no_threads(), pytest.raises(NotDone) as told:
            await shared.ask("a")
        return [str(told.value), await shared.ask("b")]

    assert asyncio.run(twice()) == ["looking for letters needs a thread: can't start new thread", "B"]
