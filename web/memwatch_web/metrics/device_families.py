"""Metrics of devices: identity, headroom, utilization, sensors, errors."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from memwatch.core.accounting.driver_errors import unassigned_errors
from memwatch.core.model import STALLED, Absent
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import counter, gauge, info


def device_families(snapshot: Snapshot) -> Iterator[Metric]:
    names = ("device", "vendor", "name", "uuid", "pci", "driver", "architecture")
    rows = [(d.id, d.vendor, d.name, d.uuid, d.pci, d.driver, d.architecture.value) for d in snapshot.devices]
    yield info("device", "Identity of a device.", rows, names)
    up = [((one.id,), int(one.state == "ok")) for one in snapshot.devices if one.state != STALLED]
    text = "1 if a device responds, 0 if it is lost, missing or needs a reset; absent if its collector is stalled."
    yield gauge("device_up", text, up, ("device",))
    room = [((device.id,), device.headroom_bytes) for device in snapshot.devices]
    text = "Memory that can be allocated on a device now, in bytes."
    yield gauge("device_headroom_bytes", text, room, ("device",))
    certain = [((device.id,), device.headroom_certain_bytes) for device in snapshot.devices]
    text = "Part of the headroom of a device that is free without reclaiming page cache, in bytes."
    yield gauge("device_headroom_certain_bytes", text, certain, ("device",))
    frees = [((device.id, api), size) for device in snapshot.devices for api, size in device.api_free_bytes.items()]
    yield gauge(
        "device_api_free_bytes",
        "Free memory of a device in bytes, as reported by an API such as CUDA.",
        frees,
        ("device", "api"),
    )
    complete = [
        ((device.id,), int(device.process_list == "complete"))
        for device in snapshot.devices
        if isinstance(device.process_list, str)
    ]
    text = "1 if all processes that hold memory of a device are visible, 0 if some are hidden."
    yield gauge("device_process_list_complete", text, complete, ("device",))
    busy = [((device.id,), device.busy_ratio) for device in snapshot.devices]
    yield gauge("device_busy_ratio", "Fraction of time a device was busy, 0–1.", busy, ("device",))
    moving = [((device.id,), device.memory_busy_ratio) for device in snapshot.devices]
    yield gauge(
        "device_memory_busy_ratio",
        "Fraction of time the memory of a device was read or written, 0–1.",
        moving,
        ("device",),
    )
    yield from vital_families(snapshot)
    yield from driver_error_families(snapshot)


def vital_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield temperature, power, clocks and throttling of devices."""
    devices = snapshot.devices
    temperatures = [((device.id,), device.temperature_celsius) for device in devices]
    text = "Temperature of a device in degrees Celsius."
    yield gauge("device_temperature_celsius", text, temperatures, ("device",))
    power = [((device.id,), device.power_watts) for device in devices]
    yield gauge("device_power_watts", "Power of a device in watts.", power, ("device",))
    clocks = [
        ((device.id, name), hertz)
        for device in devices
        if not isinstance(device.clock_hertz, Absent)
        for name, hertz in device.clock_hertz.items()
    ]
    yield gauge("device_clock_hertz", "Frequency of a clock of a device in hertz.", clocks, ("device", "clock"))
    reasons = [
        ((device.id, reason), 1)
        for device in devices
        if not isinstance(device.throttled, Absent)
        for reason in device.throttled
    ]
    text = "1 for each reason that lowers the clocks of a device now."
    yield gauge("device_throttled", text, reasons, ("device", "reason"))


def driver_error_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("device", "kind")
    log = snapshot.kernel_log
    others = () if isinstance(log, Absent) else unassigned_errors(snapshot.devices, log)
    errors = [((device.id, kind), count) for device in snapshot.devices for kind, count in device.errors.items()]
    errors += [((one.place, one.kind), one.count) for one in others]
    yield counter("driver_memory_errors", "Total memory errors reported by a driver, by kind.", errors, labels)
    seen = [((device.id, kind), at) for device in snapshot.devices for kind, at in device.errors_seen_unix.items()]
    seen += [((one.place, one.kind), one.last_seen_unix) for one in others]
    text = "Unix time of the last memory error reported by a driver, by kind."
    yield gauge("driver_memory_error_last_seen_timestamp_seconds", text, seen, labels)
