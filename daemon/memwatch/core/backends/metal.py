"""The Metal backend: Apple GPUs, part of macOS."""

from __future__ import annotations

from memwatch.core.backends.devices import build_devices
from memwatch.core.backends.model import Backend
from memwatch.core.backends.probes import ProbeResults
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot

APPLE = "Apple"


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    devices = build_devices([device for device in snapshot.devices if device.vendor == APPLE], snapshot)
    if evidence.platform != "darwin":
        return Backend("metal", "Metal", False, "macOS only")
    if not devices:
        reason = "part of macOS, but no GPU was read"
        return Backend("metal", "Metal", Absent.NOT_AVAILABLE, reason)
    return Backend("metal", "Metal", True, "part of macOS", devices)
