"""The `memwatch` command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.daemon_process import clean_environment
from support.fork_server import can_fork, run_forked
from support.waiting import MAX_WAIT_SECONDS

SCRIPT = [str(Path(sys.executable).with_name("memwatch"))]
MODULE = [sys.executable, "-m", "memwatch.client"]
QUERIES = ("status", "devices", "backends", "doctor", "events", "alerts", "growth", "owners")
OTHERS = ("advise", "check", "fit", "history", "incidents", "last-words", "run", "top", "wait", "watch")
COMMANDS = (*QUERIES, "release", "silence", *OTHERS)


def into_a_closed_pipe(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end while its output pipe has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        return subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=MAX_WAIT_SECONDS, check=False
        )


def memwatch(*arguments: str, command: Sequence[str] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """Run memwatch to its end, without MEMWATCH_URL, which may name a daemon outside the test.

    `command` starts another program or the installed one; without it, memwatch is forked with its modules.
    """
    clean = {name: value for name, value in clean_environment().items() if name != "MEMWATCH_URL"}
    environment = {**clean, **environ}
    if not command and can_fork(environment):
        return run_forked([*SCRIPT, *arguments], environment, MAX_WAIT_SECONDS)
    return subprocess.run(
        [*(command or SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )
