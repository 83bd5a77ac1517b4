"""Grid of many GPUs and bars of the largest processes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render.memory_map import build_maps, split_gpus
from memwatch_web.pages.overview import MAX_HOLDERS, arrange, build_cells, find_top_holders
from memwatch_web.pages.processes import sort_places, sum_devices
from support.sample_parts import GIB, vram
from support.sample_snapshots import critical_gb10, discrete_gpu, mig_server


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


def test_worst_gpu_comes_first_and_the_others_keep_their_order() -> None:
    snapshot = with_gpus(4, Level.LOW, Level.HIGH, Level.CRITICAL, Level.HIGH)
    gpus, _ = split_gpus(build_maps(snapshot, {}))

    cells = build_cells(gpus, {one.target: one for one in snapshot.pressure}, ())

    assert [(cell.map.whole.id, cell.level) for cell in cells] == [
        ("gpu2", "critical"),
        ("gpu1", "high"),
        ("gpu3", "high"),
        ("gpu0", "low"),
    ]
    assert cells[0].note == "10.0 GiB available"


def test_cell_with_mig_instances_names_the_largest_free_one() -> None:
    """Its level is that of its worst instance."""
    snapshot = mig_server()
    _, card = build_maps(snapshot, {})

    (cell,) = build_cells([card], {one.target: one for one in snapshot.pressure}, snapshot.devices)

    assert (cell.level, cell.note) == ("critical", "1 critical · largest free slice 7.5 GiB")
    assert [device.id for device in cell.devices] == ["gpu0"]


def test_bar_of_a_process_has_gpu_memory_then_its_resident_set() -> None:
    """The largest footprint fills the width."""
    snapshot = critical_gb10()
    largest = find_top_holders(snapshot, [ProcessGrowth(snapshot.processes[0], 0, 0, 600, 5 * GIB, True)])[0]

    assert [part.holder for part in largest.bar] == ["gpu", "processes"]
    assert largest.bar[0].start + largest.bar[0].width == largest.bar[1].start
    assert largest.bar[1].start + largest.bar[1].width == pytest.approx(1.0)
    assert (largest.grown_bytes, largest.whole) == (5 * GIB, True)


def test_only_the_largest_processes_are_listed() -> None:
    base = critical_gb10()
    many = tuple(replace(base.processes[0], pid=pid) for pid in range(1, 30))

    assert len(find_top_holders(replace(base, processes=many), ())) == MAX_HOLDERS


def test_unknown_gpu_memory_is_not_summed() -> None:
    assert sum_devices({}) is None
    assert sum_devices({"a": 1, "b": 2}) == 3
    assert sum_devices({"a": 1, "b": Absent.NOT_PERMITTED}) is Absent.NOT_PERMITTED
    assert sort_places({"a": Absent.STALE, "b": 2, "c": 3}) == (("c", 3), ("b", 2), ("a", Absent.STALE))


def test_maps_of_gpus_stand_above_the_processes_as_far_as_they_fit() -> None:
    """Two cards fill the first screen: System RAM follows the chart and the processes."""
    above, below = arrange(build_maps(discrete_gpu(), {}))

    assert [one.whole.id for one in above] == [pool.id for pool in discrete_gpu().pools[1:]]
    assert [one.whole.id for one in below] == ["ram"]


def test_single_map_is_above_the_processes_whatever_its_height() -> None:
    base = mig_server()
    (ram, _) = base.pools
    many = tuple(replace(base.shares[2], id=f"slice{number}") for number in range(30))

    above, below = arrange(build_maps(replace(base, pools=(ram,), shares=many, devices=()), {}))

    assert (len(above), below) == (1, ())
