"""Families that are built again only if a part of the snapshot that they are made of has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

from prometheus_client.core import Metric

from memwatch.core.snapshot import Snapshot


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
        read = attrgetter(*reader.parts)
        self._built[build] = Built(given, read, read(snapshot), families)
        return families
