"""The CPU backend: always available, with System RAM."""

from __future__ import annotations

from memwatch.core.backends.devices import read_system_ram
from memwatch.core.backends.model import Backend, BackendDevice
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.snapshot import Snapshot


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    size, room = read_system_ram(snapshot)
    device = BackendDevice(
        id=None,
        name=evidence.cpu,
        kind="cpu",
        size_bytes=size,
        headroom_bytes=room,
        unified=True,
    )
    return Backend("cpu", "CPU", True, "always available", (device,))
