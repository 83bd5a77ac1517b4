"""/metrics from an encoder that renders only what changed: always the bytes of prometheus-client."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from memwatch_web.metrics.encoder import Families, FamilyEncoder
from memwatch_web.metrics.families import Exporter, negotiate_format
from memwatch_web.metrics.samples import Row, counter, gauge, info
from support.exported_metrics import exported_families
from support.sample_snapshots import SAMPLES

FORMATS = {
    "text 0.0.4": "",
    "Prometheus 3": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
    "OpenMetrics without a version": "application/openmetrics-text",
    "text 1.0.0, dots": "text/plain;version=1.0.0;escaping=dots",
    "OpenMetrics 1.0.0, values": "application/openmetrics-text;version=1.0.0;escaping=values",
}


@pytest.fixture(params=FORMATS)
def encode(request: pytest.FixtureRequest) -> Callable[[Collector], bytes]:
    return negotiate_format(FORMATS[request.param])[0]  # type: ignore[return-value]  # it only calls `collect`


def test_machines_one_after_another_have_the_bytes_of_the_library(encode: Callable[[Collector], bytes]) -> None:
    """Each machine comes twice, so that families appear, change, stay and end."""
    encoder, exporter = FamilyEncoder(encode), Exporter("1", max_processes=lambda: 20)
    for make in (*SAMPLES.values(), *SAMPLES.values()):
        snapshot = make()
        for _ in range(2):
            families = list(exporter.families(snapshot))
            assert encoder(Families(families)) == encode(Families(families))


def test_families_of_features_have_the_bytes_of_the_library(encode: Callable[[Collector], bytes]) -> None:
    families = exported_families()
    encoder = FamilyEncoder(encode)

    assert [encoder(Families(families)) for _ in range(2)] == [encode(Families(families))] * 2


def histogram(count: float) -> Metric:
    family = HistogramMetricFamily("run_seconds", "Runs.", labels=("of",))
    family.add_metric(["a"], [("0.1", count), ("+Inf", count + 1)], count / 3)
    return family


FIGURES = (0, 1, True, 0.1 + 0.2, 1e6, 123456789, 2**63, 1e21, 1e-9, -2.5, math.inf, -math.inf, math.nan)
HOSTILE = ('a"b', "a\nb", "a\\b", "a\\nb", " 0.0", "", "ü 0.0\u2028\x0b", "}", 'x="1",y="2"')


def test_any_figure_and_any_label_have_the_bytes_of_the_library(encode: Callable[[Collector], bytes]) -> None:
    encoder = FamilyEncoder(encode)
    for turn, figure in enumerate(FIGURES):
        rows: list[Row] = [((value, str(turn % 3)), figure) for value in HOSTILE[turn % 4 :]]
        families = [
            gauge("size_bytes", 'A \\ and a\nline and a ".', rows, ("b", "a")),
            counter("things", f"Text {turn % 2}.", rows, ("name", "own_label")),
            info("machine", "Identity.", [(value, "") for value in HOSTILE], ("name", f"label_{turn % 2}")),
            gauge("plain", "Without labels.", [((), figure)]),
            gauge("empty", "Without samples.", []),
            histogram(figure),
        ]
        assert encoder(Families(families)) == encode(Families(families))


def test_known_series_are_not_rendered_again() -> None:
    """The library renders the head and the first series; a later scrape, only new series."""
    calls: list[int] = []

    def encode(collector: Collector) -> bytes:
        calls.extend(len(family.samples) for family in collector.collect())
        return negotiate_format("")[0](collector)  # type: ignore[arg-type]  # it only calls `collect`

    encoder = FamilyEncoder(encode)
    for figures in ({"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"b": 3}):
        rows: list[Row] = [((name,), figure) for name, figure in figures.items()]
        encoder(Families([gauge("size_bytes", "Size.", rows, ("name",))]))

    assert calls == [0, 1, 1]
