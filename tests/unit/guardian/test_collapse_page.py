"""Test the page of the collapses: it counts what ended, and never takes what was not run for a success."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import collapse_page
from scripts.collapse_page import has_answered, latency, lost, page

pytestmark = pytest.mark.pure

Record = dict[str, Any]
MIB = 1 << 20
MACHINE: Record = {
    "job": {"watcher": "guardian"},
    "versions": {
        "linux": "6.1.0",
        "packages": "earlyoom\t1.7\nsystemd-oomd\t252",
        "memory": {"MemTotal": 2 << 30},
    },
}
COST: Record = {
    "major_faults": 0,
    "rss_bytes": 18 * MIB,
    "oom_score_adj": -900,
    "cgroup": "/memwatchd.slice/g.service",
}


def run(watcher: str, number: int, **changes: Any) -> Record:
    """Return a collapse in which only `train` ended."""
    seconds = 25.0 - number
    plain: Record = {
        "job": {"watcher": watcher, "number": number, "seconds": seconds},
        "began": 100.0,
        "critical_at": 110.0,
        "ended": 110.5,
        "lost": ["train"],
        "longest_gap": 0.2,
        "least_bytes": 90 * MIB,
        "cost_before": COST,
        "cost_after": COST,
        "records": [],
        "memwatchd": "0.1",
    }
    return {**plain, **changes}


def written(*runs: Record) -> list[str]:
    results = {f"{one['job']['watcher']}-{at}": one for at, one in enumerate(runs)}
    return page({"guardian-machine": MACHINE, **results}, "7.2", "1 May 2026").splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def row(lines: list[str], first: str) -> list[str]:
    return next(cells(line) for line in lines if line.startswith(f"| {first} |"))


def test_summary_counts_each_outcome_apart() -> None:
    lines = written(
        run("guardian", 0),
        run("earlyoom", 0, ended=None, lost=["bash", "idle"], longest_gap=4.2),
        run("earlyoom", 3, ended=None, lost=[], longest_gap=1.5),
        {
            "job": {"watcher": "earlyoom", "number": 6, "seconds": 19.0},
            "wedged": True,
            "last_alive": 100.0,
            "memwatchd": "0.1",
        },
    )

    assert row(lines, "memwatch-guardian")[1:] == ["1 of 30", "1", "0", "1", "0.2 s", "0"]
    assert row(lines, "earlyoom")[1:] == ["3 of 10", "0", "1", "0", "4.2 s", "1"]
    assert not any(line.startswith("| systemd-oomd |") for line in lines)


def test_collapse_that_was_not_run_with_a_program_is_no_success() -> None:
    lines = written(run("guardian", 0), run("guardian", 3), run("none", 3, ended=None, lost=["idle"]))

    assert row(lines, "25.0 s")[1:] == ["`train`; 0.2 s", "not run"]
    assert row(lines, "22.0 s")[1:] == ["`train`; 0.2 s", "`idle`; 0.2 s"]


@pytest.mark.parametrize(
    "changes",
    [{"longest_gap": 1.1}, {"lost": ["bash", "train"]}, {"wedged": True}],
    ids=["late", "ended", "stopped"],
)
def test_shell_that_is_late_or_another_one_has_not_answered(changes: Record) -> None:
    assert has_answered(run("guardian", 0))
    assert not has_answered(run("guardian", 0, **changes))


def test_latency_is_unknown_where_the_process_did_not_end() -> None:
    assert latency(run("guardian", 0)) == 0.5
    assert latency(run("guardian", 0, ended=None)) is None
    assert latency(run("guardian", 0, critical_at=None)) is None


def test_own_cost_is_the_most_of_all_collapses() -> None:
    worse = {**COST, "major_faults": 3, "rss_bytes": 21 * MIB}
    lines = written(run("guardian", 0), run("guardian", 1, cost_after=worse))

    assert row(lines, "major faults during a collapse, most")[1] == "3"
    assert row(lines, "RSS, most")[1] == "21.0 MiB"


def test_last_step_of_each_action_is_counted() -> None:
    def acted(*names: str) -> Record:
        return {"decision": "act", "steps": [{"step": name} for name in names]}

    lines = written(
        run("guardian", 0, records=[{"decision": "nothing", "steps": []}, acted("reclaim", "sigterm")]),
        run("guardian", 1, records=[acted("sigterm")]),
        run("guardian", 2, records=[acted("sigkill")]),
    )

    assert row(lines, "last step that was needed")[1] == "sigterm in 2, sigkill in 1"


def test_record_of_a_second_fault_is_shown_in_one_cell() -> None:
    record = {"decision": "nothing", "reason": "a|b", "steps": []}
    job = {"watcher": "guardian", "mistake": "never", "seconds": 8.0}
    lines = written(run("guardian", 0), {**run("guardian", 0), "job": job, "records": [record, record]})

    assert row(lines, collapse_page.MISTAKES["never"])[1:] == ["8 s", "`train`; 0.2 s", "nothing: a/b"]
    (missing,) = (line for line in lines if line.startswith("Not run: "))
    assert collapse_page.MISTAKES["term"] in missing
    assert collapse_page.MISTAKES["never"] not in missing


def test_results_of_another_build_are_named_as_such() -> None:
    lines = written(run("guardian", 0), run("none", 0, memwatchd="0.2"), run("oomd", 3))

    assert (
        "- **Builds of memwatchd.** `0.1` with memwatch-guardian, systemd-oomd; `0.2` with none of them." in lines
    )


def test_innocent_processes_are_all_but_the_one_that_takes_the_memory() -> None:
    assert lost(run("none", 0, lost=["idle", "train"])) == ["idle"]


def test_machine_that_stopped_responding_has_what_its_kernel_killed_and_no_journal() -> None:
    job = {"watcher": "guardian", "mistake": "fork_bomb", "seconds": 8.0}
    stopped = {"job": job, "wedged": True, "killed": ["database", "train"], "last_kill": 77.9, "memwatchd": "0.1"}

    (line,) = [line for line in written(run("guardian", 0), stopped) if "fork bomb |" in line]

    assert cells(line)[2:] == [
        "the machine stopped responding; the kernel killed `database`, `train`",
        "not known: its journal is lost with the machine",
    ]
