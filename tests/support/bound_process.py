"""Start programs that end with this process, also if it is killed: SIGKILL leaves no fixture time to end them.

They have their own session, so that a signal to the process group of pytest does not reach them either.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from support.open_things import kept_open

# The kernel sends the signal of PR_SET_PDEATHSIG when the thread that started the program ends: prctl(2). An exec
# keeps the setting, so that the program itself has the PID.
ENDS_WITH_PARENT = ("--pdeathsig", "KILL", "--")
_ONE_AT_A_TIME = threading.Lock()


def start_bound(
    command: Sequence[str | Path],
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a new session."""

    def start() -> subprocess.Popen[bytes]:
        words = [*_prefix(), *command]
        null = subprocess.DEVNULL
        return subprocess.Popen(
            words, stdin=null, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True
        )

    if threading.current_thread() is threading.main_thread():
        return start()
    return _starter().submit(start).result()


@functools.cache
def _prefix() -> tuple[str, ...]:
    """Return the program of util-linux that sets the signal. Other systems than Linux have none."""
    if not sys.platform.startswith("linux"):
        return ()
    program = shutil.which("setpriv")
    assert program is not None, "setpriv is missing: install util-linux"
    return program, *ENDS_WITH_PARENT


def _starter() -> ThreadPoolExecutor:
    """Return a thread that lasts: the one that asks may end before the program.

    There is one. A second one, of two threads that ask at once, would end when it is dropped, and its programs too.
    """
    with _ONE_AT_A_TIME:
        return _make_starter()


@functools.cache
def _make_starter() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(1, "starter")
    with kept_open():
        pool.submit(threading.get_ident).result()
    return pool
