"""Pytest plugin: a test that hangs fails with the stacks of its process, and the run goes on.

The deadline is a part of `faulthandler_timeout`. That ends the whole worker, and the report lacks what the daemons
of the test said. This one interrupts whatever Python waits for; what never returns to Python is left to that
timeout. Waiting for a turn does not count. A test that computes, or whose programs do, has longer: on a busy host,
one of 46 s of CPU time took four minutes, and so did the build of a package.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from _pytest.outcomes import Failed

from support.cpu_use import tree_seconds
from support.host_load import describe_load
from support.lanes import Lane, lane_of
from support.run_records import STACKS
from support.started_daemons import STARTED

# Of `faulthandler_timeout`. The teardown has half of it again, so that it ends before that timeout, too.
SHARE = 0.4
# The same for a test that computes: with its programs, it has used this part of a CPU since it began.
BUSY_SHARE, BUSY_CPU = 0.7, 0.1
MAX_FRAMES = 8
SPENT = pytest.StashKey[float]()
STDERR = pytest.StashKey[int]()


class HungError(Failed):
    """Test without an end. Not an Exception, after which the code under test might go on."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the true stderr: while a test runs, its descriptor is a file that a killed run never shows."""
    config.stash[STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    with suppress(OSError):
        os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[SPENT] = 0.0
    with _bounded(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _bounded(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _bounded(item, "teardown"):
        return (yield)


@contextmanager
def _bounded(item: pytest.Item, when: str) -> Iterator[None]:
    """Let the signal of a clock end this phase, and again what then goes on for half of the deadline."""
    timeout = float(item.config.getini("faulthandler_timeout") or 0)
    deadline = SHARE * timeout
    if not deadline or threading.current_thread() is not threading.main_thread():
        yield
        return
    cpu_seconds = time.process_time if lane_of(item) is Lane.PURE else tree_seconds
    began, spent, used = time.monotonic(), item.stash.get(SPENT, 0.0), cpu_seconds()

    def end(_: int, frame: FrameType | None) -> None:
        seconds = time.monotonic() - began
        more = seconds_more(spent + seconds, (cpu_seconds() - used) / seconds, timeout)
        if more:
            signal.setitimer(signal.ITIMER_REAL, more, deadline / 2)
        else:
            _end(item, when, spent + seconds, frame)

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(deadline - spent, deadline / 2), deadline / 2)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        item.stash[SPENT] = item.stash.get(SPENT, 0.0) + time.monotonic() - began


def seconds_more(seconds: float, cpu: float, timeout: float) -> float:
    """Return how long a test may go on that has taken `seconds` so far, with this part of a CPU."""
    return max(0.0, BUSY_SHARE * timeout - seconds) if cpu >= BUSY_CPU else 0.0


def _end(item: pytest.Item, when: str, seconds: float, frame: FrameType | None) -> NoReturn:
    __tracebackhide__ = True
    stacks = "\n".join(describe_threads(frame))
    item.add_report_section(when, STACKS, stacks)
    daemons = "".join(f"\n{title}: {text}" for title, text in (daemon.section for daemon in STARTED))
    said = f"\nHUNG {item.nodeid} in {when}: no end after {seconds:.0f} s; {describe_load()}\n{stacks}{daemons}\n"
    with suppress(OSError):
        os.write(item.config.stash[STDERR], said.encode())
    place = _place(frame, item.config.rootpath)
    raise HungError(f"hung: the {when} had no end after {seconds:.0f} s{place}")


def describe_threads(main: FrameType | None) -> list[str]:
    """Return the innermost calls of each thread, the main one first. `main`: what the signal has interrupted."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames: dict[int, FrameType | None] = {**sys._current_frames(), threading.get_ident(): main}
    order = sorted(frames, key=lambda ident: ident != threading.get_ident())
    lines: list[str] = []
    for ident in order:
        calls = traceback.extract_stack(frames[ident])[-MAX_FRAMES:]
        lines.append(f"thread {names.get(ident, ident)}, innermost call last:")
        lines += [f"  {call.filename}:{call.lineno} in {call.name}: {call.line}" for call in calls]
    return lines


def _place(frame: FrameType | None, root: Path) -> str:
    """Name the innermost line of this repository."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(root) and ".venv" not in path.parts:
            return f", at {path.relative_to(root)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
