"""The proportional set size of one process, when somebody asks: the kernel walks all its pages for that."""

from __future__ import annotations

import os
import re

from msgspec import Struct

from memwatch.linux.files import Roots, Unreadable
from memwatch.linux.process_files import STAT_BYTES, living_thread, parse_boot_time, parse_stat, read_in
from memwatch.model import Absent, Bytes, Process

_LINE = re.compile(rb"^(\w+): +(\d{1,19}) kB$", re.MULTILINE)
_ROLLUP_BYTES = 8192
# The time of boot is in whole seconds, and wavers by one.
_SAME_START_SECONDS = 3.0


class NoPss(Exception):
    """Why there is no such figure, in a sentence. `permitted` is false where others may read it."""

    def __init__(self, sentence: str, permitted: bool = True) -> None:
        super().__init__(sentence)
        self.permitted = permitted


class Pss(Struct, frozen=True):
    """Each page divided by the number of processes that share it, so that all processes may be added up.

    The parts of it are of Linux 5.4 and later.
    """

    pid: int
    pss_bytes: int
    rss_bytes: int
    anonymous_bytes: Bytes
    file_bytes: Bytes
    shared_memory_bytes: Bytes
    swap_bytes: Bytes


def parse_rollup(data: bytes, pid: int) -> Pss:
    """From smaps_rollup."""
    found = {name.decode(): int(kib) << 10 for name, kib in _LINE.findall(data)}

    def part(name: str) -> Bytes:
        return found.get(name, Absent.NOT_SUPPORTED)

    if "Pss" not in found or "Rss" not in found:
        raise Unreadable(f"smaps_rollup: {data[:80]!r} has no lines Rss and Pss")
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
    """Reads one process's smaps_rollup. That can wait for the process's own lock, so not on a tick."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def read(self, process: Process) -> Pss:
        """Raises NoPss where there is none; never another process's figure."""
        try:
            folder = os.open(self._roots.procfs / str(process.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise _ended(process) from None
        try:
            self._refuse_another(process, folder)
            return parse_rollup(_rollup_of(process, folder), process.pid)
        except Unreadable as error:
            raise NoPss(f"process {process.pid}: {error}") from None
        finally:
            os.close(folder)

    def _refuse_another(self, process: Process, folder: int) -> None:
        """The number may belong to another process by now."""
        data = read_in(folder, "stat", STAT_BYTES)
        stat = parse_stat(data) if data else None
        if stat is None:
            raise _ended(process)
        boot_time = parse_boot_time((self._roots.procfs / "stat").read_bytes())
        start_time = boot_time + stat.start_ticks / os.sysconf("SC_CLK_TCK")
        if abs(start_time - process.start_time) > _SAME_START_SECONDS:
            raise _ended(process)


def _rollup_of(process: Process, folder: int) -> bytes:
    try:
        return _read(folder, "smaps_rollup")
    except FileNotFoundError:
        raise NoPss("this kernel has no smaps_rollup, which Linux has since 4.14") from None
    except PermissionError:
        sentence = (
            f"memwatchd may not read the PSS of process {process.pid}: that takes the process's own user, or "
            "CAP_SYS_PTRACE, which root has unless it was taken away"
        )
        raise NoPss(sentence, permitted=False) from None
    except OSError:
        return _rollup_of_thread(process, folder)


def _rollup_of_thread(process: Process, folder: int) -> bytes:
    """Where its first thread has ended, its memory is told by the others."""
    thread = living_thread(folder, "task")
    if thread is None:
        raise _ended(process)
    try:
        return _read(folder, thread[0] + "/smaps_rollup")
    except OSError:
        raise _ended(process) from None


def _read(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, _ROLLUP_BYTES)
    finally:
        os.close(file)


def _ended(process: Process) -> NoPss:
    return NoPss(f"process {process.pid} ({process.name}) has ended")
