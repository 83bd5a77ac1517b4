"""Metric families that are built, and rendered, only as far as they changed since the last scrape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple, cast

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import RowFamily

Encode = Callable[[Collector], bytes]
# From this figure on, Go writes a mantissa.
MANTISSA = 1e6
# As every encoder writes the figure 0.
ZERO = "0.0"
Row = tuple[Hashable, float]


class Rendered(NamedTuple):
    """Text of a family, and what it was rendered from. `starts`: the line of each series up to its figure."""

    family: RowFamily
    kind: object
    rows: Sequence[Row]
    head: str
    starts: Mapping[Hashable, str]
    lines: Sequence[str]
    text: bytes


Group = Sequence[RowFamily]


_go_text: Callable[[float], str] = floatToGoString


def figure_text(figure: float) -> str:
    """Return a figure as Go writes it. Most are small, for which this takes a fourth of the calls."""
    return repr(float(figure)) if -MANTISSA < figure < MANTISSA else _go_text(figure)


class Families(Collector):
    """Families for an encoder of prometheus-client."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class RenderedGroup(NamedTuple):
    """Text of a group of families, and of each family in it."""

    group: Group
    families: Mapping[str, Rendered]
    text: bytes


NOTHING = RenderedGroup((), {}, b"")
NO_LINE: tuple[Row | None, str] = (None, "")


class FamilyEncoder:
    """Encoder with the same output as one of prometheus-client. Not thread-safe.

    prometheus-client renders the head of each family, and each series once, with the figure 0. After that only
    figures are rendered, none in a family whose figures are equal to the last ones, and no family of a group that
    is the last one.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._end = encode(Families(()))
        self._last: Sequence[RenderedGroup] = ()

    def __call__(self, groups: Iterable[Group]) -> bytes:
        """Return the text of the families that have samples. The place of a group finds its last text."""
        last = chain(self._last, repeat(NOTHING))
        self._last = [
            known if known.group is group else self._render_group(group, known.families)
            for group, known in zip(groups, last)  # noqa: B905  the last ones have no end
        ]
        return b"".join([one.text for one in self._last]) + self._end

    def _render_group(self, group: Group, last: Mapping[str, Rendered]) -> RenderedGroup:
        families = {one.head.name: self._render(one, last.get(one.head.name)) for one in group if one.rows}
        return RenderedGroup(group, families, b"".join([one.text for one in families.values()]))

    def _render(self, family: RowFamily, last: Rendered | None) -> Rendered:
        if last is not None and last.family is family:
            return last
        kind, rows = (family.head, family.labels), family.rows
        if last is None or last.kind != kind:
            head = self._render_samples(family, []).removesuffix("\n")
            last = Rendered(family, kind, (), head, {}, (), b"")
        if last.rows == rows:
            return last
        starts = self._find_starts(family, rows, last)
        # Most rows of a family are in the place of before, and many have the same figure.
        before = chain(zip(last.rows, last.lines, strict=True), repeat(NO_LINE))
        lines = [
            line if row == known else starts[row[0]] + figure_text(row[1])
            for row, (known, line) in zip(rows, before)  # noqa: B905  the last ones have no end
        ]
        return Rendered(family, kind, rows, last.head, starts, lines, "\n".join([last.head, *lines, ""]).encode())

    def _find_starts(self, family: RowFamily, rows: Sequence[Row], last: Rendered) -> Mapping[Hashable, str]:
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

    def _render_samples(self, family: RowFamily, samples: list[Sample]) -> str:
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
    families: Group


class SteadyFamilies:
    """The families of functions that read nothing but the snapshot and their arguments."""

    def __init__(self) -> None:
        self._built: dict[Callable[..., Iterable[RowFamily]], Built] = {}

    def build(self, build: Callable[..., Iterable[RowFamily]], snapshot: Snapshot, *given: object) -> Group:
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
