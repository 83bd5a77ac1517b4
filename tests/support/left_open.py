"""Pytest plugin: a test leaves no descriptor, thread or child process open in its worker.

A worker runs hundreds of tests and may have 1,024 descriptors. What one test leaves behind makes another one fail.
Fixtures of a wider scope, and what `kept_open` marks, may stay until the end of the file and of the run. Ports that
a test has bound are released at its end.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Generator

import pytest
from msgspec import Struct, field

from support import free_ports
from support.lanes import Lane, lane_of
from support.open_things import KEPT, TO_CLOSE, OpenThing, open_things

# What a server of a fixture has open for a moment is closed until then. Looks are counted, not seconds: it gets
# more time on a busy machine. They take 11 s on an idle one.
MAX_LOOKS = 30
MAX_LISTED = 10
# The product keeps some files of this machine open, each once in a process, such as its statm. Tests use others.
OF_THIS_MACHINE = ("/proc/", "/sys/")
# Threads of servers, which last as long as the server and its clients, those of the library, the log and the web
# application, which a daemon never ends. All other threads of the product have names.
OTHER_THREADS = (
    "Thread-",
    "AnyIO",
    "asyncio",
    "ThreadPoolExecutor",
    "memwatch-courier",
    "memwatch-track",
    "log",
    "peers_",
)
NOT_OF_TESTS = OF_THIS_MACHINE + OTHER_THREADS
FAILED = pytest.StashKey[bool]()


class _State(Struct):
    before: frozenset[OpenThing] = frozenset()  # when the test that runs began
    before_file: frozenset[OpenThing] = frozenset()
    of_fixtures: set[OpenThing] = field(default_factory=set)  # of this file
    file: str = ""


_state = _State()


class LeftOpenError(AssertionError):
    """Test that leaves something open."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Take what a fixture of a wider scope opens as a part of its file, or of the run."""
    if fixturedef.scope == "function":
        return (yield)
    before = open_things()
    try:
        return (yield)
    finally:
        added = open_things() - before
        (KEPT if fixturedef.scope == "session" else _state.of_fixtures).update(added)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    file = item.nodeid.partition("::")[0]
    _state.before = open_things()
    if file != _state.file:
        _state.file, _state.before_file, _state.of_fixtures = file, _state.before, set()
    item.stash[FAILED] = False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Compare what is open after the last fixture has ended with what was before the first one began."""
    result = yield
    while TO_CLOSE:
        TO_CLOSE.pop().close()
    free_ports.release()  # servers of fixtures listen by now
    _end_reading()
    if lane_of(item) is Lane.PURE:
        return result
    if item.stash[FAILED]:  # a traceback keeps what its frames have opened
        return result
    is_last = nextitem is None or nextitem.nodeid.partition("::")[0] != _state.file
    left = _left_open(_state.before, _state.of_fixtures)
    if is_last and not left:
        left = _left_open(_state.before_file, set())
    if left:
        _state.before_file |= left  # reported once
        listed = "".join(f"\n  {one}" for one in sorted(map(str, left))[:MAX_LISTED])
        raise LeftOpenError(f"the test leaves {len(left)} things open:{listed}")
    return result


def _end_reading() -> None:
    """End the thread that reads the machine for the library, with its files: it goes on for a minute otherwise."""
    cache = getattr(sys.modules.get("memwatch.library.machine"), "machine_cache", None)
    if cache is not None:  # a thread may import the module at this moment
        cache._asked_at = -math.inf


def _left_open(before: frozenset[OpenThing], allowed: set[OpenThing]) -> frozenset[OpenThing]:
    """Return what is still open after a while, without what may stay."""
    may_stay = before | allowed | KEPT
    left, pause = _open_now() - may_stay, 0.001
    for _ in range(MAX_LOOKS):
        if not left:
            break
        gc.collect()
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
        left = _open_now() - may_stay
    return left


def _open_now() -> frozenset[OpenThing]:
    """Return what belongs to a test: a connection may be that of a browser to the server of a fixture."""
    return frozenset(
        one for one in open_things() if not one.text.startswith(NOT_OF_TESTS) and not one.is_connection
    )
