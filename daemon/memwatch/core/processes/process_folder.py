"""Access to /proc/<pid> of exactly one process: its id may have been reused since it was listed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.linux.process_files import STAT_BYTES, parse_boot_time, parse_stat, read_at
from memwatch.core.model import Absent, Process

# btime is in whole seconds and varies by one.
SAME_START_SECONDS = 3.0


class ProcessEndedError(Exception):
    """The process has ended, or its id belongs to another process now."""


@contextmanager
def open_process(roots: Roots, process: Process) -> Iterator[int]:
    """Yield a descriptor of the process's folder. Raises ProcessEndedError and ParseError."""
    try:
        folder = os.open(roots.procfs / str(process.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise ProcessEndedError from None
    try:
        _check_identity(roots, process, folder)
        yield folder
    finally:
        os.close(folder)


def _check_identity(roots: Roots, process: Process, folder: int) -> None:
    """Raise ProcessEndedError if the process id belongs to another process now, or if it is not visible."""
    data = read_at(folder, "stat", STAT_BYTES)
    stat = parse_stat(data) if data else None
    if stat is None:
        raise ProcessEndedError
    boot_time = parse_boot_time((roots.procfs / "stat").read_bytes())
    start_time = boot_time + stat.start_ticks / os.sysconf("SC_CLK_TCK")
    if isinstance(process.start_time, Absent) or abs(start_time - process.start_time) > SAME_START_SECONDS:
        raise ProcessEndedError


def read_oom_score(roots: Roots, process: Process) -> tuple[int, int] | Absent:
    """Return oom_score and oom_score_adj: with the highest score a process is killed first (proc(5)). Any user may
    read both."""
    try:
        with open_process(roots, process) as folder:
            score, adjustment = (read_at(folder, name, 16) for name in ("oom_score", "oom_score_adj"))
        return int(score or b""), int(adjustment or b"")
    except (ProcessEndedError, OSError, ParseError, ValueError):
        return Absent.NOT_AVAILABLE
