"""Processes that ended are left out of lists and sums until the next scan."""

from __future__ import annotations

from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Bytes, Process
from memwatch.core.owners import sum_owners
from memwatch_monitor.processes import EndedProcesses, Ends

GIB = 1 << 30


def process(pid: int, held: Bytes = 0, unit: str | None = None) -> Process:
    return Process(
        pid,
        100.0 + pid,
        f"p{pid}",
        GIB,
        GIB,
        "rss",
        user="ada",
        unit=unit,
        container=None,
        device_bytes={"gpu0": held},
    )


def found(*processes: Process) -> Findings:
    return Findings(processes=processes, owners=sum_owners(processes))


def test_ended_process_is_in_no_list_and_in_no_sum() -> None:
    findings = EndedProcesses().drop(
        found(process(1, unit="a"), process(2, unit="a"), process(3, unit="b")), {2: 102.0}
    )
    alone = EndedProcesses().drop(found(process(1, unit="a"), process(3, unit="b")), {3: 103.0})

    assert findings.processes is not None
    assert [one.pid for one in findings.processes] == [1, 3]
    sums = {(one.kind, one.name): (one.processes, one.rss_bytes) for one in findings.owners}
    assert sums == {("unit", "a"): (1, GIB), ("unit", "b"): (1, GIB), ("user", "ada"): (2, 2 * GIB)}
    assert ("unit", "b") not in {(one.kind, one.name) for one in alone.owners}


def test_process_with_memory_that_the_driver_has_not_freed_is_kept() -> None:
    """Unknown memory counts as held as well."""
    for held in (GIB, Absent.NOT_PERMITTED):
        findings = found(process(1, held))
        assert EndedProcesses().drop(findings, {1: 101.0}) is findings


def test_later_process_with_the_same_pid_is_kept_and_the_end_dropped() -> None:
    ends: Ends = {1: 55.0, 9: 109.0}
    findings = found(process(1))

    assert EndedProcesses().drop(findings, ends) is findings
    assert ends == {}


def test_same_lists_and_ends_give_the_same_list() -> None:
    """Readers compare lists by identity, and follow processes again only if it differs."""
    filter_, findings = EndedProcesses(), found(process(1), process(2))

    first = filter_.drop(findings, {2: 102.0})

    assert filter_.drop(findings, {2: 102.0}).processes is first.processes
    assert filter_.drop(found(process(1), process(2)), {2: 102.0}).processes is not first.processes
