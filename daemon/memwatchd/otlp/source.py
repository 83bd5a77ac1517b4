"""The payload of the latest snapshot, with the attributes of machine and devices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from memwatch.build_info import __version__
from memwatch.core.model import Device
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.samples import PREFIX, words

# Metric families as OTLP metrics of the SDK: under memwatchd's names, and under the conventional ones.

# Names of OpenTelemetry's semantic conventions for metrics of memwatchd: `hw.*` and `system.*`.
#
# The conventions describe GPUs with memory of their own. A GPU that uses System RAM has no `hw.gpu.memory.*`.

Instrument = Literal["counter", "gauge", "updowncounter"]
Labels = Mapping[str, str]

ANY_DEVICE = {"device": ".+"}
SYSTEM_RAM = {"kind": "system_ram"}
GPU = {"hw.type": "gpu"}


class Convention(Struct, frozen=True, kw_only=True):
    """A metric by its conventional name. `where`: a regular expression for each label that must match as a whole.

    `attributes` are those of the labels that are kept, by label; `fixed` attributes are the same for all series.
    """

    source: str
    name: str
    unit: str
    instrument: Instrument
    where: Labels = {}
    attributes: Labels = {}
    fixed: Labels = {}

    def selects(self, labels: Labels) -> bool:
        return all(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in self.where.items())

    def attributes_of(self, labels: Labels) -> dict[str, str]:
        return {attribute: labels[label] for label, attribute in self.attributes.items()} | dict(self.fixed)


def _of_device(source: str, name: str, unit: str, instrument: Instrument, fixed: Labels = GPU) -> Convention:
    return Convention(
        source=PREFIX + source,
        name=name,
        unit=unit,
        instrument=instrument,
        where=ANY_DEVICE,
        attributes={"device": "hw.id"},
        fixed=fixed,
    )


def _of_errors(kind: str, error_type: str) -> Convention:
    fixed = {**GPU, "error.type": error_type}
    found = _of_device("driver_memory_errors_total", "hw.errors", "{error}", "counter", fixed)
    return replace(found, where={**ANY_DEVICE, "kind": kind})


def _of_memory(source: str, name: str, where: Labels, state: str = "") -> Convention:
    fixed = {"system.memory.state": state} if state else {}
    return Convention(
        source=PREFIX + source, name=name, unit="By", instrument="updowncounter", where=where, fixed=fixed
    )


CONVENTIONS: tuple[Convention, ...] = (
    _of_device("pool_size_bytes", "hw.gpu.memory.limit", "By", "updowncounter"),
    _of_device("pool_used_bytes", "hw.gpu.memory.usage", "By", "updowncounter"),
    _of_device("device_busy_ratio", "hw.gpu.utilization", "1", "gauge"),
    _of_device("device_temperature_celsius", "hw.temperature", "Cel", "gauge", {}),
    _of_device("device_power_watts", "hw.power", "W", "gauge"),
    _of_errors("ecc_corrected", "corrected"),
    _of_errors("ecc_uncorrected", "uncorrected"),
    _of_memory("pool_size_bytes", "system.memory.limit", SYSTEM_RAM),
    _of_memory("pool_used_bytes", "system.memory.usage", SYSTEM_RAM, "used"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": "ram", "content": "page_cache"}, "cached"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": "ram", "content": "free"}, "free"),
    _of_memory("pool_available_bytes", "system.memory.linux.available", SYSTEM_RAM),
    Convention(
        source=PREFIX + "swap_used_bytes",
        name="system.paging.usage",
        unit="By",
        instrument="updowncounter",
        fixed={"system.paging.state": "used"},
    ),
)


def conventions_for(source: str) -> Iterator[Convention]:
    """Yield the conventional names of a metric's samples, none for most."""
    return (one for one in CONVENTIONS if one.source == source)


