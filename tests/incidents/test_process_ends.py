"""Ends of real processes: noticed at once, with the signal where the kernel reports it."""

from __future__ import annotations

import resource
import select
import subprocess
import time
from collections.abc import Iterator

import pytest

from memwatch.core.kernel_log import ProcessEnd
from memwatch.core.linux.process_ends import MAX_FOLLOWED, ProcessEnds
from memwatch.core.linux.wakeups import Wake
from support.sample_parts import process

pytestmark = pytest.mark.process


@pytest.fixture
def ends() -> Iterator[ProcessEnds]:
    following = ProcessEnds()
    yield following
    following.close()


def wait_for_end(ends: ProcessEnds) -> tuple[ProcessEnd, ...]:
    """Wait for the event, then for the end."""
    poll = select.poll()
    poll.register(ends.event_file, ends.event_mask)
    assert poll.poll(10_000)
    assert ends.read_event(select.POLLIN) is Wake.NEWS
    until = time.monotonic() + 10
    while not (found := ends.take()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(("command", "killed"), [("sleep 60", True), ("exit 3", False)])
def test_end_of_a_followed_process_is_reported_once(ends: ProcessEnds, command: str, killed: bool) -> None:
    """Kernels since 6.15 report the status, once the parent has reaped the process; others none."""
    child = subprocess.Popen(["sh", "-c", f"read line; {command}"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    ends.follow((process(child.pid, "sh", "ada", 5),))
    child.stdin.close()
    if killed:
        child.kill()
    child.wait()

    (end,) = wait_for_end(ends)

    assert end.pid == child.pid
    assert (end.was_killed, end.signal_name) in ((killed, "SIGKILL" if killed else None), (False, None))
    assert ends.take() == ()


def test_only_the_largest_processes_are_followed(ends: ProcessEnds) -> None:
    """A descriptor for each would be too many; those that left the list are closed."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(MAX_FOLLOWED + 2)]
    try:
        ends.follow([process(one.pid, "sleep", "ada", 100 - index) for index, one in enumerate(children)])
        children[-1].kill()
        children[-1].wait()
        assert ends.read_event(select.POLLIN) is Wake.DUE
        children[0].kill()
        children[0].wait()
        assert [end.pid for end in wait_for_end(ends)] == [children[0].pid]
        ends.follow(())
        children[1].kill()
        children[1].wait()
        assert ends.read_event(select.POLLIN) is Wake.DUE
    finally:
        for one in children:
            one.kill()
            one.wait()


def test_process_that_has_ended_already_is_left_out(ends: ProcessEnds) -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    ends.follow((process(child.pid, "true", "ada", 5),))

    assert ends.read_event(select.POLLIN) is Wake.DUE


def test_no_process_is_followed_if_descriptors_are_few(ends: ProcessEnds) -> None:
    """The clients need them."""
    child = subprocess.Popen(["sleep", "60"])
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        ends.follow((process(child.pid, "sleep", "ada", 5),))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
        child.kill()
        child.wait()

    assert ends.read_event(select.POLLIN) is Wake.DUE
