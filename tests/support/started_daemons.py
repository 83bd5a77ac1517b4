"""Daemons that tests have started, for the report of a test that fails."""

from __future__ import annotations

import shlex
from collections import deque
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

MAX_LINES = 40


class StartedDaemon(Struct):
    """Daemon with its command line and log. It stays listed until the end of the test in which it ended."""

    command: tuple[str, ...]
    log: Path
    has_ended: bool = False

    @property
    def section(self) -> tuple[str, str]:
        """Return title and text for a report of pytest."""
        return f"daemon log (last {MAX_LINES} lines)", f"{shlex.join(self.command)}\n{last_lines(self.log)}"


# Programs other than pytest, such as the soak run, start thousands and remove none.
STARTED: deque[StartedDaemon] = deque(maxlen=20)


def forget_ended() -> None:
    """Remove the daemons that have ended; those of fixtures that other tests share still run."""
    running = [daemon for daemon in STARTED if not daemon.has_ended]
    STARTED.clear()
    STARTED.extend(running)


def mark_ended(log: Path) -> None:
    """Mark the daemons with this log, to be removed after the test that runs now."""
    for daemon in STARTED:
        daemon.has_ended = daemon.has_ended or daemon.log == log


def last_lines(log: Path, count: int = MAX_LINES) -> str:
    """Return the end of a log, or the reason why there is none."""
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) or "(the log is empty)"
    return f"(no log at {log})"
