"""The payload of the latest snapshot, with the attributes of machine and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from opentelemetry.sdk.metrics.export import MetricsData

from memwatch.build_info import __version__
from memwatch.core.model import Device
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.samples import words
from memwatchd.otlp.payload import Attributes, Span, build_payload


class PayloadSource:
    """Payload of each new snapshot. Without a new one there is none, so that no old value looks like a new one."""

    def __init__(
        self, latest: Callable[[], Snapshot | None], exporter: Exporter, labels: Callable[[], Mapping[str, str]]
    ) -> None:
        self._latest, self._exporter, self._labels = latest, exporter, labels
        self._start = time.time_ns()
        self._last: Snapshot | None = None

    def __call__(self) -> MetricsData | None:
        snapshot = self._latest()
        if snapshot is None or snapshot is self._last:
            return None
        self._last = self._exporter.snapshot = snapshot
        span = Span(self._start, max(self._start, int(snapshot.unix * 1e9)))
        devices = {one.id: device_attributes(one) for one in snapshot.devices}
        return build_payload(self._exporter.collect(), span, resource_attributes(snapshot, self._labels()), devices)


def resource_attributes(snapshot: Snapshot, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of the machine and of memwatchd. Labels of [labels] are attributes by their own names."""
    return {
        **labels,
        "host.name": snapshot.host,
        "service.name": "memwatchd",
        "service.instance.id": snapshot.host,
        "service.version": __version__,
    }


def device_attributes(device: Device) -> Attributes:
    found = {
        "hw.name": words(device.name),
        "hw.vendor": words(device.vendor),
        "hw.driver_version": words(device.driver),
    }
    return {name: value for name, value in found.items() if value}
