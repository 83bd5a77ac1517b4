"""/metrics from an encoder that renders only what changed: always the bytes of prometheus-client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy

import pytest
from msgspec.structs import force_setattr, replace
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Family, Feature, Features, Histogram
from memwatch_web.metrics.encoder import Families, FamilyEncoder, SteadyFamilies, figure_text
from memwatch_web.metrics.families import Exporter, SeriesCount, negotiate_format
from memwatch_web.metrics.samples import Row, RowFamily, counter, gauge, histogram, info
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
    return negotiate_format(FORMATS[request.param])[0]


def test_machines_one_after_another_have_the_bytes_of_the_library(encode: Callable[[Collector], bytes]) -> None:
    """Each machine comes twice, so that families appear, change, stay and end."""
    encoder, exporter = FamilyEncoder(encode), Exporter("1", max_processes=lambda: 20)
    for make in (*SAMPLES.values(), *SAMPLES.values()):
        snapshot = make()
        for _ in range(2):
            groups = exporter.groups(snapshot)
            families = [one for group in groups for one in group if one.samples]
            assert encoder(groups) == encode(Families(families))


def test_families_of_features_have_the_bytes_of_the_library(encode: Callable[[Collector], bytes]) -> None:
    families = [one for one in exported_families() if one.samples]
    encoder = FamilyEncoder(encode)

    assert [encoder([families]) for _ in range(2)] == [encode(Families(families))] * 2


class Deliveries(Feature):
    """A feature with a counter and a histogram. The histogram is always the same object."""

    name = "deliveries"

    def __init__(self) -> None:
        self.sent, self.latency = 0, Histogram((1.0,))

    def families(self) -> list[Family]:
        return [
            Family("counter", "sent", "Sent.", [((), self.sent)]),
            Family("histogram", "latency_seconds", "Latency.", [((), self.latency)]),
        ]


def test_families_of_a_feature_are_kept_while_they_are_equal() -> None:
    """A histogram is equal to itself with other counts, so that a feature with one is built each time."""
    deliveries, features = Deliveries(), Features()
    features.add(deliveries)
    render = Exporter("1", features).renderer(negotiate_format("")[0])
    found = []
    for sent, seconds in ((0, 0.5), (0, 5.0), (1, 5.0)):
        deliveries.sent = sent
        deliveries.latency.observe(seconds)
        found.append(render(SAMPLES["critical_gb10"]()).decode())

    for text, sent, observed in zip(found, (0, 0, 1), (1, 2, 3), strict=True):
        assert f"\nmemwatch_sent_total {sent}.0\n" in text
        assert f"\nmemwatch_latency_seconds_count {observed}.0\n" in text


def test_small_and_large_figures_are_written_as_go_writes_them() -> None:
    small = [0, -1, 1.5, 1e-9, 123456.789, 999999, 999999.5]
    figures = [*small, 1e6, 1234567, 9.87e15, -1e7, math.inf, -math.inf, math.nan]

    assert list(map(figure_text, figures)) == list(map(floatToGoString, figures))


def families_of(exporter: Exporter, snapshot: Snapshot) -> list[RowFamily]:
    """Return families that do not depend on earlier snapshots."""
    return [one for one in exporter.families(snapshot) if not one.name.startswith("memwatch_owner_")]


def test_any_part_of_the_snapshot_that_changes_alone_is_exported() -> None:
    """Steady families notice a change of each part that they read, whatever the other parts are."""
    exporter, changes = Exporter("1", max_processes=lambda: 20), 0
    last = SAMPLES["critical_gb10"]()
    for make in SAMPLES.values():
        for part in Snapshot.__struct_fields__:
            other = copy(last)
            force_setattr(other, part, getattr(make(), part))
            before, found = families_of(exporter, last), families_of(exporter, other)
            assert found == families_of(Exporter("1", max_processes=lambda: 20), other), part
            changes += before != found
            last = other

    assert changes > len(SAMPLES)


def test_steady_part_is_not_built_again() -> None:
    built: list[object] = []

    def families(snapshot: Snapshot, given: int) -> list[RowFamily]:
        built.append(snapshot.swap)
        return [gauge("swap_size_bytes", "Swap.", [((), given)])]

    steady, shot = SteadyFamilies(), SAMPLES["critical_gb10"]()
    first = steady.build(families, shot, 1)

    assert steady.build(families, replace(shot, seq=shot.seq + 1), 1) is first
    assert steady.build(families, shot, 2) != first
    assert steady.build(families, replace(shot, swap=Absent.NOT_SUPPORTED), 2) is not first
    assert built == [shot.swap, shot.swap, Absent.NOT_SUPPORTED]


def test_families_of_their_arguments_alone_are_built_once_for_each() -> None:
    steady, shot = SteadyFamilies(), SAMPLES["critical_gb10"]()

    def families(_snapshot: Snapshot, figure: float) -> Iterator[RowFamily]:
        yield gauge("one", "One.", [((), figure)])

    first = steady.build(families, shot, 1)

    assert steady.build(families, shot, 1) is first
    assert [one.value for family in steady.build(families, shot, 2) for one in family.samples] == [2]


def runs(count: int) -> Histogram:
    found = Histogram((0.1, 2.0))
    for number in range(count):
        found.observe(number / 3)
    return found


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
            histogram("run_seconds", "Runs.", [(("a",), runs(turn))], ("of",)),
        ]
        empty = gauge("empty", "Without samples.", [])
        assert encoder([[empty, *families]]) == encode(Families(families))


def test_known_series_are_not_rendered_again() -> None:
    """The library renders the head and the first series; a later scrape, only new series."""
    calls: list[int] = []

    def encode(collector: Collector) -> bytes:
        calls.extend(len(family.samples) for family in collector.collect())
        return negotiate_format("")[0](collector)

    encoder = FamilyEncoder(encode)
    for figures in ({"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"b": 3}):
        rows: list[Row] = [((name,), figure) for name, figure in figures.items()]
        encoder([[gauge("size_bytes", "Size.", rows, ("name",))]])

    assert calls == [0, 1, 1]


class WatchedGroup(list[RowFamily]):
    """Group that counts how often its families are listed."""

    looks = 0

    def __iter__(self) -> Iterator[RowFamily]:
        self.looks += 1
        return super().__iter__()


def test_group_that_is_the_last_one_is_not_looked_into() -> None:
    steady = WatchedGroup([gauge("size_bytes", "Size.", [((), 1)])])
    encoder = FamilyEncoder(negotiate_format("")[0])
    first = encoder([[], steady])

    assert encoder([[gauge("things", "Things.", [((), 1)])], steady]).endswith(first)
    assert steady.looks == 1


def test_series_of_a_group_that_is_the_last_one_are_not_counted_again() -> None:
    steady, count = WatchedGroup([gauge("size_bytes", "Size.", [((), 1)])]), SeriesCount()
    more = [gauge("things", "Things.", [(("a",), 1), (("b",), 1)])]

    assert [count(([], steady)), count((more, steady)), count((more, steady, more))] == [1, 3, 5]
    assert steady.looks == 1
