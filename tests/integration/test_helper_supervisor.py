"""Test that a helper process that hangs, crashes or floods affects only itself, with a pause between starts."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from memwatch.core.helper.process import Child
from memwatch.core.helper.supervisor import MAX_LEFT_BEHIND, Helper, HelperError
from support.waiting import MAX_WAIT_SECONDS, wait_until

ECHO = "import sys\nfor line in sys.stdin: print('you said ' + line.strip(), flush=True)"
SLEEP = "time.sleep(3600)"
HANG = "import sys, time\nsys.stdin.readline()\n" + SLEEP
CRASH = "import os, signal, sys\nsys.stdin.readline()\nos.kill(os.getpid(), signal.SIGSEGV)"
LEAVE = "import sys\nsys.stdin.readline()\nsys.exit(75)"
FLOOD = "import sys\nsys.stdin.readline()\nwhile True: sys.stdout.write('x' * 65536)"
ANSWERS_ONCE = "import sys\nsys.stdin.readline()\nprint('ok', flush=True)\nsys.stdin.readline()\nsys.exit(3)"
# prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), and PTRACE_SEIZE by a child.
UNENDING = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
read, write = os.pipe()
tracer = os.fork()
if tracer == 0:
    sys.stdout.close()
    os.close(1)
    os.write(write, b"ok" if libc.ptrace(0x4206, os.getppid(), None, None) == 0 else b"no")
    signal.pause()
assert os.read(read, 2) == b"ok"
for line in sys.stdin:
    print(tracer, flush=True)
"""
DEAF = "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsys.stdin.readline()\n" + SLEEP


@contextmanager
def helper(
    script: str, deadline: float = 0.5, pause: float = 60.0, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Helper]:
    one = Helper([sys.executable, "-c", script], deadline, pause, monotonic=monotonic)
    try:
        yield one
    finally:
        one.stop()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_child_answers_many_requests() -> None:
    """It is started at the first request and kept."""
    with helper(ECHO, deadline=MAX_WAIT_SECONDS) as one:
        before = one.pid
        answers = [one.ask(b"read") for _ in range(3)]
        pid = one.pid

        assert before is None
        assert answers == [b"you said read"] * 3
        assert pid is not None
        assert is_alive(pid)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (HANG, "did not answer for 0.5 s and was killed"),
        (DEAF, "did not answer for 0.5 s and was killed"),
        (CRASH, "killed by signal 11"),
        (LEAVE, "exited with code 75"),
        (FLOOD, "sent too much data and was killed"),
        ("this is no Python", "exited with code 1"),
    ],
)
def test_failed_child_is_gone_and_its_failure_reported(script: str, sentence: str) -> None:
    """One message, although some children would run for an hour, and no process is left behind."""
    with helper(script, deadline=0.5 if script in (HANG, DEAF) else MAX_WAIT_SECONDS) as one:
        one.send(b"read")
        pid = one.pid
        with pytest.raises(HelperError, match=sentence):
            one.answer()

        assert pid is not None
        assert one.pid is None
        wait_until(lambda: not is_alive(pid))


def test_crashing_child_is_restarted_at_once_and_then_with_backoff() -> None:
    """A driver that crashes at every request costs one start a minute in the end."""
    now, starts = [1000.0], []
    with helper(CRASH, deadline=MAX_WAIT_SECONDS, monotonic=lambda: now[0]) as one:
        while now[0] < 1300.0:
            with pytest.raises(HelperError, match="killed by signal 11") as failure:
                one.ask(b"read")
            if "it is restarted with pauses of up to 60 s" not in str(failure.value):
                starts.append(now[0] - 1000.0)
            now[0] += 0.5

    assert starts == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 123.5, 183.5, 243.5]


def test_child_that_ran_for_the_pause_is_restarted_at_once() -> None:
    """Its failure is a first one again."""
    now = [1000.0]
    with helper(ANSWERS_ONCE, deadline=MAX_WAIT_SECONDS, monotonic=lambda: now[0]) as one:
        for _ in range(5):
            one.ask(b"read")
            now[0] += 60.0


def test_killed_child_is_replaced_within_the_request() -> None:
    """The OOM killer took it between two requests: no reading is missing."""
    with helper(ECHO, deadline=MAX_WAIT_SECONDS) as one:
        one.ask(b"read")
        before = one.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)

        assert one.ask(b"again") == b"you said again"
        assert one.pid not in (None, before)


def test_child_that_ends_after_each_answer_is_not_replaced_for_ever() -> None:
    """The second replacement waits for the backoff, and a request fails."""
    now = [1000.0]
    with helper(ANSWERS_ONCE, deadline=MAX_WAIT_SECONDS, monotonic=lambda: now[0]) as one:
        answers = [one.ask(b"read") for _ in range(2)]
        with pytest.raises(HelperError, match="exited with code 3"):
            one.ask(b"read")

    assert answers == [b"ok"] * 2


