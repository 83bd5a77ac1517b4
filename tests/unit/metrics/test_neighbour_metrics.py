"""Metrics of the machines that this one follows."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.snapshot import NeighbourStatus
from memwatch_web.metrics.families import neighbour_families
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames


def test_neighbour_without_a_tick_is_down_and_has_no_time() -> None:
    up = NeighbourStatus("b", "up", "System RAM is OK", 0.4, last_tick_unix=1000.5)
    new = NeighbourStatus("c", "starting", "no answer yet", 3.0)
    snapshot = replace(next(read_frames(path_of("dgx-spark"))), neighbours=(up, new))

    samples = [sample for family in neighbour_families(snapshot) for sample in family.samples]

    assert [(one.name, one.labels["neighbour"], one.value) for one in samples] == [
        ("memwatch_neighbour_up", "b", 1.0),
        ("memwatch_neighbour_up", "c", 0.0),
        ("memwatch_neighbour_last_tick_timestamp_seconds", "b", 1000.5),
    ]
