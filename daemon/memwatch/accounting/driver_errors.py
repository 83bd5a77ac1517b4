"""Whose GPU it was that a line of the kernel's log complained of. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from memwatch.kernel_log import DriverError, KernelLog
from memwatch.model import Device

VENDORS = {"nvidia": "NVIDIA", "amdgpu": "AMD"}


def with_logged(devices: Sequence[Device], log: KernelLog) -> tuple[Device, ...]:
    """The devices with what the log says of them. What the driver's library counted too is not counted twice."""
    if not log.driver_errors:
        return tuple(devices)
    by_device: dict[str, list[DriverError]] = {}
    for error in log.driver_errors:
        device = find_device(error, devices)
        if device is not None:
            by_device.setdefault(device.id, []).append(error)
    return tuple(_with(device, by_device[device.id]) if device.id in by_device else device for device in devices)


def unassigned_errors(devices: Sequence[Device], log: KernelLog) -> tuple[DriverError, ...]:
    """What was said of a GPU that is none of the devices, or without saying which of several."""
    return tuple(error for error in log.driver_errors if find_device(error, devices) is None)


def find_device(error: DriverError, devices: Sequence[Device]) -> Device | None:
    """By the PCI address in the line; where there is none, the only device of that driver's."""
    if error.pci:
        return next((one for one in devices if isinstance(one.pci, str) and same_slot(one.pci, error.pci)), None)
    of_vendor = [one for one in devices if one.vendor == VENDORS[error.driver]]
    return of_vendor[0] if len(of_vendor) == 1 else None


def same_slot(one: str, other: str) -> bool:
    """`00000000:65:00.0` and `0000:65:00`: domains are padded differently, and XIDs name no function."""
    return _slot(one) == _slot(other)


def _slot(address: str) -> tuple[str, ...]:
    domain, *rest = address.lower().split(".")[0].split(":")
    return (domain.lstrip("0"), *rest)


def _with(device: Device, errors: Iterable[DriverError]) -> Device:
    counts, seen = dict(device.errors), dict(device.errors_seen_unix)
    for error in errors:
        counts[error.kind] = max(error.count, counts.get(error.kind, 0))
        seen[error.kind] = max(error.last_seen_unix, seen.get(error.kind, 0.0))
    return replace(device, errors=counts, errors_seen_unix=seen)
