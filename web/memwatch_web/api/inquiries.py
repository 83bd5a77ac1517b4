"""Slow queries: each runs once at a time, and concurrent requests share the result."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from memwatch.core.backends.model import Backends
from memwatch.core.model import Absent, Process
from memwatch.core.processes.pss import Pss
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.doctor.model import Examination
from memwatch_web.asgi.threads import SingleFlight


class Inquiries(Struct, frozen=True):
    """The slow queries: backends, doctor, and the PSS of a process. `oom_score`: two small files, read at once."""

    backends: SingleFlight[Snapshot, Backends]
    doctor: SingleFlight[Snapshot, Examination]
    pss: SingleFlight[Process, Pss]
    oom_score: Callable[[Process], tuple[int, int] | Absent]

    def close(self) -> None:
        """Cancel all: waiting requests get an error at once."""
        self.backends.close()
        self.doctor.close()
        self.pss.close()
