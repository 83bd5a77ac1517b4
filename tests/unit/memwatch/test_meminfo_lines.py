"""Test that lines of /proc/meminfo that are not known are named, and memory that programs do not get."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.meminfo import build_pool
from memwatch.core.linux.meminfo import Meminfo, check
from memwatch.reporting.doctor.examiner import check_meminfo_lines
from support.fakes import GIB
from support.paths import MACHINES

NAMES = sorted(folder.name for folder in MACHINES.iterdir() if (folder / "proc/meminfo").is_file())


def texts(folder: Path, meminfo: str) -> dict[str, str]:
    (folder / "meminfo").write_text(meminfo)
    return {check.id: check.text for check in check_meminfo_lines(folder)}


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_the_machines_is_known(name: str) -> None:
    assert "meminfo.unknown" not in {check.id for check in check_meminfo_lines(MACHINES / name / "proc")}


def test_unknown_lines_are_named(tmp_path: Path) -> None:
    lines = "MemTotal: 8 kB\nMemFree: 4 kB\nDirectMap2M: 1 kB\nVramPages: 1 kB\nTurbo: 2\n"

    assert texts(tmp_path, lines) == {
        "meminfo.unknown": "2 lines of meminfo are not known to this version: VramPages, Turbo"
    }
    assert "are" not in texts(tmp_path, lines.replace("Turbo: 2\n", ""))["meminfo.unknown"].split()


def test_balloon_and_cma_are_named(tmp_path: Path) -> None:
    found = texts(tmp_path, "MemTotal: 8388608 kB\nMemFree: 2097152 kB\nCmaFree: 1048576 kB\nBalloon: 1048576 kB\n")

    assert found == {
        "meminfo.balloon": "a hypervisor has taken back 1.0 GiB (Balloon)",
        "meminfo.cma": "1.0 GiB of 2.0 GiB free memory is CMA: the kernel and pinned buffers cannot use it",
    }


@pytest.mark.parametrize(("balloon", "kernel", "unattributed"), [(0, 1, 2), (1, 2, 1), (9, 3, 0)])
def test_balloon_is_no_unattributed_memory(balloon: int, kernel: int, unattributed: int) -> None:
    """Linux 6.16. Where MemTotal does not contain it, nothing of it is left to be moved."""
    kib = {"MemTotal": 8, "MemFree": 3, "MemAvailable": 3, "AnonPages": 2, "Shmem": 0, "SUnreclaim": 1}
    kib |= {"Balloon": balloon}
    pool = build_pool(
        check(Meminfo().parse("".join(f"{key}: {size << 20} kB\n" for key, size in kib.items()).encode()))
    )
    parts = {part.kind: part.size_bytes for part in pool.contents}

    assert (parts["kernel"], parts["unattributed"]) == (kernel * GIB, unattributed * GIB)
