"""Guard of the pure lane: no process, no network, no real time and no file of this machine.

Such a test cannot be disturbed by the load of the machine that runs it, so a failure is a fault, and the lane
needs no second try. The guard receives the interpreter's audit events, which C code raises too, and notices waits
that end by their timeout.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

# Longer waits make real time an input of the test.
MAX_WAIT_SECONDS = 0.02
# Files of the kernel: their content is that of this machine.
MACHINE_FOLDERS = ("/proc/", "/sys/")
# Not changed by other programs: files about this process, its processors, and the time and number of the boot.
CONSTANT_FILES = (
    "/proc/self/",
    "/proc/stat/",
    "/proc/sys/",
    "/proc/cpuinfo/",
    "/sys/devices/system/cpu/",
    "/sys/fs/cgroup/cpu",
)
PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
SOCKETS = frozenset({"socket.bind", "socket.connect"})
FILES = frozenset({"open", "os.listdir", "os.scandir"})


class NotPureError(AssertionError, OSError):
    """Pure test that uses a process, a socket, real time or a file of this machine.

    As an OSError it makes code under test close its socket. A leaked one would fail another test.
    """


class _Guard(Struct):
    """Violations of the running test; None while none is guarded."""

    found: list[str] | None = None
    foreign_threads: frozenset[int] = frozenset()  # left running by other tests
    is_installed: bool = False


_guard = _Guard()


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Raise NotPureError for each violation meanwhile, and collect them: code under test may swallow the error."""
    _install()
    others = {one.ident or 0 for one in threading.enumerate()} - {threading.get_ident()}
    _guard.foreign_threads = frozenset(others)
    found: list[str] = []
    _guard.found = found
    try:
        yield found
    finally:
        _guard.found = None


def _report(text: str) -> None:
    if _guard.found is None:
        return
    _guard.found.append(text)
    raise NotPureError(f"a pure test {text}: move it to tests/integration, or give it a simulated one")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _guard.found is None or threading.get_ident() in _guard.foreign_threads:
        return
    if event in PROCESSES:
        _report(f"starts a process ({event}: {_shorten(arguments[:1])})")
    elif event in SOCKETS and not _is_own_socket(*arguments):
        _report(f"uses the network ({event}: {_shorten(arguments[1:])})")
    elif event == "time.sleep" and arguments[0] > MAX_WAIT_SECONDS:
        _report(f"sleeps for {arguments[0]:g} s")
    elif event in FILES and is_of_this_machine(arguments[0]):
        _report(f"reads {arguments[0]}, a file of this machine")


def _is_own_socket(one: socket.socket, address: object) -> bool:
    """Check for a Unix socket within the test. A path under /run is that of a daemon of this machine."""
    return one.family == socket.AF_UNIX and not os.fsdecode(address).startswith("/run/")  # type: ignore[arg-type]


def is_of_this_machine(path: object) -> bool:
    """Check for a file of the kernel whose content other programs change."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # a descriptor
    name = f"{os.fsdecode(path)}/"
    return name.startswith(MACHINE_FOLDERS) and not name.startswith(CONSTANT_FILES)


def _shorten(arguments: tuple[Any, ...]) -> str:
    return ", ".join(map(str, arguments))[:120]


def _install() -> None:
    """Install the hooks, which cannot be removed, once."""
    if _guard.is_installed:
        return
    _guard.is_installed = True
    sys.addaudithook(_audit)
    threading.Condition.wait = _watch(threading.Condition.wait, _timeout_passed)  # type: ignore[method-assign,assignment]
    selector = selectors.DefaultSelector
    selector.select = _watch(selector.select, _nothing_ready)  # type: ignore[method-assign,assignment]
    if sys.version_info < (3, 11):  # later versions have an audit event
        time.sleep = _slept(time.sleep)


def _watch(
    wait: Callable[..., Any], ended_by_timeout: Callable[[object], bool]
) -> Callable[[Any, float | None], Any]:
    """Report waits of the test's own thread that lasted as long as they were allowed to."""

    def watched(self: Any, timeout: float | None = None) -> Any:
        result = wait(self, timeout)
        if timeout is not None and timeout > MAX_WAIT_SECONDS and ended_by_timeout(result) and _in_test():
            _report(f"waits for {timeout:g} s until a timeout")
        return result

    return watched


def _slept(sleep: Callable[[float], None]) -> Callable[[float], None]:
    def watched(seconds: float) -> None:
        _audit("time.sleep", (seconds,))
        sleep(seconds)

    return watched


def _timeout_passed(result: object) -> bool:
    return result is False


def _nothing_ready(result: object) -> bool:
    return result == []


def _in_test() -> bool:
    return _guard.found is not None and threading.current_thread() is threading.main_thread()
