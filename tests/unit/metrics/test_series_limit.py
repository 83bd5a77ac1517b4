"""The hard limit of series of one scrape."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.core.model import Process
from memwatch_web.metrics.families import MAX_SERIES, Exporter
from support.sample_snapshots import critical_gb10


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
