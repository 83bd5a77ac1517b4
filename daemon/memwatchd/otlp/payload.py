"""Metric families as OTLP metrics of the SDK: under memwatchd's names, and under the conventional ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import cast

from msgspec import Struct
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

from memwatchd.otlp.conventions import Instrument, conventions_for

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
