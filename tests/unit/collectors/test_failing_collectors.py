"""Test that a failure is no evidence of absence, on every committed machine.

A collector that fails, or a file without permission, makes its own figures absent. Every other figure stays, or
says that it is less sure. `make machines` checks the files of all machines, and the tests here those of some.
"""

from __future__ import annotations

import pytest

from scripts.golden import RUN_HERE
from support.failing_collectors import FailingMachine, complaints_about, denials

# Machines of different kinds: cards, chips, GPUs as NUMA nodes, containers, ZFS.
WITH_FILES = ("phoenix", "rx-7900-xtx", "gh200-numa", "lxc-alpine", "zfs-box", "rk3588-panthor", "container-v2")


@pytest.mark.parametrize("name", RUN_HERE)
def test_failed_collector_is_no_evidence_of_absence(name: str) -> None:
    machine = FailingMachine(name)
    failures = list(machine.collectors())

    assert len(failures) > 5
    assert [text for failure in failures for text in machine.complaints(failure)] == []


@pytest.mark.parametrize("name", WITH_FILES)
def test_file_without_permission_is_no_evidence_of_absence(name: str) -> None:
    machine = FailingMachine(name)
    failures = list(machine.files())

    assert len(failures) > 10
    assert [text for failure in failures for text in machine.complaints(failure)] == []


RAM = {"size_bytes": 16, "used_bytes": 8, "unattributed_bytes": 1}
PROCESS = {"footprint_bytes": 8, "footprint_basis": "rss + device"}


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ({"system_ram ram": RAM}, {"system_ram ram": RAM, "vram gpu0": {"size_bytes": 16}}, "counted twice"),
        ({"system_ram ram": RAM}, {"system_ram ram": {**RAM, "used_bytes": 4}}, "used_bytes changes"),
        (
            {"system_ram ram": RAM},
            {"system_ram ram": {**RAM, "unattributed_bytes": 5}},
            "unattributed_bytes changes",
        ),
        ({"process 1": PROCESS}, {"process 1": {**PROCESS, "footprint_bytes": 2}}, "footprint_bytes changes"),
        (
            {"device gpu0": {"headroom_after_reclaim_bytes": 4}},
            {"device gpu0": {"headroom_after_reclaim_bytes": 9}},
            "headroom_after_reclaim_bytes changes",
        ),
    ],
)
def test_changed_figure_without_a_word_is_found(
    before: dict[str, dict[str, object]], after: dict[str, dict[str, object]], complaint: str
) -> None:
    assert complaint in " ".join(complaints_about(before, after, is_stale=True))


def test_new_denial_is_found() -> None:
    found = {"machine": {"explanation": "No GPU found: all memory is System RAM."}}

    assert list(denials(found, said="")) == ["says 'No GPU found: all memory is System RAM.'"]
    assert list(denials(found, said="No GPU found: all memory is System RAM.")) == []
    assert list(denials({"machine": {"explanation": "Its size is not known."}}, said="")) == []
