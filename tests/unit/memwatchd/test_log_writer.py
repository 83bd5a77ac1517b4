"""The queue between the log and a pipe."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from memwatchd.logging_setup import MAX_BYTES, MAX_LINES, LogWriter
from support.thread_limit import no_threads
from support.unread_log import fill, pipe
from support.waiting import MAX_WAIT_SECONDS, wait_readable, wait_until

PUT = 1500
REPORT = re.compile(rb"memwatchd: log lines dropped: (\d+)\n")


@contextmanager
def writing_to_pipe() -> Iterator[tuple[int, int, LogWriter]]:
    """Yield both ends of a pipe and a writer.

    The thread outlives the test, so it has its own descriptor: the number of a closed one would be given to
    the pipe of the next test, which would get the lines that are left.
    """
    with pipe() as (reader, stderr):
        own = os.dup(stderr)
        writer = LogWriter(own)
        yield reader, stderr, writer
    assert writer.drain(MAX_WAIT_SECONDS)
    os.close(own)


def read_lines(reader: int, skip: int, last: bytes) -> list[bytes]:
    """Read until a line that is `last`, without the first `skip` bytes."""
    return read_until(reader, lambda data: data.endswith(last + b"\n"))[skip:].splitlines()


def read_until(reader: int, is_complete: Callable[[bytes], object]) -> bytes:
    data, until = b"", time.monotonic() + MAX_WAIT_SECONDS
    while not is_complete(data) and (seconds := until - time.monotonic()) > 0:
        if wait_readable(reader, seconds):
            data += os.read(reader, 1 << 16)
    return data


def dropped_in(data: bytes) -> int:
    return sum(map(int, REPORT.findall(data)))


def fill_gaps(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, and in place of each report the numbers that it says are missing there."""
    number = 0
    for line in lines:
        report = REPORT.fullmatch(line)
        count = int(report[1]) if report else 1
        yield from (b"%d\n" % (number + at) for at in range(count)) if report else [line]
        number += count


@pytest.mark.process
def test_full_queue_drops_the_newest_lines_and_reports_their_number() -> None:
    """`put` does not wait for a reader. When the pipe is read, each report stands where lines are missing.

    Two of them if the thread takes its first line late, after some were dropped.
    """
    with writing_to_pipe() as (reader, stderr, writer):
        filled = fill(stderr)
        for number in range(PUT):
            writer.put(b"%d\n" % number)
        drained = writer.drain(0.1)
        data = read_until(reader, lambda data: dropped_in(data) >= writer.dropped)[filled:]
        writer.put(b"later\n")
        later = read_lines(reader, 0, last=b"later")

    lines = data.splitlines(keepends=True)
    kept = PUT - dropped_in(data)
    assert not drained
    assert MAX_LINES <= kept <= MAX_LINES + 1  # one is at the pipe
    assert list(fill_gaps(lines)) == [b"%d\n" % number for number in range(PUT)]
    assert writer.dropped == PUT - kept
    assert later == [b"later"]


def test_queue_is_limited_in_bytes() -> None:
    with writing_to_pipe() as (_, stderr, writer):
        fill(stderr)
        for _ in range(10):
            writer.put(b"x" * (MAX_BYTES // 4) + b"\n")
        dropped = writer.dropped

    assert 6 <= dropped <= 7


def test_lines_that_cannot_be_written_are_counted_and_reported_later() -> None:
    """The descriptor fails as stderr does when its reader is gone, and then works again."""
    with pipe() as (_, stderr), pipe() as (reader, works):
        own = os.dup(stderr)
        broken, unused = os.pipe()
        os.close(broken)
        os.dup2(unused, own)
        writer = LogWriter(own)
        writer.put(b"first\nsecond\n")
        wait_until(lambda: writer.dropped == 2)
        os.dup2(works, own)
        writer.put(b"third\n")
        lines = read_lines(reader, 0, last=b"third")
        os.close(own)
        os.close(unused)

    assert lines == [b"memwatchd: log lines dropped: 2", b"third"]


@pytest.mark.process
def test_non_blocking_pipe_gets_every_line() -> None:
    """Another program may have made it so."""
    with writing_to_pipe() as (reader, stderr, writer):
        os.set_blocking(stderr, False)
        filled = fill(stderr)
        writer.put(b"first\n")
        time.sleep(0.1)
        lines = read_lines(reader, filled, last=b"first")

    assert lines == [b"first"]
    assert writer.dropped == 0


def test_lines_wait_until_a_thread_can_be_started() -> None:
    with writing_to_pipe() as (reader, _, writer):
        with no_threads():
            writer.put(b"first\n")
        writer.put(b"second\n")
        lines = read_lines(reader, 0, last=b"second")

    assert lines == [b"first", b"second"]


@pytest.mark.process
def test_forked_child_writes_its_own_lines() -> None:
    """It has neither the thread nor the lines of its parent."""
    with writing_to_pipe() as (reader, stderr, writer):
        filled = fill(stderr)
        writer.put(b"parent\n")
        child = os.fork()
        if child == 0:
            writer.put(b"child\n")
            os._exit(0 if writer.drain(MAX_WAIT_SECONDS) else 1)
        both = re.compile(rb"parent\n(.*)child\n|child\n(.*)parent\n", re.DOTALL)
        data = read_until(reader, lambda data: both.search(data[filled:]))
        _, status = os.waitpid(child, 0)

    assert status == 0
    assert sorted(data[filled:].splitlines()) == [b"child", b"parent"]
