"""The incidents of this and of earlier runs: a bounded number, encoded, with their heads decoded."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.monitor.incidents.records import Incident

MAX_INCIDENTS, MAX_BYTES = 100, 1 << 20
# Target of alerts about kills.
KERNEL = "kernel"
# An incident has some 30 kB.
MAX_UNPACKED_BYTES = 1 << 20
# An incident counts as recent for this long after its last change: for three scrapes, also at one a minute.
RECENT_SECONDS = 300.0


def pack(incident: Incident) -> bytes:
    """Encode an incident as compressed bytes, some thousand."""
    return zlib.compress(to_line(incident), 6)


def unpack(data: bytes) -> Incident:
    """Decode an incident. Raises DecodeError for anything else."""
    try:
        line = zlib.decompressobj().decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"not an incident: {error}") from None
    return from_line(Incident, line)


def head_of(incident: Incident) -> Incident:
    """Return the incident without its timeline and samples."""
    return replace(incident, timeline=(), samples=(), gpu_holders=())


class IncidentLog:
    """The latest incidents, newest last. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._heads: dict[str, Incident] = {}
        self._data: dict[str, bytes] = {}
        self._changed: tuple[str, float] = ("", 0.0)

    def put(self, incident: Incident, data: bytes | None = None) -> bytes:
        """Add an incident, or replace its earlier state. Return its encoding."""
        packed = pack(incident) if data is None else data
        with self._lock:
            self._heads[incident.id] = head_of(incident)
            self._data[incident.id] = packed
            self._changed = incident.id, self._monotonic()
            while len(self._data) > MAX_INCIDENTS or sum(map(len, self._data.values())) > MAX_BYTES:
                oldest = next(iter(self._data))
                del self._data[oldest], self._heads[oldest]
        return packed

    def restore(self, incidents: Iterable[Incident]) -> None:
        """Add incidents of earlier runs. None of them is recent."""
        for incident in incidents:
            self.put(incident)
        self._changed = "", 0.0

    def heads(self) -> list[Incident]:
        """Return the incidents without timelines, newest first."""
        with self._lock:
            return sorted(self._heads.values(), key=lambda one: (one.began, one.id), reverse=True)

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
