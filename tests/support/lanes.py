"""Lanes of the tests: the folder decides, and a mark where a test is about the machine that runs it.

Tests that measure wait until they run alone, and others wait until these are done.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from support.paths import TESTS

if TYPE_CHECKING:  # `make test-hardware` starts daemons, too, and needs no pytest
    import pytest


class Lane(Enum):
    """Tests that run together, and by the same rules. The value is the name of the mark."""

    PURE = "pure"  # no process, no network, no real time, no file of this machine: see `purity`
    PROCESS = "process"  # real processes, sockets and browsers; the machine that they watch is a simulated one
    HOST = "host"  # about the machine that runs the tests: runs while no other test does
    MEASURE = "measure"  # a measurement with a budget: `make test-measure`
    LONG = "long"  # above 5 s of CPU time: `make test-long`


# In this order: a long test that measures is a measurement. One that is about this machine runs alone, too.
MARKED = (Lane.MEASURE, Lane.LONG, Lane.HOST, Lane.PROCESS)
PURE_FOLDERS = frozenset({"unit", "incidents"})
ALONE = frozenset({Lane.MEASURE, Lane.HOST})


class _Running:
    lane: Lane | None = None


def assign_lane(item: pytest.Item) -> None:
    """Mark a test with its lane, so that `-m pure` and `-m process` select it."""
    lane = lane_of(item)
    if lane.value not in _marks_of(item):
        item.add_marker(lane.value)


@cache
def lane_of(item: pytest.Item) -> Lane:
    """Return the lane of a test. Each step of a run asks for it."""
    marks = _marks_of(item)
    marked = (lane for lane in MARKED if lane.value in marks)
    return next(marked, Lane.PURE if is_pure(item.path) else Lane.PROCESS)


def _marks_of(item: pytest.Item) -> set[str]:
    """Return the names of its marks. Asking the item for each mark takes four times as long."""
    return {mark.name for mark in item.iter_markers()}


@cache
def runs_alone(item: pytest.Item) -> bool:
    """Check that no other test may run meanwhile: it measures, or is about the machine that runs it."""
    return not {lane.value for lane in ALONE}.isdisjoint(_marks_of(item))


@cache
def is_pure(path: Path) -> bool:
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in PURE_FOLDERS


@contextmanager
def running(lane: Lane) -> Iterator[None]:
    """Remember the lane of the test that runs, for `may_watch_this_machine`."""
    _Running.lane = lane
    try:
        yield
    finally:
        _Running.lane = None


def is_a_test_running() -> bool:
    return _Running.lane is not None


def may_watch_this_machine() -> bool:
    """Check that no test runs, as in a benchmark, or one that other load cannot disturb or that runs alone."""
    return _Running.lane in (None, Lane.LONG, *ALONE)


def may_pause_longer() -> bool:
    """Check that the running test neither is pure nor measures."""
    return _Running.lane in (Lane.PROCESS, Lane.HOST, Lane.LONG)


def count_workers(arguments: Iterable[str], most: int) -> int:
    """Return the number of workers for these paths: at most `most`, one for each file; 0 for a single file."""
    files = find_test_files(arguments)
    return 0 if len(files) < 2 else min(len(files), most)


def find_test_files(arguments: Iterable[str]) -> set[Path]:
    """Return the test files of these paths, which may be folders or names of tests."""
    files: set[Path] = set()
    for argument in arguments:
        path = Path(argument.partition("::")[0])
        files |= set(_test_files(path)) if path.is_dir() else {path}
    return files


def _test_files(folder: Path) -> Iterator[Path]:
    """Yield test files below a folder, without the simulated machines: links of a sysfs form cycles."""
    for parent, folders, names in os.walk(folder):
        if "machines" in folders:
            folders.remove("machines")
        yield from (Path(parent, name) for name in names if name.startswith("test_") and name.endswith(".py"))


@contextmanager
def taking_turns(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place among the workers that share `folder`; with `alone`, no other worker holds one meanwhile.

    All pass a gate that a worker waiting to be alone keeps locked. Without it, two busy workers would alternate and
    it would wait forever.
    """
    with (folder / "gate").open("w") as access, (folder / "place").open("w") as place:
        with stopped_clock():
            fcntl.flock(access, fcntl.LOCK_EX)
            fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(access, fcntl.LOCK_UN)
        yield


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop the clock of the test (`support.deadline`) meanwhile: other tests cause this wait."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)
