"""Metrics of the highest use and the lowest available memory between scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.between_scrapes import RecentExtremes
from memwatch_web.metrics.places import find_devices
from memwatch_web.metrics.samples import Row, gauge

WINDOW = "1m"
POOL = ("pool", "kind", "device", "window")


def extreme_families(snapshot: Snapshot, recent: RecentExtremes) -> Iterator[Metric]:
    """Yield extremes of the last minute. A pool or device whose figure is unknown now has none."""
    found, devices = recent.extremes(snapshot.monotonic), find_devices(snapshot)
    used: list[Row] = []
    available: list[Row] = []
    for pool in snapshot.pools:
        if not isinstance(pool.used_bytes, Absent):
            key = (pool.id, pool.kind.value, devices.get(pool.id, ""), WINDOW)
            used.append((key, found.used.get(pool.id, pool.used_bytes)))
            available.append((key, found.available.get(pool.id, pool.available_bytes)))
    text = "Highest used memory of a pool in the window, in bytes."
    yield gauge("pool_used_bytes_max", text, used, POOL)
    text = "Lowest available memory of a pool in the window, in bytes."
    yield gauge("pool_available_bytes_min", text, available, POOL)
    room = [
        ((device.id, WINDOW), found.headroom.get(device.id, device.headroom_bytes))
        for device in snapshot.devices
        if not isinstance(device.headroom_bytes, Absent)
    ]
    text = "Lowest headroom of a device in the window, in bytes."
    yield gauge("device_headroom_bytes_min", text, room, ("device", "window"))
