"""What programs say of their own allocators, kept while it is renewed. Never added to anything."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from memwatch.allocators import Claim
from memwatch.linux.files import read_once

MOST_PROCESSES = 256
MOST_CLAIMS = 16
# A program renews its claims every ten seconds.
KEPT_SECONDS = 35.0
# Fields of /proc/<pid>/stat behind the name in brackets: the 22nd of all is the start, in clock ticks since boot.
START_FIELD = 19


class Refused(ValueError):
    """A report that is not taken, in a sentence."""


class _Report(Struct, frozen=True):
    claims: tuple[Claim, ...]
    at: float


class Reports:
    """The newest report of each process. Any thread may use it."""

    def __init__(self, procfs: Path = Path("/proc")) -> None:
        self._procfs = procfs
        self._reports: dict[int, _Report] = {}
        self._lock = threading.Lock()

    def put(self, pid: int, start_ticks: int, claims: Sequence[Claim], now: float) -> None:
        """Replace what this process said before. Raises Refused."""
        if self._start_ticks(pid) != start_ticks:
            raise Refused(
                f"no process {pid} that started at tick {start_ticks} is here; "
                "a program in a container has other process ids there"
            )
        if len(claims) > MOST_CLAIMS:
            raise Refused(f"process {pid} has {len(claims)} claims; at most {MOST_CLAIMS} are kept")
        with self._lock:
            self._forget(now)
            if pid not in self._reports and len(self._reports) >= MOST_PROCESSES:
                raise Refused(f"{MOST_PROCESSES} processes report already, and no more are kept")
            self._reports[pid] = _Report(tuple(claims), now)

    def current(self, now: float) -> tuple[Claim, ...]:
        """The claims that were renewed lately, by process."""
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
    """When a process started, from its /proc/<pid>/stat; its name may hold anything, brackets too."""
    fields = stat.rpartition(b")")[2].split()
    word = fields[START_FIELD] if len(fields) > START_FIELD else b""
    return int(word) if word.isdigit() and len(word) < 20 else None
