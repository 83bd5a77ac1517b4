"""The incidents of this and of earlier runs, in memory and on disk.

On disk they are a ring of fixed size, allocated in advance, written by a thread that may hang. A record is valid as
a whole or not at all: a torn one, or one that is full of zeros, is left out at the next start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.budget import KINDS, ROOT, Account, Budget
from memwatch.core.clock import Clock
from memwatch.core.helper.codec import DecodeError, from_packed, to_packed
from memwatch.core.linux.accounts import Accounts
from memwatch.core.printable import describe_error
from memwatch.reporting.incidents.records import Incident
from memwatch_monitor.alerts.rules import KERNEL
from memwatch_monitor.history.ring_file import RingContents, Stamp, boot_bytes, file_time, open_ring

# A part of the file: those that others would overwrite there are written again.
MAX_BYTES = 384 << 10
# Account of the incidents that begin with the mark of a program.
PROGRAMS = Account("programs")
# An incident counts as recent for this long after its last change: for three scrapes, also at one a minute.
RECENT_SECONDS = 300.0


def pack(incident: Incident) -> bytes:
    """Encode an incident as compressed bytes, some thousand."""
    return to_packed(incident, 6)


def unpack(data: bytes) -> Incident:
    """Decode an incident. Raises DecodeError for anything else."""
    return from_packed(Incident, data)


def weigh(incident: Incident) -> int:
    """Return the bytes that were killed. What no user can cause alone weighs as much as the machine has."""
    if incident.kind in ("gpu_lost", "wedge", "unclean_end"):
        return incident.size_bytes or 0
    return sum(one.known_bytes for one in incident.victims)


def head_of(incident: Incident) -> Incident:
    """Return the incident without its timeline and samples."""
    return replace(incident, timeline=(), samples=(), gpu_holders=())


class IncidentLog:
    """The incidents that are kept, in the order of their beginning. Thread-safe.

    Of each account the smallest go: those that killed fewest bytes. `account_of` a cgroup.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        account_of: Callable[[str], Account] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget if budget is not None else Budget(KINDS["incidents_kept"])
        self._account_of = account_of or Accounts(Path("/")).of_cgroup
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._heads: dict[str, Incident] = {}
        self._data: dict[str, bytes] = {}
        self._changed: tuple[str, float] = ("", 0.0)

    def put(self, incident: Incident, data: bytes | None = None) -> bytes:
        """Add an incident, or replace its earlier state. Return its encoding."""
        packed = pack(incident) if data is None else data
        with self._lock:
            verdict = self._budget.admit(incident.id, self._find_account(incident), weigh(incident))
            if not verdict.is_admitted:
                return packed
            if verdict.gone is not None:
                self._drop(str(verdict.gone))
            self._heads[incident.id] = head_of(incident)
            self._data[incident.id] = packed
            self._changed = incident.id, self._monotonic()
            while sum(map(len, self._data.values())) > MAX_BYTES:
                self._drop(str(self._budget.drop_next()))
        return packed

    def packed(self) -> dict[str, bytes]:
        """Return the encoding of each incident, by id."""
        with self._lock:
            return dict(self._data)

    def _drop(self, incident_id: str) -> None:
        del self._data[incident_id], self._heads[incident_id]

    def _find_account(self, incident: Incident) -> Account:
        if incident.target.startswith("/"):
            return self._account_of(incident.target)
        return PROGRAMS if incident.kind == "program" else ROOT

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Add incidents of earlier runs. None of them is recent."""
        for incident in incidents:
            self.put(incident)
        self._budget.reset_counts()  # the file has incidents that were dropped before
        self._changed = "", 0.0

    def heads(self) -> list[Incident]:
        """Return the incidents without timelines, newest first."""
        with self._lock:
            return sorted(self._heads.values(), key=lambda one: (one.began, one.id), reverse=True)

    def find_head(self, incident_id: str) -> Incident | None:
        """Return an incident without its timeline, None if there is none with that id."""
        with self._lock:
            return self._heads.get(incident_id)

    def find(self, incident_id: str) -> Incident | None:
        """Return the whole incident, None if there is none with that id."""
        with self._lock:
            data = self._data.get(incident_id)
        return None if data is None else unpack(data)

    def recent(self) -> list[Incident]:
        """Return the incidents that last, and the one that changed last within RECENT_SECONDS."""
        with self._lock:
            changed, at = self._changed
            latest = changed if self._monotonic() - at < RECENT_SECONDS else ""
            return [one for one in self._heads.values() if one.ended is None or one.id == latest]

    def current_id(self, target: str) -> str | None:
        """Return the id of the incident that a target is in now. The kernel kills in any."""
        with self._lock:
            found = [one for one in self._heads.values() if one.ended is None]
        about = [one.id for one in found if target in (one.target, KERNEL)]
        return about[-1] if about else None


log: logging.Logger = logging.getLogger(__name__)

FILE = "incidents.ring"
SIZE_BYTES = 1 << 20
# A record is written again when others have taken this much since. With MAX_BYTES, that is less than the file.
REWRITE_BYTES = 384 << 10
INCIDENT = 1


class IncidentStore:
    """Writer of the file of incidents. `put` only queues: it never waits for the disk. Thread-safe.

    Raises OSError if the file cannot be opened. A failure to write is logged once; later records are tried again.
    """

    def __init__(self, folder: Path, clock: Clock, boot_id: str, size_bytes: int = SIZE_BYTES) -> None:
        self._path = folder / FILE
        self._ring, self._contents, renamed = open_ring(self._path, size_bytes, file_time(clock.wall()))
        if renamed is not None:
            log.warning("%s", renamed.sentence)
        self._clock = clock
        self._boot = boot_bytes(boot_id)
        self._run = 1 + max((record.stamp.run for record in self._contents.records), default=0)
        self._waiting: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._kept: Callable[[], Mapping[str, bytes]] = dict
        self._appended_bytes = 0
        self._written_at: dict[str, int] = {}
        self._complaint = ""
        self._thread = threading.Thread(target=self._write_until_stopped, name="incidents", daemon=True)

    def load(self) -> list[Incident]:
        """Return the latest state of each incident, oldest first. Those of another version are left out."""
        found: dict[str, Incident] = {}
        for record in self._contents.records:
            try:
                incident = unpack(self._ring.payload(record))
            except DecodeError:
                continue
            found.pop(incident.id, None)
            found[incident.id] = incident
        if self._contents.lost:
            log.warning("%s lost %d records", self._path, self._contents.lost)
        return list(found.values())

    def start(self, kept: Callable[[], Mapping[str, bytes]] = dict) -> None:
        """Start to write. `kept`: the incidents that newer ones must not overwrite, by id."""
        self._kept = kept
        self._written_at = dict.fromkeys(kept(), -REWRITE_BYTES)
        self._thread.start()

    def put(self, incident_id: str, data: bytes) -> None:
        """Queue the state of an incident. A later state replaces one that still waits."""
        with self._changed:
            self._waiting.pop(incident_id, None)
            self._waiting[incident_id] = data
            self._changed.notify_all()

    def stop(self, seconds: float = 0.7) -> None:
        """Write what waits, for at most `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if not self._thread.is_alive():
            self._ring.close()

    def _write_until_stopped(self) -> None:
        self._try(self._prepare)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
                waiting, self._waiting = self._waiting, {}
                stopping = self._stopping
            for incident_id, data in waiting.items():
                self._try(partial(self._append, incident_id, data))
                self._try(self._write_again)
            if stopping:
                return

    def _prepare(self) -> None:
        self._ring.prepare(self._contents)
        self._contents = RingContents()

    def _write_again(self) -> None:
        """Append the incidents that are kept, before newer ones overwrite them."""
        kept = self._kept()
        self._written_at = {one: at for one, at in self._written_at.items() if one in kept}
        for incident_id, data in kept.items():
            if self._appended_bytes - self._written_at.get(incident_id, self._appended_bytes) >= REWRITE_BYTES:
                self._append(incident_id, data)

    def _append(self, incident_id: str, data: bytes) -> None:
        if not self._ring.ready:
            self._prepare()
        self._ring.append(INCIDENT, Stamp(self._run, self._clock.boottime(), self._clock.wall(), self._boot), data)
        self._ring.sync()
        self._appended_bytes += len(data)
        self._written_at[incident_id] = self._appended_bytes

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            complaint = f"cannot write incidents to {self._path}: {describe_error(error)}"
            if complaint != self._complaint:
                log.warning("%s; they are kept in memory", complaint)
            self._complaint = complaint
        else:
            self._complaint = ""
