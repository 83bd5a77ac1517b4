"""What the backends of GPU makers have in common: devices that work, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.backends.devices import condition_of
from memwatch.backends.model import BackendDevice
from memwatch.model import Absent, Device
from memwatch.snapshot import CollectorStatus, Snapshot

Verdict = tuple[bool | Absent, str]


def working(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.state == "ok"]


def out_of_order(devices: Sequence[Device], collectors: Sequence[str], snapshot: Snapshot) -> Verdict:
    """Devices are known, and none of them works: a silent collector says nothing, a lost device says no."""
    states = ", ".join(f"{device.id} {condition_of(device)}" for device in devices)
    troubled = [one for one in snapshot.collectors if one.name in collectors and one.error]
    # What fails now explains more than what is not there: it may never have been.
    troubled.sort(key=lambda one: one.state == "unavailable")
    why = f": {troubled[0].error}" if troubled else ""
    silent = any(device.state == "stalled" for device in devices)
    return (Absent.STALE if silent else False), states + why


def not_found(collector: str, maker: str, snapshot: Snapshot) -> Verdict:
    """No device of a maker is listed: what its collector says of that."""
    status = next((one for one in snapshot.collectors if one.name == collector), None)
    if status is None:
        return Absent.NOT_AVAILABLE, f"{maker} GPUs are not looked for: there is no collector {collector} at work"
    if status.state == "unavailable":
        return False, status.error or f"no {maker} GPU is here"
    if status.state == "ok":
        return False, f"the driver lists no {maker} GPU"
    return Absent.NOT_AVAILABLE, _silence(status)


def _silence(status: CollectorStatus) -> str:
    if status.state == "starting":
        return f"not known yet: collector {status.name} has not answered once"
    return f"not known: collector {status.name} is {status.state}: {status.error}"


def drivers_of(devices: Sequence[Device]) -> list[str]:
    """The drivers of these devices by their versions, as far as they say one."""
    return [f"driver {one}" for one in sorted({one.driver for one in devices if isinstance(one.driver, str)})]


def names_of(devices: Sequence[BackendDevice]) -> str:
    return ", ".join(dict.fromkeys(device.name for device in devices))
