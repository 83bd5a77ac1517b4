"""Data of the chart of the overview: one pool over a range, as a stack."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_data import MIB, build_chart_point
from memwatch_web.pages.history_page import build_pool_data, parse_pool_query
from support.sample_past import GAP, SECONDS, past_of
from support.sample_snapshots import calm_workstation, critical_gb10, mig_server

SNAPSHOT = critical_gb10()
PAST = past_of(SNAPSHOT)


def test_layers_of_the_stack_add_up_to_the_curve() -> None:
    """Used memory is the sum of the layers below the last one, at every time."""
    data = build_pool_data(PAST, parse_pool_query(PAST, QueryParams("range=1h"), SNAPSHOT), SNAPSHOT)
    (chart,) = data["charts"]
    layers, (curve,) = chart["stack"]["layers"], chart["curves"]

    assert [layer["holder"] for layer in layers] == ["gpu", "processes", "unattributed", "reclaimable"]
    assert len(layers[0]["values"]) == len(curve["unix"])
    for used, *parts in zip(curve["avg"], *(layer["values"] for layer in layers[:-1]), strict=True):
        assert (used is None) == (parts[0] is None)
        if used is not None:
            assert sum(parts) * MIB == pytest.approx(used, abs=2 * MIB + 5e-5 * used)


def test_gap_has_no_layers() -> None:
    data = build_pool_data(PAST, parse_pool_query(PAST, QueryParams("range=1h"), SNAPSHOT), SNAPSHOT)
    chart = data["charts"][0]
    start = SNAPSHOT.unix - SECONDS

    inside = [
        value
        for unix, value in zip(chart["curves"][0]["unix"], chart["stack"]["layers"][0]["values"], strict=True)
        if start + GAP.start + 10 < unix < start + GAP.stop - 10
    ]

    assert set(inside) <= {None}


def test_forecast_events_and_ranges_come_with_the_data() -> None:
    data = build_pool_data(PAST, parse_pool_query(PAST, QueryParams("range=1h&pool=ram"), SNAPSHOT), SNAPSHOT)

    assert data["charts"][0]["seconds_to_full"] == 40.0
    assert "OOM kill" in [flag["word"] for flag in data["flags"]]
    assert [name for name, _ in data["ranges"]] == ["10m", "1h", "6h", "24h", "7d", "30d"]
    assert data["pools"] == [["ram", "System RAM"]]


@pytest.mark.parametrize(
    ("query", "sentence"), [("pool=nvram", "pool is 'nvram': use one of ram."), ("range=2h", "range is '2h'")]
)
def test_invalid_query_is_refused_with_the_valid_values(query: str, sentence: str) -> None:
    with pytest.raises(ProblemError, match=sentence):
        parse_pool_query(PAST, QueryParams(query), SNAPSHOT)


def test_sample_for_the_chart_has_every_pool_and_begins_with_the_worst() -> None:
    """A MIG instance is in the pool of its GPU."""
    point = build_chart_point(mig_server())

    assert point["pool"] == "gpu0.vram"
    assert list(point["pools"]) == ["ram", "gpu0.vram"]
    assert point["pools"]["ram"]["used"] == calm_workstation().pools[0].used_bytes
    assert point["pools"]["ram"]["seconds_to_full"] is None
