"""Metric families from rows of label values and a figure. Unknown figures have no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from memwatch.core.doc import Doc
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Family, Histogram

PREFIX = "memwatch_"
# OpenMetrics requires that the name of a family with a unit ends with it.
UNITS = ("bytes", "seconds", "ratio", "celsius", "watts", "hertz")

SUFFIXES = {"counter": "_total", "info": "_info"}

Value = float | int | Absent
Row = tuple[tuple[str, ...], Value]


class RowFamily(Metric):
    """Family whose samples have one name and the same labels. `rows`: their label values and figures.

    A scrape needs no `Sample`: they are built when `samples` is read.
    """

    def __init__(self, head: Metric, rows: list[tuple[tuple[str, ...], float]], labels: Sequence[str]) -> None:
        """`head`: name, type and text."""
        self.name, self.documentation, self.unit, self.type = head.name, head.documentation, head.unit, head.type
        self.head: Metric = head
        self.rows: list[tuple[tuple[str, ...], float]] = rows
        self.labels: Sequence[str] = labels

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as of any attribute
        if name != "samples":
            raise AttributeError(name)
        own = self.name + SUFFIXES.get(self.type, "")
        self.samples = [Sample(own, dict(zip(self.labels, key, strict=False)), figure) for key, figure in self.rows]
        return self.samples


@cache
def head_of(kind: str, name: str, text: str) -> Metric:
    """Return a family of this kind without samples."""
    return Metric(PREFIX + name, text, kind, "" if kind == "info" else unit_of(name))


def gauge(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    known = [(values, figure) for values, figure in rows if not isinstance(figure, Absent)]
    return RowFamily(head_of("gauge", name, text), known, labels)


def gauges(
    prefix: str,
    kind: type[Struct],
    fields: Iterable[str],
    rows: Sequence[tuple[tuple[str, ...], object]],
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
    known = [(values, figure) for values, figure in rows if not isinstance(figure, Absent)]
    return RowFamily(head_of("counter", name, text), known, labels)


def info(name: str, text: str, rows: Iterable[Sequence[str | Absent]], labels: Sequence[str]) -> Metric:
    """Return a family whose samples are 1. An unknown label is empty."""
    known = [(tuple(["" if isinstance(value, Absent) else value for value in values]), 1.0) for values in rows]
    return RowFamily(head_of("info", name, text), known, labels)


def histogram(
    name: str, text: str, found: Iterable[tuple[Sequence[str], Histogram]], labels: Sequence[str] = ()
) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels, unit=unit_of(name))
    for values, one in found:
        limits = (*map(floatToGoString, one.bounds), "+Inf")
        family.add_metric(values, list(zip(limits, one.cumulative(), strict=True)), one.total)
    return family


BUILDERS: Mapping[str, Callable[..., Metric]] = {
    "gauge": gauge,
    "counter": counter,
    "info": info,
    "histogram": histogram,
}


def build_family(family: Family) -> Metric:
    """Return a family of a feature."""
    return BUILDERS[family.kind](*family[1:])


def unit_of(name: str) -> str:
    """Return the unit at the end of a name, empty without one."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


def words(value: str | Absent | None) -> str:
    """Return the value of a label, empty if it is unknown or does not apply."""
    return value if isinstance(value, str) else ""


def find_devices(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the device of each pool and share that belongs to one.

    A device's own memory has the id of the device. System RAM belongs to no device, also if several use it.
    """
    devices = {device.id: device.id for device in snapshot.devices}
    return devices | {share.id: share.device for share in snapshot.shares if share.device}
