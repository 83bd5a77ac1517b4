"""The CPU: always there, with System RAM."""

from __future__ import annotations

from memwatch.backends.evidence import Evidence
from memwatch.backends.model import Backend, BackendDevice
from memwatch.model import Absent, PoolKind
from memwatch.snapshot import Snapshot


def backend_of(evidence: Evidence, snapshot: Snapshot) -> Backend:
    ram = next((pool for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM), None)
    device = BackendDevice(
        id=None,
        name=evidence.cpu,
        kind="cpu",
        size_bytes=ram.size_bytes if ram else Absent.NOT_AVAILABLE,
        headroom_bytes=ram.available_bytes if ram else Absent.NOT_AVAILABLE,
        unified=True,
    )
    return Backend("cpu", "CPU", True, "every program can use it", (device,))
