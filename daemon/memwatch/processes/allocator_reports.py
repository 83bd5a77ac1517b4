"""Reports of programs about their own allocators, kept while they are renewed. They are part of no sum."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from memwatch.allocators import Claim
from memwatch.linux.files import read_once

MOST_PROCESSES = 256
MOST_CLAIMS = 16
# Programs renew their reports every ten seconds.
KEPT_SECONDS = 35.0
# Index of starttime (field 22, in clock ticks since boot) among the fields of /proc/<pid>/stat after the name.
START_FIELD = 19


class Refused(ValueError):
    """A report was rejected. The message is a sentence."""


class _Report(Struct, frozen=True):
    claims: tuple[Claim, ...]
    at: float


class Reports:
    """The latest report of each process. Thread-safe."""

    def __init__(self, procfs: Path = Path("/proc")) -> None:
        self._procfs = procfs
        self._reports: dict[int, _Report] = {}
        self._lock = threading.Lock()

    def put(self, pid: int, start_ticks: int, claims: Sequence[Claim], now: float) -> None:
        """Replace the report of a process. Raises Refused."""
        if self._start_ticks(pid) != start_ticks:
            raise Refused(
                f"no process {pid} that started at tick {start_ticks} exists; "
                "process ids inside a container differ: send the host's"
            )
        if len(claims) > MOST_CLAIMS:
            raise Refused(f"process {pid} has {len(claims)} claims; the maximum is {MOST_CLAIMS}")
        with self._lock:
            self._forget(now)
            if pid not in self._reports and len(self._reports) >= MOST_PROCESSES:
                raise Refused(f"the maximum of {MOST_PROCESSES} reporting processes is reached")
            self._reports[pid] = _Report(tuple(claims), now)

    def current(self, now: float) -> tuple[Claim, ...]:
        """Return the claims that were renewed recently, by process."""
        if not self._reports:
            return ()
        with self._lock:
            self._forget(now)
            return tuple(claim for _, report in sorted(self._reports.items()) for claim in report.claims)

    def _forget(self, now: float) -> None:
        for pid in [pid for pid, report in self._reports.items() if now - report.at > KEPT_SECONDS]:
            del self._reports[pid]

    def _start_ticks(self, pid: int) -> int | None:
        return start_ticks_of(read_once(self._procfs / str(pid) / "stat") or b"")


def start_ticks_of(stat: bytes) -> int | None:
    """Return the start time in clock ticks from /proc/<pid>/stat. The name may contain brackets."""
    fields = stat.rpartition(b")")[2].split()
    word = fields[START_FIELD] if len(fields) > START_FIELD else b""
    return int(word) if word.isdigit() and len(word) < 20 else None
