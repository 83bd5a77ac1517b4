"""The CPU backend: always available, with System RAM."""

from __future__ import annotations

from memwatch.backends.devices import system_ram_of
from memwatch.backends.model import Backend, BackendDevice
from memwatch.backends.probes import Evidence
from memwatch.snapshot import Snapshot


def backend_of(evidence: Evidence, snapshot: Snapshot) -> Backend:
    size, room = system_ram_of(snapshot)
    device = BackendDevice(
        id=None,
        name=evidence.cpu,
        kind="cpu",
        size_bytes=size,
        headroom_bytes=room,
        unified=True,
    )
    return Backend("cpu", "CPU", True, "always available", (device,))
