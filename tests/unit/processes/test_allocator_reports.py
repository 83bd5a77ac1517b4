"""Test reports of allocators: whose they are, how long and how many are kept, and which GPU they are about."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.linux.accounts import Accounts
from memwatch.core.model import AllocatorReport
from memwatch.core.processes.allocator_reports import (
    AllocatorReports,
    ReportRejectedError,
    find_gpu,
)
from support.fakes import GIB
from support.gpu_cards import cards

STARTED = 4711


def stat(pid: int, name: str = "python3", ticks: int = STARTED) -> bytes:
    fields = ["S", *("0" for _ in range(18)), str(ticks), "9", "9"]
    return f"{pid} ({name}) {' '.join(fields)}\n".encode()


def claim(pid: int, name: str = "torch") -> AllocatorReport:
    return AllocatorReport(pid, name, "cuda:0", GIB, 2 * GIB)


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """A /proc with the processes 1 to 300."""
    for pid in range(1, 301):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(stat(pid))
        (tmp_path / str(pid) / "status").write_text(f"Name:\tpython3\nUid:\t{1000 + pid}\t0\t0\t0\n")
    return tmp_path


@pytest.mark.parametrize(("age", "count"), [(0.0, 1), (35.0, 1), (35.5, 0), (300.0, 0)])
def test_report_that_is_not_renewed_is_dropped(procfs: Path, age: float, count: int) -> None:
    """Programs renew them every ten seconds: three in a row are lost."""
    reports = AllocatorReports(procfs)
    reports.put(7, STARTED, [claim(7)], 100.0)

    assert len(reports.current(100.0 + age)) == count


def test_claims_are_those_of_the_last_report_by_process(procfs: Path) -> None:
    reports = AllocatorReports(procfs)
    reports.put(9, STARTED, [claim(9, "old")], 1.0)
    reports.put(8, STARTED, [claim(8)], 2.0)
    reports.put(9, STARTED, [claim(9, "a"), claim(9, "b")], 3.0)

    assert [(one.pid, one.name) for one in reports.current(4.0)] == [(8, "torch"), (9, "a"), (9, "b")]


@pytest.mark.parametrize(("pid", "ticks"), [(7, STARTED + 1), (7, STARTED - 1), (999, STARTED)])
def test_report_of_another_process_is_rejected(procfs: Path, pid: int, ticks: int) -> None:
    """The number was given to another process meanwhile, or is that of a container."""
    reports = AllocatorReports(procfs)

    with pytest.raises(ReportRejectedError, match=f"no process {pid} that started at tick {ticks} exists"):
        reports.put(pid, ticks, [claim(pid)], 1.0)
    assert reports.current(1.0) == ()


def test_number_of_claims_is_limited(procfs: Path) -> None:
    reports = AllocatorReports(procfs)
    reports.put(7, STARTED, [claim(7)] * 16, 1.0)

    with pytest.raises(ReportRejectedError, match="process 7 has 17 claims; the maximum is 16"):
        reports.put(7, STARTED, [claim(7)] * 17, 1.0)
    assert len(reports.current(1.0)) == 16


def fill(reports: AllocatorReports, procfs: Path, uids: Iterable[int], first: int = 1) -> int:
    """Report for a process of each user at the same time. Return how many were accepted."""
    accepted = 0
    for pid, uid in enumerate(uids, first):
        (procfs / str(pid) / "status").write_text(f"Name:\tpython3\nUid:\t{uid}\t0\t0\t0\n")
        with suppress(ReportRejectedError):
            reports.put(pid, STARTED, [claim(pid)], 1.0)
            accepted += 1
    return accepted


def test_accounts_share_the_reports(procfs: Path, tmp_path: Path) -> None:
    """Subordinate ids are of their user. A known one may be renewed, and those that ended leave their places."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/subuid").write_text("1001:100000:65536\n")
    reports = AllocatorReports(procfs, accounts=Accounts(tmp_path))
    assert fill(reports, procfs, range(100_000, 100_200)) == 192
    (procfs / "201/status").write_text("Uid:\t1001\t0\t0\t0\n")
    with pytest.raises(ReportRejectedError, match="uid 1001 has 192 of 256 processes with allocator reports"):
        reports.put(201, STARTED, [claim(201)], 2.0)
    assert fill(reports, procfs, [1000, 101, 0], 210) == 3

    pids = {one.pid for one in reports.current(2.0)}
    assert len(pids) == 194  # the user of 1000 got a place of the first
    assert {210, 211, 212} < pids
    reports.put(192, STARTED, [claim(192, "new")], 2.0)
    assert "new" in {one.name for one in reports.current(2.0)}
    reports.put(201, STARTED, [claim(201)], 36.5)
    assert [one.pid for one in reports.current(36.5)] == [192, 201]


def test_owner_is_the_user_who_started_the_process(procfs: Path) -> None:
    reports = AllocatorReports(procfs)

    assert (reports.owner_uid(7), reports.owner_uid(999)) == (1007, None)


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        ("GPU-1", "gpu1"),
        ("00000000:81:00.0", "gpu1"),
        ("0000:01:00.0", "gpu0"),
        ("MIG-b", "gpu0.mig3"),
        ("MIG-", None),
        ("GPU-9", None),
        ("0000:99:00.0", None),
        ("", None),
        (None, None),
    ],
)
def test_gpu_is_found_by_uuid_and_by_address(identity: str | None, found: str | None) -> None:
    """Addresses are written in two ways."""
    first, second = cards(2).devices
    details = {"mig_3": "MIG-a, MIG-b", "cuda": "MIG-"}
    first = replace(first, uuid="GPU-0", pci="0000:01:00.0", details=details)
    second = replace(second, uuid="GPU-1", pci="0000:81:00.0")

    assert find_gpu(identity, (first, second)) == found
