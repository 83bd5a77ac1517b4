"""Metric families from rows of label values and a figure. Unknown figures have no sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from memwatch.model import Absent

PREFIX = "memwatch_"

Value = float | int | Absent
Row = tuple[Sequence[str], Value]


def gauge(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    return _fill(GaugeMetricFamily(PREFIX + name, text, labels=labels), rows)


def counter(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    return _fill(CounterMetricFamily(PREFIX + name, text, labels=labels), rows)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, figure in rows:
        if not isinstance(figure, Absent):
            family.add_metric(values, figure)
    return family
