"""The `memwatch` command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.daemon_process import clean_environment
from support.waiting import MAX_WAIT_SECONDS

SCRIPT = [str(Path(sys.executable).with_name("memwatch"))]
MODULE = [sys.executable, "-m", "memwatch.client"]
QUERIES = ("status", "devices", "backends", "doctor", "events")
OTHERS = ("advise", "fit", "history", "run", "top", "wait", "watch")
COMMANDS = (*QUERIES, "release", *OTHERS)


def into_a_closed_pipe(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end while its output pipe has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        return subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=MAX_WAIT_SECONDS, check=False
        )


def memwatch(*arguments: str, command: Sequence[str] = SCRIPT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run memwatch to its end, without MEMWATCH_URL, which may name a daemon outside the test."""
    clean = {name: value for name, value in clean_environment().items() if name != "MEMWATCH_URL"}
    return subprocess.run(
        [*command, *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )
