"""Test the conventional names: against the published semantic conventions, and on metrics of two machines.

The memory of all machines under these names is a law in test_golden.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import yaml
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum
from opentelemetry.semconv._incubating.attributes import hw_attributes, system_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics, system_metrics
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client.core import HistogramMetricFamily

from memwatchd.otlp import CONVENTIONS, Span, conventional_metrics, own_metrics
from scripts.golden import with_help
from scripts.otel_collector import SHIPPED, with_conventions
from scripts.reference.metrics import OTHER_NAMES
from support.exposition import families_of, points_of
from support.paths import MACHINES

SPAN = Span(1, 2)
KINDS = {
    "create_counter": "counter",
    "create_up_down_counter": "updowncounter",
    "create_observable_gauge": "gauge",
    "create_gauge": "gauge",
}


class RecordingMeter(NoOpMeter):
    """Meter that keeps unit and instrument of each metric that the published package creates with it."""

    def __init__(self) -> None:
        super().__init__("conventions")
        self.found: dict[str, tuple[str, str]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name not in KINDS:
            return super().__getattribute__(name)

        def create(name_of_metric: str = "", unit: str = "", **given: Any) -> None:
            self.found[given.get("name", name_of_metric)] = unit, KINDS[name]

        return create


def published_metrics(*modules: ModuleType) -> dict[str, tuple[str, str]]:
    meter = RecordingMeter()
    for module in modules:
        for _, create in creators(module):
            create(meter, **({"callbacks": []} if "callbacks" in inspect.signature(create).parameters else {}))
    return meter.found


def creators(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    return (found for found in inspect.getmembers(module, inspect.isfunction) if found[0].startswith("create_"))


def published_attributes(*modules: ModuleType) -> set[str]:
    return {value for module in modules for value in vars(module).values() if isinstance(value, str)}


def test_names_units_and_instruments_are_those_of_the_published_conventions() -> None:
    """The package is generated from the conventions' YAML."""
    known = published_metrics(hw_metrics, system_metrics)

    assert len(known) > 50
    for one in CONVENTIONS:
        assert known[one.name] == (one.unit, one.instrument), one.name


def test_attributes_and_their_values_are_those_of_the_published_conventions() -> None:
    known = published_attributes(hw_attributes, system_attributes, error_attributes)
    states = {state.value for state in system_attributes.SystemMemoryStateValues}

    for one in CONVENTIONS:
        used = {*one.attributes.values(), *one.fixed}
        assert used <= known, one.name
        assert one.fixed.get("hw.type", "gpu") in {kind.value for kind in hw_attributes.HwTypeValues}
        assert one.fixed.get("system.memory.state", "used") in states


def test_names_of_the_metrics_page_are_published() -> None:
    """The last column is that of OpenTelemetry. A name may be followed by an attribute."""
    known = published_metrics(hw_metrics, system_metrics)
    names = {row[3].partition("{")[0] for row in OTHER_NAMES if row[3].startswith(("hw.", "system."))}

    assert names <= known.keys()
    assert {one.name for one in CONVENTIONS} <= names


def families_in(machine: str) -> list[Any]:
    return families_of(with_help((MACHINES / machine / "metrics.txt").read_text()))


def test_attributes_of_the_device_are_added_to_its_metrics() -> None:
    families = families_in("8x-h100")
    metrics = conventional_metrics(families, SPAN, {"gpu3": {"hw.vendor": "NVIDIA"}})

    vendors = {dict(key)["hw.id"]: dict(key).get("hw.vendor") for key in points_of(metrics, "hw.power")}
    assert vendors == {f"gpu{number}": "NVIDIA" if number == 3 else None for number in range(8)}


def test_own_metrics_have_the_names_of_a_scrape() -> None:
    """Totals are monotonic sums, all else gauges. An empty label is left out."""
    metrics = {one.name: one for one in own_metrics(families_in("gh200-numa"), SPAN)}
    pools = metrics["memwatch_pool_size_bytes"]
    errors = metrics["memwatch_driver_memory_errors_total"].data

    assert isinstance(pools.data, Gauge)
    assert {"pool": "ram", "kind": "system_ram"} in [point.attributes for point in pools.data.data_points]
    assert isinstance(errors, Sum)
    assert errors.is_monotonic
    assert {point.start_time_unix_nano for point in errors.data_points} == {SPAN.start}


def test_histogram_has_the_count_of_each_bucket() -> None:
    """Prometheus's buckets contain the lower ones. Two series stay apart."""
    family = HistogramMetricFamily("memwatch_run_seconds", "Durations.", labels=("collector",), unit="seconds")
    family.add_metric(["a"], [("0.1", 2), ("1.0", 5), ("+Inf", 6)], 9.5)
    family.add_metric(["b"], [("0.1", 0), ("1.0", 0), ("+Inf", 1)], 3.0)

    (metric,) = own_metrics([family], SPAN)
    assert isinstance(metric.data, Histogram)
    first, second = metric.data.data_points
    assert (metric.name, metric.unit) == ("memwatch_run_seconds", "s")
    assert (first.attributes, first.bucket_counts, first.count, first.sum) == (
        {"collector": "a"},
        [2, 3, 1],
        6,
        9.5,
    )
    assert first.explicit_bounds == [0.1, 1.0]
    assert (second.attributes, second.bucket_counts) == ({"collector": "b"}, [0, 0, 1])


def test_collector_configuration_has_every_convention() -> None:
    """The file has what `make reference` writes: a transform for each row, and unit and type for each name."""
    text = SHIPPED.read_text()
    processors = yaml.safe_load(text)["processors"]

    assert text == with_conventions(text)
    names = [one["new_name"] for one in processors["metricstransform"]["transforms"]]
    assert names == [one.name for one in CONVENTIONS]
