"""Grouping and labels of history series on every kind of machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Pool, PoolKind, Quality, ShareKind
from memwatch_monitor.history.series import collect_figures
from memwatch_web.api.history_parameters import MAX_SERIES
from memwatch_web.pages.charts import COLOURS, DASHES, LEFT, build_charts, build_label, choose_chart, usual_series
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, discrete_gpu, mig_server


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_series_has_one_chart_and_a_label(sample: str) -> None:
    snapshot = SAMPLES[sample]()
    names = list(collect_figures(snapshot))

    charts = build_charts(names, snapshot)

    assert sorted(curve.name for chart in charts for curve in chart.curves) == sorted(names)
    assert all(curve.label for chart in charts for curve in chart.curves)
    assert len({chart.id for chart in charts}) == len(charts)


def test_cuda_pool_is_drawn_in_the_chart_of_system_ram() -> None:
    """One chart with used memory, the share, and the memory available to the GPU."""
    snapshot = critical_gb10()

    ram, pressure = build_charts(usual_series(list(collect_figures(snapshot)), snapshot), snapshot)

    labels = [curve.label for curve in ram.curves]
    assert labels == ["used", "CUDA Pool ⊂ System RAM", "can be allocated on NVIDIA GB10"]
    assert [curve.dash for curve in ram.curves] == [0, 0, 1]
    assert (ram.label, ram.top, ram.targets) == ("System RAM", snapshot.pools[0].size_bytes, ("ram",))
    assert (pressure.label, pressure.top) == ("Pressure", 1.0)


def test_each_discrete_gpu_has_a_chart() -> None:
    snapshot = discrete_gpu()

    charts = build_charts(usual_series(list(collect_figures(snapshot)), snapshot), snapshot)

    assert [chart.label for chart in charts] == ["System RAM", "GPU 0 VRAM", "GPU 1 VRAM", "Pressure"]
    assert [curve.label for curve in charts[0].curves] == ["used", "available"]


def test_both_bounds_of_a_headroom_are_stored_where_they_may_differ() -> None:
    """For VRAM they are one figure, which is stored once."""
    names = "device.gpu0.headroom_after_reclaim_bytes", "device.gpu0.headroom_bytes"

    assert collect_figures(critical_gb10()).keys() >= set(names)
    assert collect_figures(discrete_gpu()).keys() & set(names) == {names[1]}


def test_both_bounds_of_a_headroom_have_a_label() -> None:
    """Dashed, as they are available memory."""
    names = ["device.gpu0.headroom_after_reclaim_bytes", "device.gpu0.headroom_bytes"]

    (chart,) = build_charts(names, critical_gb10())

    assert [(curve.label, curve.dash) for curve in chart.curves] == [
        ("can be allocated on NVIDIA GB10", 1),
        ("can be allocated on NVIDIA GB10, without reclaim", 1),
    ]


def test_devices_of_one_name_are_told_apart() -> None:
    snapshot = critical_gb10()
    twins = replace(snapshot, devices=tuple(replace(snapshot.devices[0], id=f"gpu{number}") for number in range(2)))

    assert build_label("device.gpu1.headroom_bytes", twins).startswith("can be allocated on NVIDIA GB10 (gpu1)")


@pytest.mark.parametrize("sample", SAMPLES)
def test_available_memory_is_never_green_and_first_in_the_colour_of_text(sample: str) -> None:
    """That of System RAM was in the green of GPU memory, on whose area it was not seen."""
    snapshot = SAMPLES[sample]()

    for chart in build_charts(list(collect_figures(snapshot)), snapshot):
        left = [curve.colour for curve in chart.curves[:COLOURS] if curve.name.endswith(LEFT)]
        assert left == [0, 3, 4, 5, 6, 1][: len(left)]
        assert len({(curve.colour, curve.dash) for curve in chart.curves[:COLOURS]}) == len(chart.curves[:COLOURS])


def test_headroom_is_drawn_in_the_largest_pool_of_the_device() -> None:
    """The headroom of an APU is in system RAM, not in its small carve-out."""
    snapshot = critical_gb10()
    carve_out = Pool("carveout", PoolKind.CARVEOUT, "GPU carve-out", 512, 455, 57, "sysfs", Quality.MEASURED)
    gpu = replace(snapshot.devices[0], allocates_from=("carveout", "ram"))

    place = choose_chart(
        "device.gpu0.headroom_after_reclaim_bytes",
        replace(snapshot, pools=(*snapshot.pools, carve_out), devices=(gpu,)),
    )

    assert place == "ram"


def test_default_series_begin_with_the_pools() -> None:
    """A page draws the first ones, and counts the others."""
    snapshot = mig_server()
    instance = next(share for share in snapshot.shares if share.kind is ShareKind.MIG_INSTANCE)
    shares = tuple(replace(instance, id=f"gpu0.mig{number}") for number in range(30))
    many = replace(snapshot, shares=shares, devices=())

    usual = usual_series(list(collect_figures(many)), many)

    assert len(usual) > MAX_SERIES
    assert usual[: len(many.pools)] == [f"pool.{pool.id}.used_bytes" for pool in many.pools]


@pytest.mark.parametrize(
    ("name", "place", "label"),
    [
        ("pool.gpu7.used_bytes", "gpu7", "used"),
        ("share.gpu7.gtt.used_bytes", "bytes", "share.gpu7.gtt.used_bytes"),
        ("device.gpu7.headroom_after_reclaim_bytes", "bytes", "device.gpu7.headroom_after_reclaim_bytes"),
        ("pressure.gpu7.ratio", "pressure", "pressure.gpu7.ratio"),
        ("node.0.largest_free_block_bytes", "bytes", "largest free block, node 0"),
        ("swap.used_bytes", "swap", "used"),
        ("pressure.ram.seconds_to_full", "seconds", "time to full, System RAM"),
    ],
)
def test_series_of_removed_hardware_keeps_its_name(name: str, place: str, label: str) -> None:
    snapshot = calm_workstation()

    assert (choose_chart(name, snapshot), build_label(name, snapshot)) == (place, label)


def test_no_two_curves_of_a_chart_look_alike() -> None:
    """The dash pattern changes each time that the colours repeat."""
    names = [f"pressure.gpu{number}.ratio" for number in range(MAX_SERIES)]

    (chart,) = build_charts(names, calm_workstation())

    assert len({(curve.colour, curve.dash) for curve in chart.curves}) == MAX_SERIES
    assert max(curve.dash for curve in chart.curves) < len(DASHES)
