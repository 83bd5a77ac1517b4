"""Common code of GPU vendors' backends: working devices, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.core.backends.devices import describe_state
from memwatch.core.backends.model import BackendDevice
from memwatch.core.model import Absent, Device
from memwatch.core.snapshot import CollectorStatus, Snapshot

Availability = tuple[bool | Absent, str]


def working(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.state == "ok"]


def unusable(devices: Sequence[Device], collectors: Sequence[str], snapshot: Snapshot) -> Availability:
    """Return the verdict if no known device works: absent for a stalled collector, False for lost devices."""
    states = ", ".join(f"{device.id} {describe_state(device)}" for device in devices)
    troubled = [one for one in snapshot.collectors if one.name in collectors and one.error]
    # A failing collector explains more than an unavailable one, which may never have worked.
    troubled.sort(key=lambda one: one.state == "unavailable")
    why = f": {troubled[0].error}" if troubled else ""
    silent = any(device.state == "stalled" for device in devices)
    return (Absent.STALE if silent else False), states + why


def not_found(collector: str, maker: str, snapshot: Snapshot) -> Availability:
    """Return the verdict if no device of a vendor is listed, from the state of its collector."""
    status = next((one for one in snapshot.collectors if one.name == collector), None)
    if status is None:
        return Absent.NOT_AVAILABLE, f"unknown: the collector {collector} for {maker} GPUs is not running"
    if status.state == "unavailable":
        return False, status.error or f"no {maker} GPU was found"
    if status.state == "ok":
        return False, f"the driver lists no {maker} GPU"
    return Absent.NOT_AVAILABLE, _silence(status)


def _silence(status: CollectorStatus) -> str:
    if status.state == "starting":
        return f"not known yet: the collector {status.name} is starting"
    return f"unknown: the collector {status.name} is {status.state}: {status.error}"


def list_drivers(devices: Sequence[Device]) -> list[str]:
    """Return the driver versions of these devices, if known."""
    return [f"driver {one}" for one in sorted({one.driver for one in devices if isinstance(one.driver, str)})]


def join_names(devices: Sequence[BackendDevice]) -> str:
    return ", ".join(dict.fromkeys(device.name for device in devices))