CUMULATIVE = AggregationTemporality.CUMULATIVE
UCUM = {"bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "hertz": "Hz"}
INSTRUMENTS: Mapping[str, Instrument] = {"counter": "counter", "gauge": "gauge", "info": "gauge"}
LIMIT_LABEL = "le"
# Optional in OTLP, and encoded as such; the SDK's types say float.
NOT_KNOWN = cast("float", None)

Attributes = dict[str, str]
Point = tuple[Attributes, float]


class Span(Struct, frozen=True):
    """Times of the samples in nanoseconds: the first push, from which totals count, and the snapshot."""

    start: int
    time: int


def build_payload(
    families: Iterable[Family], span: Span, resource: Mapping[str, str], devices: Mapping[str, Attributes]
) -> MetricsData:
    """Return everything that one push sends. `devices`: attributes of each device, by its id."""
    version = resource.get("service.version", "")
    known = list(families)
    metrics = [*own_metrics(known, span), *conventional_metrics(known, span, devices)]
    scope = ScopeMetrics(InstrumentationScope("memwatchd", version), metrics, "")
    return MetricsData([ResourceMetrics(Resource(dict(resource)), [scope], "")])


def own_metrics(families: Iterable[Family], span: Span) -> Iterator[Metric]:
    """Yield metrics with the names and labels of /metrics. As in Prometheus, an empty label is no label."""
    for family in families:
        unit = UCUM.get(family.unit, "")
        if family.type == "histogram":
            yield _histogram(family, unit, span)
        elif family.samples:
            points = [(_attributes(one), one.value) for one in family.samples]
            name = family.samples[0].name
            yield _metric(name, family.documentation, unit, INSTRUMENTS[family.type], points, span)


def conventional_metrics(
    families: Iterable[Family], span: Span, devices: Mapping[str, Attributes]
) -> Iterator[Metric]:
    """Yield metrics with the names of the semantic conventions, one metric for each name."""
    found: dict[str, tuple[str, Instrument, list[Point]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        for rule in conventions_for(sample.name):
            if rule.selects(sample.labels):
                attributes = rule.attributes_of(sample.labels)
                attributes |= devices.get(attributes.get("hw.id", ""), {})
                found.setdefault(rule.name, (rule.unit, rule.instrument, []))[2].append((attributes, sample.value))
    for name, (unit, instrument, points) in found.items():
        yield _metric(name, "", unit, instrument, points, span)


def _metric(name: str, text: str, unit: str, instrument: Instrument, points: Iterable[Point], span: Span) -> Metric:
    start = None if instrument == "gauge" else span.start
    data = [NumberDataPoint(attributes, start or 0, span.time, value) for attributes, value in points]
    if instrument == "gauge":
        return Metric(name, text, unit, Gauge(data))
    return Metric(name, text, unit, Sum(data, CUMULATIVE, is_monotonic=instrument == "counter"))


def _histogram(family: Family, unit: str, span: Span) -> Metric:
    rows = groupby(family.samples, key=lambda one: {**one.labels, LIMIT_LABEL: ""})
    points = [_histogram_point(list(samples), span) for _, samples in rows]
    return Metric(family.name, family.documentation, unit, Histogram(points, CUMULATIVE))


def _histogram_point(samples: list[Sample], span: Span) -> HistogramDataPoint:
    """Return one series. Buckets count up in Prometheus, and each for itself in OTLP."""
    buckets = [(one.labels[LIMIT_LABEL], int(one.value)) for one in samples if LIMIT_LABEL in one.labels]
    counts = [count for _, count in buckets]
    total = next(one.value for one in samples if one.name.endswith("_sum"))
    return HistogramDataPoint(
        attributes={name: value for name, value in _attributes(samples[0]).items() if name != LIMIT_LABEL},
        start_time_unix_nano=span.start,
        time_unix_nano=span.time,
        count=counts[-1],
        sum=total,
        bucket_counts=[after - before for before, after in zip([0, *counts], counts, strict=False)],
        explicit_bounds=[float(limit) for limit, _ in buckets[:-1]],
        min=NOT_KNOWN,
        max=NOT_KNOWN,
    )


def _attributes(sample: Sample) -> Attributes:
    return {name: value for name, value in sample.labels.items() if value}


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
