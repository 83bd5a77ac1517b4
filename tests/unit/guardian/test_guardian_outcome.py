"""Judgements of dry runs: what was seen afterwards, the verdict, and its evidence in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.guardian_report import JUDGED, GuardianReport, Verdict
from memwatchd.guardian.outcome import CALM_SECONDS, WATCH_SECONDS, Seen, judge

# Seconds, critical, ended, kills.
Reading = tuple[float, bool, bool, int | None]


def follow(*readings: Reading) -> Seen:
    seen = Seen()
    for one in readings:
        assert not seen.is_over
        seen.add(*one)
    return seen


def calm(since: float, ended: bool, kills: int | None) -> tuple[Reading, Reading]:
    return (since, False, ended, kills), (since + CALM_SECONDS, False, ended, kills)


@pytest.mark.parametrize(
    ("readings", "verdict", "evidence"),
    [
        (
            [(1.0, True, False, 0), (3.0, True, True, 1), *calm(4.0, True, 1)],
            "right",
            "the kernel killed a process 3.0 s later, train.py (12) ended 3.0 s later and memory recovered 4.0 s "
            "later",
        ),
        (
            [(2.0, True, False, 3), *calm(5.0, False, 3)],
            "needed",
            "the kernel killed 3 processes, the first 2.0 s later, train.py (12) still runs and memory recovered "
            "5.0 s later",
        ),
        (
            [(1.0, True, False, 0), *calm(7.0, False, 0)],
            "needless",
            "memory recovered by itself 7.0 s later and the kernel killed no process",
        ),
        (
            [(1.0, False, False, 0), (2.0, True, False, 0), *calm(9.0, False, 0)],
            "needless",
            "memory recovered by itself 9.0 s later and the kernel killed no process",
        ),
        (
            [(2.0, True, True, 0), *calm(3.0, True, 0)],
            "unknown",
            "train.py (12) ended 2.0 s later, memory recovered 3.0 s later and the kernel killed no process",
        ),
        (
            calm(4.0, False, None),
            "unknown",
            "memory recovered by itself 4.0 s later and kills by the kernel are not readable",
        ),
        (
            [(WATCH_SECONDS, True, False, 0)],
            "unknown",
            "memory was still critical 2 min later and the kernel killed no process",
        ),
    ],
)
def test_what_followed_a_dry_run_judges_it(readings: list[Reading], verdict: Verdict, evidence: str) -> None:
    seen = follow(*readings)

    assert seen.is_over
    assert judge(seen, "train.py (12)") == (verdict, evidence)


@pytest.mark.parametrize("last", [(9.9, False, False, 0), (119.0, True, False, 0)])
def test_shortage_that_is_not_over_is_not_judged_yet(last: Reading) -> None:
    assert not follow((0.0, last[1], False, 0), last).is_over


def test_event_of_a_judgement_has_its_evidence() -> None:
    evidence = "memory recovered by itself 7.0 s later and the kernel killed no process"
    dry = GuardianReport("1.000", 1.0, "act", True, "because", 12, "train.py", 1 << 30, ("sigterm",))
    judged = replace(dry, id="1.000-judged", verdict="needless", evidence=evidence)

    assert judged.kind == JUDGED
    assert judged.text == (
        "dry run: memwatch-guardian would have ended train.py (12), and that end would have been needless: memory "
        "recovered by itself 7.0 s later and the kernel killed no process"
    )
