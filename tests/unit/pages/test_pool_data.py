"""Data of a chart of the history: one pool over a range, as a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_data import MIB
from memwatch_web.pages.history_page import parse_pool_query
from memwatch_web.pages.history_view import build_view
from support.sample_past import GAP, SECONDS, past_of
from support.sample_snapshots import critical_gb10

SNAPSHOT = critical_gb10()
PAST = past_of(SNAPSHOT)


def data_of(query: str) -> Mapping[str, Any]:
    return build_view(PAST, parse_pool_query(PAST, QueryParams(query), SNAPSHOT), SNAPSHOT).data


def test_layers_of_the_stack_add_up_to_the_curve() -> None:
    """Used memory is the sum of the layers below the last one, at every time."""
    data = data_of("range=1h")
    (chart,) = data["charts"]
    layers, (curve,) = chart["stack"]["layers"], chart["curves"]

    assert [layer["holder"] for layer in layers] == ["gpu", "processes", "unattributed", "reclaimable"]
    assert len(layers[0]["values"]) == len(curve["unix"])
    for used, *parts in zip(curve["avg"], *(layer["values"] for layer in layers[:-1]), strict=True):
        assert (used is None) == (parts[0] is None)
        if used is not None:
            assert sum(parts) * MIB == pytest.approx(used, abs=2 * MIB + 5e-5 * used)


def test_gap_has_no_layers() -> None:
    data = data_of("range=1h")
    chart = data["charts"][0]
    start = SNAPSHOT.unix - SECONDS

    inside = [
        value
        for unix, value in zip(chart["curves"][0]["unix"], chart["stack"]["layers"][0]["values"], strict=True)
        if start + GAP.start + 10 < unix < start + GAP.stop - 10
    ]

    assert set(inside) <= {None}


def test_forecast_and_events_come_with_the_data() -> None:
    data = data_of("range=1h&pool=ram")

    assert data["charts"][0]["seconds_to_full"] == 40.0
    assert "OOM kill" in [flag["word"] for flag in data["flags"]]


@pytest.mark.parametrize(
    ("query", "sentence"), [("pool=nvram", "pool is 'nvram': use one of ram."), ("range=2h", "range is '2h'")]
)
def test_invalid_query_is_refused_with_the_valid_values(query: str, sentence: str) -> None:
    with pytest.raises(ProblemError, match=sentence):
        parse_pool_query(PAST, QueryParams(query), SNAPSHOT)
