"""Test that every collector reports every machine folder to the byte."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import CollectorEntry, Host
from memwatch.core.linux.files import SourceUnavailable
from support.machine_folders import NAMES, MachineFolder, machine_folder, plain

COLLECTORS = ["meminfo", "psi", "vmstat", "buddyinfo", "numa", "zram", "cgroup", "machine", "processes"]


MORE = ["tegra", "nvmap"]


def enlisted(machine: MachineFolder, name: str) -> CollectorEntry:
    """Return the enlisted collector, with the page size of that machine in place of this one's."""
    host = Host(machine.roots, platform="linux", page_size=machine.page_size)
    return next(entry for entry in list_collectors(host) if entry.name == name)


def test_twelve_machines_exist_with_all_collectors() -> None:
    """No machine is missing, and each lists the expected findings of every collector of the host."""
    assert len(NAMES) >= 12

    for name in NAMES:
        assert set(COLLECTORS) <= machine_folder(name).expected.keys()


@pytest.mark.parametrize("machine_name", NAMES)
def test_findings_equal_those_recorded(machine_name: str) -> None:
    """The findings of each collector equal those recorded for the machine, value by value, also the second time."""
    machine = machine_folder(machine_name)
    recorded = {name: found for name, found in machine.expected.items() if "unavailable" not in found}

    assert {name: findings_of(machine, name) for name in recorded} == {
        name: (found, found) for name, found in recorded.items()
    }


def findings_of(machine: MachineFolder, collector: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the findings of two readings."""
    with closing(enlisted(machine, collector).make()) as opened:
        return plain(opened.collect()), plain(opened.collect())


@pytest.mark.parametrize("machine_name", NAMES)
def test_unavailable_collector_names_its_reason(machine_name: str) -> None:
    machine = machine_folder(machine_name)
    for name, found in machine.expected.items():
        if "unavailable" in found:
            with pytest.raises(SourceUnavailable, match=found["unavailable"]):
                enlisted(machine, name).make()


@pytest.mark.parametrize("machine_name", NAMES)
def test_recorded_findings_add_up(machine_name: str) -> None:
    """A machine has one pool of System RAM, its parts add up, and every share lies within it."""
    machine = machine_folder(machine_name)
    pool = machine.expected["meminfo"]["pools"][0]

    assert sum(pool["contents"].values()) == pool["size_bytes"]
    assert pool["used_bytes"] + pool["available_bytes"] == pool["size_bytes"]
    assert all(share["within"] == pool["id"] for share in machine.expected["cgroup"].get("shares", ()))
