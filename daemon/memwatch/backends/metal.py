"""The Metal backend: Apple GPUs, part of macOS."""

from __future__ import annotations

from memwatch.backends.devices import build_devices
from memwatch.backends.model import Backend
from memwatch.backends.probes import ProbeResults
from memwatch.model import Absent
from memwatch.snapshot import Snapshot

APPLE = "Apple"


def build_backend(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    devices = build_devices([device for device in snapshot.devices if device.vendor == APPLE], snapshot)
    if evidence.platform != "darwin":
        return Backend("metal", "Metal", False, "macOS only")
    if not devices:
        reason = "part of macOS, but no GPU was read"
        return Backend("metal", "Metal", Absent.NOT_AVAILABLE, reason)
    return Backend("metal", "Metal", True, "part of macOS", devices)
