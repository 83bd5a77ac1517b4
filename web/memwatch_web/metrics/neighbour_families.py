"""Metrics of the machines that this one follows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import gauge

LABELS = ("neighbour",)


def neighbour_families(snapshot: Snapshot) -> Iterator[Metric]:
    up = [((one.name,), int(one.state == "up")) for one in snapshot.neighbours]
    yield gauge("neighbour_up", "1 if a neighbour sends ticks, else 0.", up, LABELS)
    times = [((one.name,), one.last_tick_unix) for one in snapshot.neighbours]
    text = "Time of the last tick of a neighbour by its own clock, in Unix seconds."
    yield gauge("neighbour_last_tick_timestamp_seconds", text, times, LABELS)
