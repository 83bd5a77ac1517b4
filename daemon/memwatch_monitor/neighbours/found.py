"""Machines that mDNS has found. Thread-safe.

Any machine of the network can announce any name, as often as it likes, and from any address. So what one source
address announces does not replace what another one announces, and only it can take that back. Its places are those
of its link address, which the kernel learns when a machine answers to this one alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memwatch.core.budget import KINDS, Account, Budget, Rank
from memwatch.core.linux.files import read_once

# Announcements that are not listed are counted up to this number.
MAX_COUNTED = 1000
# Answers may come up to 1.35 s late, and even after the goodbye of their machine.
LATE_SECONDS = 2.0
# A machine answers every question, once a minute. One that missed three in a row is gone.
EXPIRE_SECONDS = 200.0
FOUND_TEXT = "found by mDNS, not joined: add it to [[neighbours]] with its URL, {}"


class FoundMachine(Struct, frozen=True):
    """A machine that announces its memwatchd. `run` identifies the process, as in its ticks."""

    name: str
    url: str
    run: str

    @property
    def text(self) -> str:
        return FOUND_TEXT.format(self.url)


Key = tuple[str, str]
# Of the network namespace of this process, in which the search is.
ARP = Path("/proc/net/arp")
REREAD_SECONDS = 1.0
NO_ADDRESS = "00:00:00:00:00:00"
COMPLETE = 2  # ATF_COM of linux/if_arp.h


def parse_arp(data: bytes) -> dict[str, str]:
    """Return the link address of each address in /proc/net/arp (proc_net(5)), of complete entries only."""
    found = {}
    for line in data.decode("ascii", "replace").splitlines()[1:]:
        columns = line.split()
        with suppress(ValueError, IndexError):
            if int(columns[2], 16) & COMPLETE and columns[3] != NO_ADDRESS:
                found[columns[0]] = columns[3]
    return found


class Peers:
    """The account of each source address: of its link address, with a part of the places, else of the address.

    A machine can send from all addresses of its network, but it has one link address. Not thread-safe.
    """

    def __init__(self, path: Path = ARP, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._read_at = float("-inf")
        self._links: Mapping[str, str] = {}

    def account(self, source: str) -> Account:
        if self._now() - self._read_at >= REREAD_SECONDS:
            self._read_at, self._links = self._now(), parse_arp(read_once(self._path) or b"")
        link = self._links.get(source)
        return Account(source) if link is None else Account(f"link address {link}", Rank.SYSTEM)


class FoundMachines:
    """Machines found, by source address and name of the service. `account_of` a source address."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        budget: Budget | None = None,
        account_of: Callable[[str], Account] = Account,
    ) -> None:
        self._now, self._account_of = now, account_of
        self._budget = budget if budget is not None else Budget(KINDS["machines_found"])
        self._machines: dict[Key, tuple[FoundMachine, float]] = {}
        self._removed: dict[str, float] = {}
        self._unlisted: set[int] = set()
        self._unlisted_before = 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._machines)

    def put(self, source: str, service: str, machine: FoundMachine) -> None:
        """Add, refresh or replace a machine. Late answers of a process that was just removed are ignored."""
        key = source, service
        with self._lock:
            if self._is_late(machine.run):
                return
            account, was_unlisted = self._account_of(source), hash(key) in self._unlisted
            if key in self._machines or self._budget.admits(account):
                gone = self._budget.admit(key, account).gone
                if isinstance(gone, tuple):
                    del self._machines[gone]
                self._machines[key] = machine, self._now()
                self._unlisted.discard(hash(key))
            elif not was_unlisted and len(self._unlisted) < MAX_COUNTED:
                self._unlisted.add(hash(key))
                self._budget.refuse(key, account)

    def remove(self, source: str, service: str) -> None:
        with self._lock:
            machine, _ = self._machines.pop((source, service), (None, 0.0))
            self._budget.release((source, service))
            self._unlisted.discard(hash((source, service)))
            if machine is not None:
                self._removed = {run: at for run, at in self._removed.items() if self._is_late(run)}
                self._removed[machine.run] = self._now()

    def expire(self) -> None:
        """Drop the machines that do not answer any more, and count the unlisted ones again."""
        with self._lock:
            oldest = self._now() - EXPIRE_SECONDS
            for key in [key for key, one in self._machines.items() if one[1] < oldest]:
                del self._machines[key]
                self._budget.release(key)
            self._unlisted_before = len(self._unlisted)
            self._unlisted.clear()

    def clear(self) -> None:
        with self._lock:
            self._machines.clear()
            self._budget.clear()
            self._unlisted.clear()
            self._unlisted_before = 0

    def count_left_out(self) -> int:
        """Return the number of announcements that are not listed, up to MAX_COUNTED."""
        with self._lock:
            return max(len(self._unlisted), self._unlisted_before)

    def others(self, runs: Collection[str], urls: Collection[str]) -> Sequence[FoundMachine]:
        """Return the machines that neither these processes nor these URLs are, by name.

        One that answers from several addresses is listed once.
        """
        with self._lock:
            found = {machine for machine, _ in self._machines.values()}
        return sorted(
            (one for one in found if one.run not in runs and one.url not in urls),
            key=lambda one: (one.name, one.url, one.run),
        )

    def _is_late(self, run: str) -> bool:
        return run in self._removed and self._now() - self._removed[run] < LATE_SECONDS
