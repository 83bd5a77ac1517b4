"""Metric families from rows of label values and a figure. Unknown figures have no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from prometheus_client.core import Metric
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


HEAD = frozenset(("name", "documentation", "unit", "type"))
# Key of a sample, and its figure.
FigureRow = tuple[tuple[Any, ...], float]


class RowFamily(Metric):
    """Family whose samples have one name and the same labels. `rows`: their label values and figures.

    A scrape needs no `Sample`: they are built when `samples` is read.
    """

    def __init__(self, head: Metric, rows: list[FigureRow], labels: Sequence[str] = ()) -> None:
        """`head`: name, type and text."""
        self.head: Metric = head
        self.rows: list[FigureRow] = rows
        self.labels: Sequence[str] = labels

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as of any attribute
        if name == "samples":
            self.samples = [self.sample(key, figure) for key, figure in self.rows]
            return self.samples
        if name in HEAD:
            return getattr(self.head, name)
        raise AttributeError(name)

    def sample(self, key: tuple[Any, ...], figure: float) -> Sample:
        own = self.name + SUFFIXES.get(self.type, "")
        return Sample(own, dict(zip(self.labels, key, strict=False)), figure)


class PairFamily(RowFamily):
    """Family whose samples have different labels. A key has pairs of label and value."""

    def sample(self, key: tuple[Any, ...], figure: float) -> Sample:
        return Sample(self.name, dict(key), figure)


class HistogramFamily(RowFamily):
    """Histogram. A key has the suffix of the name, the label values and, of a bucket, its limit."""

    def sample(self, key: tuple[Any, ...], figure: float) -> Sample:
        suffix, *values = key
        return Sample(self.name + suffix, dict(zip((*self.labels, "le"), values, strict=False)), figure)


@cache
def head_of(kind: str, name: str, text: str) -> Metric:
    """Return a family of this kind without samples."""
    return Metric(PREFIX + name, text, kind, "" if kind == "info" else unit_of(name))


def gauge(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> RowFamily:
    known = [(values, figure) for values, figure in rows if not isinstance(figure, Absent)]
    return RowFamily(head_of("gauge", name, text), known, labels)


def gauges(
    prefix: str,
    kind: type[Struct],
    fields: Iterable[str],
    rows: Sequence[tuple[tuple[str, ...], object]],
    labels: Sequence[str] = (),
) -> Iterator[RowFamily]:
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


def counter(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> RowFamily:
    known = [(values, figure) for values, figure in rows if not isinstance(figure, Absent)]
    return RowFamily(head_of("counter", name, text), known, labels)


def info(name: str, text: str, rows: Iterable[Sequence[str | Absent]], labels: Sequence[str]) -> RowFamily:
    """Return a family whose samples are 1. An unknown label is empty."""
    known = [(tuple(["" if isinstance(value, Absent) else value for value in values]), 1.0) for values in rows]
    return RowFamily(head_of("info", name, text), known, labels)


def histogram(
    name: str, text: str, found: Iterable[tuple[Sequence[str], Histogram]], labels: Sequence[str] = ()
) -> RowFamily:
    rows: list[FigureRow] = []
    for values, one in found:
        counts = one.cumulative()
        rows += [
            (("_bucket", *values, limit), count) for limit, count in zip(limits_of(one.bounds), counts, strict=True)
        ]
        rows += [(("_count", *values), counts[-1]), (("_sum", *values), one.total)]
    return HistogramFamily(head_of("histogram", name, text), rows, labels)


@cache
def limits_of(bounds: tuple[float, ...]) -> Sequence[str]:
    """Return the upper limits of buckets as values of the label `le`."""
    return (*map(floatToGoString, bounds), "+Inf")


BUILDERS: Mapping[str, Callable[..., RowFamily]] = {
    "gauge": gauge,
    "counter": counter,
    "info": info,
    "histogram": histogram,
}


def build_family(family: Family) -> RowFamily:
    """Return a family of a feature."""
    return BUILDERS[family.kind](family.name, family.text, family.rows, family.labels)


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
