"""Call functions in a forked process: as another user, or on a kernel without a system call."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Answer = TypeVar("Answer")

OPENAT2 = 437
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def call_in_child(function: Callable[[], Answer], *first: Callable[[], None]) -> Answer:
    """Return the answer of a function that a forked process calls after the functions in `first`."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(sink, "wb") as file:
                pickle.dump(_call(function, first), file)
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answers:
        found = answers.read()
    os.waitpid(child, 0)
    answer: Answer
    answer, failure = pickle.loads(found)
    assert not failure, failure
    return answer


def _call(function: Callable[[], object], first: Sequence[Callable[[], None]]) -> tuple[object, str]:
    try:
        for one in first:
            one()
        return function(), ""
    except Exception:
        return None, traceback.format_exc()


@contextmanager
def running_in_child(*functions: Callable[[], object]) -> Iterator[int]:
    """Call functions, the last one for ever, in a forked process that is killed at the end. Yield its PID."""
    child = os.fork()
    if child == 0:
        try:
            for one in functions:
                one()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def refuse_call(number: int, error: int) -> None:
    """Let a system call of this process fail, as on an older kernel or below a container's seccomp profile."""
    program = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _FAIL | error),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    rules = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(rules), 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
