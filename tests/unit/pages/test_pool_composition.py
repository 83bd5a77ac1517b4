"""Composition of a pool over time: the layers add up to used memory."""

from __future__ import annotations

import pytest

from memwatch.core.model import ShareKind
from memwatch.reporting.render.memory_map import build_parts
from memwatch.reporting.render.past import build_layers, find_sources, split, split_now
from memwatch_monitor.history.series import collect_figures
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.sample_parts import GIB
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu


@pytest.mark.parametrize("sample", SAMPLES)
def test_layers_add_up_to_used_memory(sample: str) -> None:
    """The last layer is reclaimable memory, above it."""
    snapshot = SAMPLES[sample]()

    for pool in snapshot.pools:
        sizes = split_now(pool, snapshot)

        assert len(sizes) == len(build_layers(pool, find_sources(pool, snapshot.shares)))
        if isinstance(pool.used_bytes, int):
            assert sum(one or 0 for one in sizes[:-1]) == pytest.approx(pool.used_bytes)
        else:
            assert set(sizes) == {None}


def test_sources_are_series_of_the_history() -> None:
    snapshot = critical_gb10()
    sources = find_sources(snapshot.pools[0], snapshot.shares)

    assert set(sources.names) <= set(collect_figures(snapshot))
    assert sources.devices == ("share.cuda0.used_bytes",)


def test_shared_memory_of_a_gpu_is_the_lowest_layer() -> None:
    snapshot = critical_gb10()
    ram = snapshot.pools[0]

    holders = [layer.holder for layer in build_layers(ram, find_sources(ram, snapshot.shares))]

    assert holders == ["gpu", "processes", "unattributed", "reclaimable"]


def test_past_has_as_much_memory_of_devices_as_now() -> None:
    """Buffers of an NPU, which the kernel counts as memory of processes, were in the green of the past."""
    for snapshot in read_frames(path_of("strix-halo")):
        ram = snapshot.pools[0]
        devices = sum(part.size_bytes for part in build_parts(ram) if part.kind == "devices")

        assert any(share.kind is ShareKind.NPU_BUFFERS for share in snapshot.shares)
        assert split_now(ram, snapshot)[0] == pytest.approx(devices, abs=1 << 20)


def test_memory_of_a_card_is_held_by_the_gpu() -> None:
    snapshot = discrete_gpu()
    card = snapshot.pools[1]

    assert build_layers(card, find_sources(card, snapshot.shares))[0].holder == "gpu"
    assert find_sources(card, snapshot.shares).devices == ()


def test_share_larger_than_used_memory_is_cut() -> None:
    """Two series of one moment may be averages over different readings."""
    pool = critical_gb10().pools[0]

    assert split(pool, 10.0 * GIB, 5.0 * GIB, 1.0 * GIB, 2.0 * GIB, [20.0 * GIB]) == (
        8.0 * GIB,
        0.0,
        2.0 * GIB,
        4.0 * GIB,
    )


@pytest.mark.parametrize(("noise", "rest"), [(0.5, 0.0), (820.0, 0.0), (4095.0, 0.0), (4096.0, 4096.0)])
def test_part_below_a_page_is_the_rounding_of_means(noise: float, rest: float) -> None:
    """A legend had "unattributed 820 B" of a pool that is fully attributed. Its bytes stay within used memory."""
    ram, card = critical_gb10().pools[0], discrete_gpu().pools[1]

    assert split(card, 70.0 * GIB, 25.0 * GIB, 25.0 * GIB, noise, []) == (70.0 * GIB - rest, rest, 0.0)
    sizes = split(ram, 70.0 * GIB, 25.0 * GIB + noise, 25.0 * GIB, noise, [noise])
    assert sizes == (rest, 70.0 * GIB - 2 * rest, rest, rest)


def test_moment_without_data_has_no_layers() -> None:
    assert split(critical_gb10().pools[0], None, 1.0, 1.0, 1.0, [1.0]) == (None,) * 4
