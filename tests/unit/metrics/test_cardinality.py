"""Number of series by kind of machine. docs/reference/metrics.md has the same numbers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch_web.metrics.families import MAX_SERIES
from support.machine_kinds import KINDS
from support.paths import ROOT

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
