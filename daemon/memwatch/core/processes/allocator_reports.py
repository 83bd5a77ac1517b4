"""Reports of programs about their own allocators, kept while they are renewed. They are part of no sum."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from memwatch.core.budget import KINDS, Budget
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import read_once
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.linux.process_files import parse_real_uid, read_start_ticks
from memwatch.core.model import AllocatorReport, Device

MAX_REPORTS = 16
# Programs renew their reports every ten seconds.
EXPIRY_SECONDS = 35.0


class ReportRejectedError(ValueError):
    """A report was rejected. The message is a sentence."""


class _StoredReport(Struct, frozen=True):
    claims: tuple[AllocatorReport, ...]
    at: float


class AllocatorReports:
    """The latest report of each process. Thread-safe."""

    def __init__(
        self, procfs: Path = Path("/proc"), budget: Budget | None = None, accounts: Accounts | None = None
    ) -> None:
        self.procfs = procfs
        self._budget = budget if budget is not None else Budget(KINDS["reports"])
        self._accounts = accounts or Accounts(Path("/"))
        self._reports: dict[int, _StoredReport] = {}
        self._lock = threading.Lock()

    def put(self, pid: int, start_ticks: int, claims: Sequence[AllocatorReport], now: float) -> None:
        """Replace the report of a process. Raises ReportRejectedError."""
        if self._start_ticks(pid) != start_ticks:
            raise ReportRejectedError(
                f"no process {pid} that started at tick {start_ticks} exists; "
                "process ids inside a container differ: send the host's"
            )
        if len(claims) > MAX_REPORTS:
            raise ReportRejectedError(f"process {pid} has {len(claims)} claims; the maximum is {MAX_REPORTS}")
        with self._lock:
            self._forget(now)
            account = self._accounts.of_now(self.owner_uid(pid))
            verdict = self._budget.admit(pid, account)
            if not verdict.is_admitted:
                raise ReportRejectedError(self._budget.describe(account))
            self._reports = {one: report for one, report in self._reports.items() if one != verdict.gone}
            self._reports[pid] = _StoredReport(tuple(claims), now)

    def current(self, now: float) -> tuple[AllocatorReport, ...]:
        """Return the claims that were renewed recently, by process."""
        if not self._reports:
            return ()
        with self._lock:
            self._forget(now)
            return tuple(claim for _, report in sorted(self._reports.items()) for claim in report.claims)

    def owner_uid(self, pid: int) -> int | None:
        """Return the real user id of a process, None if it does not exist or is hidden."""
        return parse_real_uid(read_once(self.procfs / str(pid) / "status") or b"")

    def _forget(self, now: float) -> None:
        for pid in [pid for pid, report in self._reports.items() if now - report.at > EXPIRY_SECONDS]:
            del self._reports[pid]
            self._budget.release(pid)

    def _start_ticks(self, pid: int) -> int | None:
        return read_start_ticks(self.procfs / str(pid))


def find_gpu(identity: str | None, devices: Iterable[Device]) -> str | None:
    """Return the id of the GPU or MIG instance with a UUID or PCI address, None if there is none."""
    address = pci_numbers(identity) if identity else None
    for device in devices if identity else ():
        if identity == device.uuid or (address is not None and address == pci_numbers(device.pci)):
            return device.id
        for name, uuids in device.details.items():
            if name.startswith("mig_") and identity in uuids.split(", "):
                return f"{device.id}.mig{name.removeprefix('mig_')}"
    return None
