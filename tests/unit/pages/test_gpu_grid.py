"""Grid of many GPUs and bars of the largest processes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render.memory_map import build_maps, split_gpus
from memwatch_web.pages.overview import MAX_HOLDERS, find_top_holders
from memwatch_web.pages.processes import sort_places, sum_devices
from support.sample_parts import GIB, vram
from support.sample_snapshots import critical_gb10, discrete_gpu


def with_gpus(count: int, *levels: Level) -> Snapshot:
    base = discrete_gpu()
    cards = tuple(vram(f"gpu{n}", f"VRAM {n}", size=80 * GIB, used=70 * GIB, reserved=0) for n in range(count))
    verdicts = tuple(Pressure(card.id, level, level, 0.9) for card, level in zip(cards, levels, strict=False))
    return replace(base, pools=(base.pools[0], *cards), shares=(), devices=(), pressure=verdicts)


@pytest.mark.parametrize(("count", "cells"), [(2, 0), (3, 3), (8, 8)])
def test_grid_begins_with_three_gpus(count: int, cells: int) -> None:
    snapshot = with_gpus(count)

    gpus, others = split_gpus(build_maps(snapshot, {}))

    assert len(gpus) == cells
    assert len(others) == 1 + count - cells


def test_bar_of_a_process_has_gpu_memory_then_its_resident_set() -> None:
    """The largest footprint fills the width."""
    snapshot = critical_gb10()
    largest = find_top_holders(snapshot, [ProcessGrowth(snapshot.processes[0], 0, 0, 600, 5 * GIB, True)])[0]

    assert [part.holder for part in largest.bar] == ["gpu", "processes"]
    assert largest.bar[0].start + largest.bar[0].width == largest.bar[1].start
    assert largest.bar[1].start + largest.bar[1].width == pytest.approx(1.0)
    assert (largest.grown_bytes, largest.whole) == (5 * GIB, True)


def test_process_that_was_read_once_has_no_growth() -> None:
    """It is older than the daemon: 0 would say that it does not grow."""
    snapshot = critical_gb10()
    once = ProcessGrowth(snapshot.processes[0], 600, 5 * GIB, 600, 5 * GIB, whole=False)

    assert find_top_holders(snapshot, [once])[0].grown_bytes is Absent.NOT_AVAILABLE


def test_only_the_largest_processes_are_listed() -> None:
    base = critical_gb10()
    many = tuple(replace(base.processes[0], pid=pid, name=f"server-{pid}") for pid in range(1, 30))

    assert len(find_top_holders(replace(base, processes=many), ())) == MAX_HOLDERS


def test_unknown_gpu_memory_is_not_summed() -> None:
    assert sum_devices({}) is None
    assert sum_devices({"a": 1, "b": 2}) == 3
    assert sum_devices({"a": 1, "b": Absent.NOT_PERMITTED}) is Absent.NOT_PERMITTED
    assert sort_places({"a": Absent.STALE, "b": 2, "c": 3}) == (("c", 3), ("b", 2), ("a", Absent.STALE))
