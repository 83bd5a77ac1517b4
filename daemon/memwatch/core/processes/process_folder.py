"""Readings of exactly one process on request, from /proc/<pid>: its id may have been reused since it was listed.

The kernel walks all pages of a process for its proportional set size (PSS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.linux.process_files import STAT_BYTES, find_living_thread, parse_boot_time, parse_stat, read_at
from memwatch.core.model import Absent, Bytes, Process

# btime is in whole seconds and varies by one.
SAME_START_SECONDS = 3.0
_LINE = re.compile(rb"^(\w+): +(\d{1,19}) kB$", re.MULTILINE)
_ROLLUP_BYTES = 8192


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


class PssError(Exception):
    """The PSS is not available; the message is a sentence. `permitted`: False if permission is missing."""

    def __init__(self, sentence: str, permitted: bool = True) -> None:
        super().__init__(sentence)
        self.permitted = permitted


class Pss(Struct, frozen=True):
    """Proportional set size: each page divided by the number of processes that share it, so sums are correct.

    Its parts require Linux 5.4.
    """

    pid: int
    pss_bytes: int
    rss_bytes: int
    anonymous_bytes: Bytes
    file_bytes: Bytes
    shared_memory_bytes: Bytes
    swap_bytes: Bytes


def parse_rollup(data: bytes, pid: int) -> Pss:
    """Parse smaps_rollup."""
    found = {name.decode(): int(kib) << 10 for name, kib in _LINE.findall(data)}

    def part(name: str) -> Bytes:
        return found.get(name, Absent.NOT_SUPPORTED)

    if "Pss" not in found or "Rss" not in found:
        raise ParseError(f"smaps_rollup: {data[:80]!r} has no lines Rss and Pss")
    return Pss(
        pid,
        found["Pss"],
        found["Rss"],
        part("Pss_Anon"),
        part("Pss_File"),
        part("Pss_Shmem"),
        part("SwapPss"),
    )


class PssReader:
    """Reads a process's smaps_rollup. Do not use it on a tick: it can block on the process's mmap lock."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def read(self, process: Process) -> Pss:
        """Read the PSS of exactly this process, even if its id was reused. Raises PssError."""
        try:
            with open_process(self._roots, process) as folder:
                return parse_rollup(_read_rollup(process, folder), process.pid)
        except ProcessEndedError:
            raise _process_ended(process) from None
        except ParseError as error:
            raise PssError(f"process {process.pid}: {error}") from None


def _read_rollup(process: Process, folder: int) -> bytes:
    try:
        return _read(folder, "smaps_rollup")
    except FileNotFoundError:
        raise PssError("this kernel has no smaps_rollup, which needs Linux 4.14 or newer") from None
    except PermissionError:
        sentence = (
            f"memwatchd may not read the PSS of process {process.pid}: run it as the process's user, "
            "or with CAP_SYS_PTRACE (root has it unless it was dropped)"
        )
        raise PssError(sentence, permitted=False) from None
    except OSError:
        return _read_thread_rollup(process, folder)


def _read_thread_rollup(process: Process, folder: int) -> bytes:
    """Read smaps_rollup of another thread if the main thread has ended."""
    thread = find_living_thread(folder, "task")
    if thread is None:
        raise _process_ended(process)
    try:
        return _read(folder, thread[0] + "/smaps_rollup")
    except OSError:
        raise _process_ended(process) from None


def _read(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, _ROLLUP_BYTES)
    finally:
        os.close(file)


def _process_ended(process: Process) -> PssError:
    return PssError(f"process {process.pid} ({process.title}) has ended")
