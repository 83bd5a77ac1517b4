"""Number of series by kind of machine, as in docs/reference/metrics.md, and the hard limit of a scrape."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.core.model import Process
from memwatch_web.metrics.families import MAX_SERIES, Exporter
from support.machine_kinds import KINDS
from support.paths import ROOT
from support.sample_snapshots import critical_gb10

# Of one scrape, without `process_*` of the daemon itself and with default settings.
MOST = {
    "no GPU": 135,
    "1 GPU": 200,
    "8 GPUs": 500,
    "16 GPUs with 64 MIG instances": 2200,
    "1 GPU, 500 containers in pods": 330,
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_machine_has_a_bounded_number_of_series(kind: str) -> None:
    series = KINDS[kind].count_series()

    assert series <= MOST[kind] <= MAX_SERIES
    assert f"| {kind} | {series:,} |" in (ROOT / "docs/reference/metrics.md").read_text()


def test_more_containers_make_no_more_series() -> None:
    """Owners are bounded: 500 containers have as many series as 100."""
    fewer = replace(KINDS["1 GPU, 500 containers in pods"], containers=100)

    assert fewer.count_series() == KINDS["1 GPU, 500 containers in pods"].count_series()


def scrape(processes: int) -> dict[str, list[float]]:
    listed = tuple(Process(pid, 0.0, "a", 1, 1, "rss") for pid in range(1, processes + 1))
    exporter = Exporter("1", max_processes=lambda: processes)
    text = exporter.render(replace(critical_gb10(), processes=listed), generate_latest).decode()
    families = text_string_to_metric_families(text)
    return {family.name: [sample.value for sample in family.samples] for family in families}


def test_family_over_the_limit_is_left_out_and_counted() -> None:
    """A part of a family would give wrong sums. What the machine has comes before single processes."""
    found = scrape(MAX_SERIES + 1)

    assert "memwatch_process_resident_bytes" not in found
    assert found["memwatch_series_dropped"] == [MAX_SERIES + 1]
    assert found["memwatch_pool_size_bytes"]
    assert found["memwatch_pressure_level"]
    assert sum(len(samples) for name, samples in found.items() if name.startswith("memwatch_")) <= MAX_SERIES + 1


def test_nothing_is_dropped_within_the_limit() -> None:
    found = scrape(100)

    assert len(found["memwatch_process_resident_bytes"]) == 100
    assert found["memwatch_series_dropped"] == [0]
