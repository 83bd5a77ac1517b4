"""Test that an odd figure of a kernel file or a driver answer costs only what depends on it.

The dependencies are declared in `support.field_dependencies`. `make machines` checks all machines, and each test
here a part of one.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from support.corrupted_machine import ALL_SOURCES, CorruptedMachine
from support.field_law import changes, is_known, judge, read_undetected

# Machine, source, and the number of cases of which one is tested here.
PARTS = (
    ("gb10", "meminfo", 9),
    ("old-kernel", "meminfo", 9),
    ("kvm-hugepages", "meminfo", 9),
    ("gb10", "nvml", 1),
    ("gb10", "numa", 2),
    ("rtx-4090", "nvml", 1),
    ("gh200-numa", "nvml", 1),
    ("gh200-numa", "numa", 19),
    ("h100-mig", "nvml", 3),
    ("strix-halo", "amdgpu", 1),
    ("rx-7900-xtx", "fdinfo", 29),
    ("rk3588-panthor", "fdinfo", 13),
    ("container-v2", "cgroup", 3),
    ("container-v1", "cgroup", 3),
    ("zram-laptop", "zram", 1),
    ("three-makers-dmem", "dmem", 9),
    ("jetson-orin-nano", "tegrastats", 3),
)


@pytest.mark.parametrize(("name", "source", "step"), PARTS)
def test_corrupted_figure_changes_only_its_dependents(name: str, source: str, step: int, tmp_path: Path) -> None:
    """Zero, doubled, wrapped below zero, negative, missing, repeated, no number. What nothing detects is known."""
    machine, known, count = CorruptedMachine(name, tmp_path), read_undetected(), 0
    for case in islice(machine.cases(source), 0, None, step):
        count += 1
        found = judge(source, case.field, case.how, list(changes(machine.sound, machine.corrupted(case))))
        assert found is None or (not found.complaint and is_known(found, known)), found
    assert count > 20


def test_every_source_has_a_part() -> None:
    assert {source for _, source, _ in PARTS} == set(ALL_SOURCES)
