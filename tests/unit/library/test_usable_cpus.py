"""Test the number of CPUs that a process may use, and to which machine it belongs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memwatch.core.linux.files import read_boot_id
from memwatch.library.machine_record import count_usable_cpus, is_this_machine, parse_cpu_max

AFFINITY = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (b"max 100000\n", None),
        (b"150000 100000\n", 2),
        (b"50000 100000\n", 1),
        (b"400000 100000\n", 4),
        (b"", None),
        (b"100000 0\n", None),
        (b"-1 100000\n", None),
        (b"9" * 40 + b" 1\n", None),
    ],
)
def test_quota_is_parsed_and_rounded_up(text: bytes, cpus: int | None) -> None:
    assert parse_cpu_max(text) == cpus


def cgroup(folder: Path, path: str, quotas: dict[str, str]) -> tuple[Path, Path]:
    proc, root = folder / "self", folder / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(f"0::{path}\n")
    for name, text in quotas.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.max").write_text(text)
    return proc, root


def test_quota_above_counts_for_a_unit_below(tmp_path: Path) -> None:
    places = cgroup(tmp_path, "/user.slice/job", {"user.slice": "100000 100000", "user.slice/job": "max 100000"})

    assert count_usable_cpus(*places) == 1


def test_quota_of_a_container_is_at_the_root_of_its_mount(tmp_path: Path) -> None:
    assert count_usable_cpus(*cgroup(tmp_path, "/", {"": "50000 100000"})) == 1


def test_affinity_counts_without_a_quota(tmp_path: Path) -> None:
    assert count_usable_cpus(tmp_path / "none", tmp_path / "none") == AFFINITY
    assert count_usable_cpus(*cgroup(tmp_path, "/", {"": "6400000 100000"})) == AFFINITY


def test_machine_is_recognized_by_its_boot() -> None:
    assert is_this_machine(read_boot_id(Path("/proc")))
    assert not is_this_machine("5a3d8005-0000-4000-8000-000000000000")
    assert not is_this_machine(None)
