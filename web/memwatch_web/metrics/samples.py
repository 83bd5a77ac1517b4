"""Metric families from rows of label values and a figure. Unknown figures have no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import get_args, get_type_hints

from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from memwatch.core.doc import Doc
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Family, Histogram

PREFIX = "memwatch_"
# OpenMetrics requires that the name of a family with a unit ends with it.
UNITS = ("bytes", "seconds", "ratio", "celsius", "watts", "hertz")

Value = float | int | Absent
Row = tuple[Sequence[str], Value]


def gauge(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    return _fill(GaugeMetricFamily(PREFIX + name, text, labels=labels, unit=unit_of(name)), rows)


def gauges(
    prefix: str,
    kind: type[Struct],
    fields: Iterable[str],
    rows: Sequence[tuple[Sequence[str], object]],
    labels: Sequence[str] = (),
) -> Iterator[Metric]:
    """Yield a gauge for each of these fields of a record. `rows`: label values, and the record.

    The name of a family is that of the field after `prefix`, and its HELP is the `Doc` of the field.
    """
    texts = read_docs(kind)
    for name in fields:
        yield gauge(prefix + name, texts[name], [(values, getattr(one, name)) for values, one in rows], labels)


@cache
def read_docs(kind: type[Struct]) -> Mapping[str, str]:
    """Return the text of the `Doc` beside each field of a record that has one."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: one.text for name, hint in hints.items() for one in get_args(hint)[1:] if isinstance(one, Doc)}


def counter(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    return _fill(CounterMetricFamily(PREFIX + name, text, labels=labels, unit=unit_of(name)), rows)


def info(name: str, text: str, rows: Iterable[Sequence[str | Absent]], labels: Sequence[str]) -> Metric:
    """Return a family whose samples are 1. An unknown label is empty."""
    family = InfoMetricFamily(PREFIX + name, text, labels=labels)
    for values in rows:
        family.add_metric(["" if isinstance(value, Absent) else value for value in values], {})
    return family


def histogram(
    name: str, text: str, found: Iterable[tuple[Sequence[str], Histogram]], labels: Sequence[str] = ()
) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels, unit=unit_of(name))
    for values, one in found:
        limits = (*map(floatToGoString, one.bounds), "+Inf")
        family.add_metric(values, list(zip(limits, one.cumulative(), strict=True)), one.total)
    return family


def build_family(family: Family) -> Metric:
    """Return a family of a feature."""
    builders: Mapping[str, Callable[..., Metric]] = {
        "gauge": gauge,
        "counter": counter,
        "info": info,
        "histogram": histogram,
    }
    return builders[family.kind](*family[1:])


def unit_of(name: str) -> str:
    """Return the unit at the end of a name, empty without one."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


def _fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, figure in rows:
        if not isinstance(figure, Absent):
            family.add_metric(values, figure)
    return family


def words(value: str | Absent | None) -> str:
    """Return the value of a label, empty if it is unknown or does not apply."""
    return value if isinstance(value, str) else ""


def find_devices(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the device of each pool and share that belongs to one.

    A device's own memory has the id of the device. System RAM belongs to no device, also if several use it.
    """
    devices = {device.id: device.id for device in snapshot.devices}
    return devices | {share.id: share.device for share in snapshot.shares if share.device}
