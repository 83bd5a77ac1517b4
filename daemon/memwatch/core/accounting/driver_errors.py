"""Assign driver errors in the kernel log to GPUs. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Device

# That of WSL is for all makers.
VENDORS = {"nvidia": "NVIDIA", "amdgpu": "AMD"}


def with_logged(devices: Sequence[Device], log: KernelLog) -> tuple[Device, ...]:
    """Return the devices with their errors from the log. Errors that NVML also counts are not counted twice."""
    if not log.driver_errors:
        return tuple(devices)
    by_device: dict[str, list[DriverError]] = {}
    for error in log.driver_errors:
        device = find_device(error, devices)
        if device is not None:
            by_device.setdefault(device.id, []).append(error)
    return tuple(_with(device, by_device[device.id]) if device.id in by_device else device for device in devices)


def unassigned_errors(devices: Sequence[Device], log: KernelLog) -> tuple[DriverError, ...]:
    """Return errors of a GPU that is not among the devices, or that do not name one of several GPUs."""
    return tuple(error for error in log.driver_errors if find_device(error, devices) is None)


def find_device(error: DriverError, devices: Sequence[Device]) -> Device | None:
    """Find the device by the PCI address in the line; without one, the driver's only device."""
    if error.pci:
        return next((one for one in devices if isinstance(one.pci, str) and same_slot(one.pci, error.pci)), None)
    vendor = VENDORS.get(error.driver)
    of_vendor = [one for one in devices if vendor in (None, one.vendor)]
    return of_vendor[0] if len(of_vendor) == 1 else None


def same_slot(one: str, other: str) -> bool:
    """Compare PCI slots: `00000000:65:00.0` is `0000:65:00`. Padding differs, and XIDs omit the function."""
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