def test_children_that_cannot_be_killed_are_limited() -> None:
    """A driver can hold up the end of a child. Here a process that traces it hides its end from its parent."""
    with helper(UNENDING, deadline=MAX_WAIT_SECONDS, pause=0.0) as one:
        tracers = []
        for _ in range(MAX_LEFT_BEHIND):
            tracers.append(int(one.ask(b"read")))
            one.stop(0.0)
        with pytest.raises(HelperError, match=r"3 killed helper processes do not end, .*: restart the machine"):
            one.ask(b"read")

        for tracer in tracers:
            os.kill(tracer, signal.SIGKILL)
        wait_until(lambda: is_restarted(one))
        os.kill(int(one.ask(b"read")), signal.SIGKILL)


def is_restarted(one: Helper) -> bool:
    try:
        one.send(b"read")
    except HelperError:
        return False
    return True


def test_stopped_child_is_restarted_without_a_pause() -> None:
    """A released driver is used again when its time is over, not one minute after the last start."""
    with helper(ECHO, deadline=MAX_WAIT_SECONDS) as one:
        one.ask(b"read")
        before = one.pid
        one.stop()

        assert one.ask(b"again") == b"you said again"
        assert one.pid != before


def test_missing_program_is_a_helper_failure() -> None:
    """No other kind of exception is raised, and no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    one = Helper(["/nonexistent/program"], 1.0, 0.0)
    for _ in range(5):
        with pytest.raises(HelperError, match="cannot be started"):
            one.ask(b"read")

    assert len(os.listdir("/proc/self/fd")) == before


def test_many_requests_leave_no_descriptor_open() -> None:
    """The number of descriptors stays constant, across restarts as well."""
    with helper(ECHO, deadline=MAX_WAIT_SECONDS, pause=0.0) as one:
        one.ask(b"first")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            for _ in range(100):
                one.ask(b"read")
            one.stop()
            one.ask(b"read")

        assert len(os.listdir("/proc/self/fd")) == before


def test_answer_is_reported_only_when_complete() -> None:
    """A caller without time to wait sends the request, and checks later for a complete answer."""
    in_parts = (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    print('half of', end=' ', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print('an answer', flush=True)\n"
    )
    with helper(in_parts, deadline=MAX_WAIT_SECONDS) as one:
        one.send(b"read")
        early = one.has_answer(0.1)
        one.send(b"go on")
        found = one.has_answer(MAX_WAIT_SECONDS), one.has_answer(0.0)
        answer = one.answer()

    assert not early
    assert found == (True, True)
    assert answer == b"half of an answer"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [(CRASH, "killed by signal 11"), (LEAVE, "exited with code 75"), (HANG, "did not answer")],
)
def test_check_for_an_answer_never_raises(script: str, sentence: str) -> None:
    """The failure is raised where the answer is read, also for a child that exited before the request."""
    with helper(script) as one:
        one.send(b"read")
        found = one.has_answer(0.3)
        one.send(b"read")
        again = one.has_answer(0.0)
        with pytest.raises(HelperError, match=sentence):
            one.answer()
        after = one.has_answer(0.0)

    assert (found, again, after) == (False, False, False)


def test_endless_answer_is_rejected_at_once() -> None:
    """A tick that finds more than the maximum size kills the child at once, not after its deadline."""
    flood = "import sys, time\nsys.stdin.readline()\nprint('x' * (5 << 20), flush=True, end='')\ntime.sleep(3600)"
    with helper(flood, deadline=3600.0) as one:
        one.send(b"read")
        wait_until(lambda: one.has_answer(0.1))
        with pytest.raises(HelperError, match="sent too much data"):
            one.answer()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Hold 1,100 descriptors open, as a daemon does that keeps a file of each of a thousand processes open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_answer_arrives_on_a_descriptor_above_1023() -> None:
    """`select` does not support descriptors above 1,023."""
    with helper(ECHO, deadline=MAX_WAIT_SECONDS) as one:
        one.send(b"read")
        wait_until(lambda: one.has_answer(0.1))

        assert one.answer() == b"you said read"


def test_start_without_free_descriptors_leaks_none() -> None:
    """With descriptors left for one pipe only, each attempt would otherwise leak some."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = Child([sys.executable, "-c", "pass"], takes_input=True)
    opened = len(os.listdir("/proc/self/fd"))
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(used + 1)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, before[1]))
        for descriptor in held[-3:]:  # room for one pipe, and for half of another
            os.close(descriptor)
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                child.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held[:-3]:
            os.close(descriptor)

    assert len(os.listdir("/proc/self/fd")) == opened
