"""PIDs of GPU users that /proc does not have. Not a collector."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

# Scans in a row without the PID. One is not enough: the process may have ended since the driver listed it.
MIN_SCANS = 2


class Absence(Struct, frozen=True):
    """A missing PID: number of scans without it, and the newest start of any process at the last of them."""

    scans: int
    newest_start: int


class MissingPids:
    """PIDs that a driver lists and /proc does not have, in two scans in a row.

    A missing PID stays missing until the driver drops it, even if a process that started later gets the same PID.
    """

    def __init__(self) -> None:
        self._absences: dict[int, Absence] = {}

    @property
    def are_unconfirmed(self) -> bool:
        """Check if a scan soon is needed to confirm a missing PID."""
        return any(one.scans < MIN_SCANS for one in self._absences.values())

    def update(self, missing: Collection[int], starts: Mapping[int, int], newest_start: int) -> frozenset[int]:
        """Return the missing PIDs. `missing`: in this scan; `starts`: start of the processes with a listed PID."""
        reused = {
            pid: one
            for pid, one in self._absences.items()
            if one.scans >= MIN_SCANS and starts.get(pid, 0) > one.newest_start
        }
        before = self._absences
        self._absences = reused | {
            pid: Absence(before[pid].scans + 1 if pid in before else 1, newest_start) for pid in missing
        }
        return frozenset(pid for pid, one in self._absences.items() if one.scans >= MIN_SCANS)
