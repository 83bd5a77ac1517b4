"""Each series is drawn where it belongs and called what it is, on every kind of machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.history.series import figures_of
from memwatch.model import Pool, PoolKind, Quality, ShareKind
from memwatch_web.pages.charts import MOST_SERIES, charts_of, label_of, place_of, usual_series
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, discrete_gpu, mig_server


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_series_has_one_place_and_a_name(sample: str) -> None:
    """All that is remembered can be chosen, once, among figures of its own unit."""
    snapshot = SAMPLES[sample]()
    names = list(figures_of(snapshot))

    charts = charts_of(names, snapshot)

    assert sorted(curve.name for chart in charts for curve in chart.curves) == sorted(names)
    assert all(curve.label for chart in charts for curve in chart.curves)
    assert len({chart.id for chart in charts}) == len(charts)


def test_on_a_unified_machine_the_cuda_pool_is_drawn_inside_system_ram() -> None:
    """One chart with both, the share by its relation, and what CUDA can still have."""
    snapshot = critical_gb10()

    ram, pressure = charts_of(usual_series(list(figures_of(snapshot)), snapshot), snapshot)

    labels = [curve.label for curve in ram.curves]
    assert labels == ["used", "CUDA Pool ⊂ System RAM", "headroom of NVIDIA GB10"]
    assert [curve.dashed for curve in ram.curves] == [False, False, True]
    assert (ram.label, ram.top, ram.targets) == ("System RAM", snapshot.pools[0].size_bytes, ("ram",))
    assert (pressure.label, pressure.top) == ("Pressure", 1.0)


def test_on_a_discrete_machine_each_gpu_has_a_chart() -> None:
    """System RAM and VRAM are two pools."""
    snapshot = discrete_gpu()

    charts = charts_of(usual_series(list(figures_of(snapshot)), snapshot), snapshot)

    assert [chart.label for chart in charts] == ["System RAM", "GPU 0 VRAM", "GPU 1 VRAM", "Pressure"]
    assert [curve.label for curve in charts[0].curves] == ["used", "available"]


def test_what_a_gpu_can_have_is_drawn_where_most_of_it_lies() -> None:
    """The headroom of an APU is in System RAM, not beside its carve-out, which is a hundredth of it."""
    snapshot = critical_gb10()
    carve_out = Pool("carveout", PoolKind.CARVEOUT, "GPU carve-out", 512, 455, 57, "sysfs", Quality.MEASURED)
    gpu = replace(snapshot.devices[0], allocates_from=("carveout", "ram"))

    place = place_of(
        "device.gpu0.headroom_bytes", replace(snapshot, pools=(*snapshot.pools, carve_out), devices=(gpu,))
    )

    assert place == "ram"


def test_a_machine_with_many_gpus_is_shown_within_what_may_be_asked_for() -> None:
    """The pools come first."""
    snapshot = mig_server()
    instance = next(share for share in snapshot.shares if share.kind is ShareKind.MIG_INSTANCE)
    shares = tuple(replace(instance, id=f"gpu0.mig{number}") for number in range(30))
    many = replace(snapshot, shares=shares, devices=())

    usual = usual_series(list(figures_of(many)), many)

    assert len(usual) == MOST_SERIES
    assert usual[: len(many.pools)] == [f"pool.{pool.id}.used_bytes" for pool in many.pools]


@pytest.mark.parametrize(
    ("name", "place", "label"),
    [
        ("pool.gpu7.used_bytes", "gpu7", "used"),
        ("share.gpu7.gtt.used_bytes", "bytes", "share.gpu7.gtt.used_bytes"),
        ("device.gpu7.headroom_bytes", "bytes", "device.gpu7.headroom_bytes"),
        ("pressure.gpu7.ratio", "pressure", "pressure.gpu7.ratio"),
        ("node.0.largest_free_block_bytes", "bytes", "largest free block on node 0"),
        ("swap.used_bytes", "swap", "used"),
        ("pressure.ram.seconds_to_full", "seconds", "System RAM full in"),
    ],
)
def test_what_is_gone_keeps_the_name_of_its_series(name: str, place: str, label: str) -> None:
    """Figures of hardware that was taken out can still be shown."""
    snapshot = calm_workstation()

    assert (place_of(name, snapshot), label_of(name, snapshot)) == (place, label)
