"""The largest holder of a pool in /metrics: one series, and no name that other series do not show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.machine_families import holder_families
from support.sample_snapshots import calm_workstation, critical_gb10

LARGE = 100 << 30


def holder(snapshot: Snapshot, shows_processes: bool = False) -> list[Mapping[str, str]]:
    (family,) = holder_families(snapshot, shows_processes)
    return [sample.labels for sample in family.samples]


def with_process(**fields: object) -> Snapshot:
    base = critical_gb10()
    largest = replace(
        base.processes[0],
        name="train\x1b[2J" + "x" * 300,
        unit="train.service",
        container=None,
        rss_bytes=LARGE,
        footprint_bytes=LARGE,
        footprint_range=None,
        device_bytes={},
    )
    return replace(base, processes=(replace(largest, **fields), *base.processes[1:]))


def test_holder_of_a_raised_pool_is_one_series() -> None:
    assert holder(with_process()) == [{"pool": "ram", "name": "", "unit": "train.service"}]


def test_pool_that_is_ok_has_no_series() -> None:
    """Holders of a quiet machine change, and no alert needs them."""
    assert holder(calm_workstation()) == []


def test_process_is_named_only_where_processes_are_exported() -> None:
    """[processes] metrics decides, as for memwatch_process_*. Long names are cut."""
    (hidden,) = holder(with_process())
    (shown,) = holder(with_process(), shows_processes=True)

    assert hidden["name"] == ""
    assert shown["name"].startswith("train")
    assert len(shown["name"]) == 64


def test_container_is_named_as_among_owners() -> None:
    identity, name = "4f1c4f1c4f1c", "research/train-0/trainer"
    found = replace(with_process(container=identity), container_names={identity: name})

    assert holder(found) == [{"pool": "ram", "name": name, "unit": ""}]


@pytest.mark.parametrize("fields", [{"visible": False, "name": Absent.NOT_PERMITTED}, {"unit": None}])
def test_process_without_a_name_to_show_is_no_holder(fields: dict[str, object]) -> None:
    """One that only a driver lists, and one of no unit and no container."""
    assert "train.service" not in {one["unit"] for one in holder(with_process(**fields))}


def test_no_owners_in_metrics_means_no_holder() -> None:
    """[processes] owners = 0 hides the names of units and containers."""
    families = {
        most: [one.name for one in Exporter("1", max_owners=lambda most=most: most).families(with_process())]  # type: ignore[misc]
        for most in (0, 8)
    }

    assert "memwatch_pool_top_holder" not in families[0]
    assert "memwatch_pool_top_holder" in families[8]
