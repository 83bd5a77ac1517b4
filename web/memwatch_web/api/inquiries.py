"""Questions that take longer than a request should: each is worked on once, for all who ask meanwhile."""

from __future__ import annotations

from msgspec import Struct

from memwatch.backends.model import Backends
from memwatch.doctor.model import Examination
from memwatch.model import Process
from memwatch.processes.pss import Pss
from memwatch.snapshot import Snapshot
from memwatch_web.asgi.single_flight import SingleFlight


class Inquiries(Struct, frozen=True):
    """Which backends can be used; what is seen of the machine and what is not; how much of a process is its own."""

    backends: SingleFlight[Snapshot, Backends]
    doctor: SingleFlight[Snapshot, Examination]
    pss: SingleFlight[Process, Pss]

    def close(self) -> None:
        """Whoever waits is answered at once that there will be no answer."""
        self.backends.close()
        self.doctor.close()
        self.pss.close()
