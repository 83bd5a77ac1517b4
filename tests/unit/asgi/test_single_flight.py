"""Single-flight execution: shared results, deadline, errors and shutdown."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable

import pytest

from memwatch_web.asgi.threads import NotCompletedError, SingleFlight
from support.thread_limit import no_threads
from support.virtual_loop import run_virtual
from support.waiting import MAX_WAIT_SECONDS


def taking(seconds: float) -> Callable[[Callable[[], None], str], None]:
    """Return a stand-in for the start of a thread: the work ends after `seconds` of the loop's virtual clock."""

    def start(run: Callable[[], None], _name: str) -> None:
        if seconds < math.inf:
            asyncio.get_running_loop().call_later(seconds, run)

    return start


def test_concurrent_callers_share_the_result() -> None:
    """Three concurrent callers cause one run. A later caller causes another."""
    asked: list[str] = []

    def work(about: str) -> str:
        asked.append(about)
        return about.upper()

    async def three_and_one() -> list[str]:
        shared = SingleFlight(work, "letters", 5.0, taking(4.9))
        return [*await asyncio.gather(*(shared.ask(about) for about in "abc")), await shared.ask("d")]

    assert run_virtual(three_and_one()) == ["A", "A", "A", "D"]
    assert asked == ["a", "d"]


def test_hanging_work_times_out_and_is_not_restarted() -> None:
    """Callers get NotCompletedError at the deadline. The next caller starts no second thread."""
    begun: list[str] = []

    async def twice() -> tuple[list[str], float]:
        shared = SingleFlight(str, "a disk", 0.1, lambda _run, name: begun.append(name))
        found = [
            *await asyncio.gather(shared.ask(1), shared.ask(2), return_exceptions=True),
            *await asyncio.gather(shared.ask(3), return_exceptions=True),
        ]
        return [f"{type(one).__name__}: {one}" for one in found], asyncio.get_running_loop().time()

    answers, seconds = run_virtual(twice())

    assert answers == ["NotCompletedError: timed out after 0.1 s: a disk"] * 3
    assert begun == ["a disk"]
    assert seconds == pytest.approx(0.2)


def test_thread_does_not_delay_the_exit() -> None:
    """Python joins all threads at exit except daemon threads."""

    def work(_about: None) -> bool:
        return threading.current_thread().daemon

    async def ask() -> bool:
        return await SingleFlight(work, "a disk", MAX_WAIT_SECONDS).ask(None)

    assert asyncio.run(ask())


def test_exception_is_raised_in_the_caller() -> None:
    """The next call tries again."""

    def work(about: int) -> int:
        return 1 // about

    async def twice() -> int:
        shared = SingleFlight(work, "numbers", 5.0, taking(0.1))
        with pytest.raises(ZeroDivisionError):
            await shared.ask(0)
        return await shared.ask(1)

    assert run_virtual(twice()) == 1


def test_close_ends_waiting_callers() -> None:
    """Closing does not wait for hanging work."""

    async def closed_while_asked() -> None:
        shared = SingleFlight(str, "a disk", 20.0, taking(math.inf))
        waiting = asyncio.ensure_future(shared.ask(None))
        await asyncio.sleep(19.9)
        shared.close()
        await waiting

    with pytest.raises(NotCompletedError, match="memwatchd is stopping"):
        run_virtual(closed_while_asked())


def test_cancelled_caller_does_not_affect_others() -> None:
    async def one_leaves() -> str:
        shared = SingleFlight(str, "letters", 5.0, taking(0.2))
        leaving, staying = (asyncio.ensure_future(shared.ask(about)) for about in "ab")
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    assert run_virtual(one_leaves()) == "a"


def test_missing_thread_raises_not_done() -> None:
    """The next call works."""

    async def twice() -> list[str]:
        shared = SingleFlight(str.upper, "letters", MAX_WAIT_SECONDS)
        with no_threads(), pytest.raises(NotCompletedError) as caught:
            await shared.ask("a")
        return [str(caught.value), await shared.ask("b")]

    assert asyncio.run(twice()) == ["no thread for letters: can't start new thread", "B"]
