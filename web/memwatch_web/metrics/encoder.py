"""Metric families that are built, and rendered, only as far as they changed since the last scrape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, NamedTuple, cast

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import RowFamily

Encode = Callable[[Collector], bytes]
figure_text: Callable[[float], str] = floatToGoString
# As every encoder writes the figure 0.
ZERO = "0.0"
Row = tuple[Hashable, float]


class Rendered(NamedTuple):
    """Text of a family, and what it was rendered from. `starts`: the line of each series up to its figure."""

    family: Metric
    kind: object
    rows: Sequence[Row]
    head: str
    starts: Mapping[Hashable, str]
    text: bytes


class Families(Collector):
    """Families for an encoder of prometheus-client."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class FamilyEncoder:
    """Encoder with the same output as one of prometheus-client. Not thread-safe.

    prometheus-client renders the head of each family, and each series once, with the figure 0. After that only
    figures are rendered, and none in a family whose figures are equal to the last ones.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._end = encode(Families(()))
        self._last: Mapping[str, Rendered] = {}

    def __call__(self, registry: Collector) -> bytes:
        families = [(family.name, self._render(family)) for family in registry.collect()]
        self._last = dict(families)
        return b"".join([one.text for _, one in families]) + self._end

    def _render(self, family: Metric) -> Rendered:
        last = self._last.get(family.name)
        if last is not None and last.family is family:
            return last
        kind: object
        rows: Sequence[Row]
        if isinstance(family, RowFamily):
            kind, rows = (family.head, family.labels), family.rows
        else:
            kind = family.type, family.unit, family.documentation
            rows = [((one.name, *one.labels.items()), one.value) for one in family.samples]
        if last is None or last.kind != kind:
            head = self._render_samples(family, []).removesuffix("\n")
            last = Rendered(family, kind, (), head, {}, b"")
        if last.rows == rows:
            return last
        starts = self._find_starts(family, rows, last)
        lines = [f"{starts[key]}{figure_text(figure)}" for key, figure in rows]
        return Rendered(family, kind, rows, last.head, starts, "\n".join([last.head, *lines, ""]).encode())

    def _find_starts(self, family: Metric, rows: Sequence[Row], last: Rendered) -> Mapping[Hashable, str]:
        """Return the lines of all series up to their figures. Those of new series are rendered."""
        new = {row[0]: place for place, row in enumerate(rows) if row[0] not in last.starts}
        if not new and len(last.starts) == len(rows):
            return last.starts
        found: Mapping[Hashable, str] = {}
        if new:
            samples = [family.samples[place]._replace(value=0.0) for place in new.values()]
            lines = self._render_samples(family, samples)[len(last.head) :].split("\n")[1:-1]
            found = {key: line.removesuffix(ZERO) for key, line in zip(new, lines, strict=True)}
        return {key: found.get(key) or last.starts[key] for key, _ in rows}

    def _render_samples(self, family: Metric, samples: list[Sample]) -> str:
        """Return the text of this family with other samples."""
        other = copy(family)
        other.samples = samples
        return self._encode(Families((other,))).removesuffix(self._end).decode()


class ReadParts:
    """A snapshot that records which of its parts are read."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.parts: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  a part of the snapshot
        value = self.parts[name] = getattr(self._snapshot, name)
        return value


class Built(NamedTuple):
    """Families, the other arguments they were built with, and the parts of the snapshot that were read for them."""

    given: Sequence[object]
    read: Callable[[Snapshot], object]
    parts: object
    families: Sequence[Metric]


class SteadyFamilies:
    """The families of functions that read nothing but the snapshot and their arguments."""

    def __init__(self) -> None:
        self._built: dict[Callable[..., Iterable[Metric]], Built] = {}

    def build(self, build: Callable[..., Iterable[Metric]], snapshot: Snapshot, *given: object) -> Sequence[Metric]:
        """Return the families of `build(snapshot, *given)`; those of the last call if all that it read is equal."""
        last = self._built.get(build)
        if last is not None and last.given == given and last.read(snapshot) == last.parts:
            return last.families
        reader = ReadParts(snapshot)
        families = tuple(build(cast("Snapshot", reader), *given))
        read = attrgetter(*reader.parts) if reader.parts else _read_nothing
        self._built[build] = Built(given, read, read(snapshot), families)
        return families


def _read_nothing(_snapshot: Snapshot) -> None:
    """Stand for the parts of a snapshot where none was read."""
