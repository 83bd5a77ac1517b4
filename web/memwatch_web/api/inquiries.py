"""Slow queries: each runs once at a time, and concurrent requests share the result."""

from __future__ import annotations

from msgspec import Struct

from memwatch.backends.model import Backends
from memwatch.doctor.model import Examination
from memwatch.model import Process
from memwatch.processes.pss import Pss
from memwatch.snapshot import Snapshot
from memwatch_web.asgi.single_flight import SingleFlight


class Inquiries(Struct, frozen=True):
    """The slow queries: backends, doctor, and the PSS of a process."""

    backends: SingleFlight[Snapshot, Backends]
    doctor: SingleFlight[Snapshot, Examination]
    pss: SingleFlight[Process, Pss]

    def close(self) -> None:
        """Cancel all: waiting requests get an error at once."""
        self.backends.close()
        self.doctor.close()
        self.pss.close()
