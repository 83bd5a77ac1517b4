"""Devices of pools and shares."""

from __future__ import annotations

from collections.abc import Mapping

from memwatch.core.snapshot import Snapshot


def find_devices(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the device of each pool and share that belongs to one.

    A device's own memory has the id of the device. System RAM belongs to no device, also if several use it.
    """
    devices = {device.id: device.id for device in snapshot.devices}
    return devices | {share.id: share.device for share in snapshot.shares if share.device}
