"""Events of the loop: their time, the texts of alerts, and reports of the guardian that come again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from memwatch.core.findings import Findings
from memwatch.core.guardian_report import GuardianReport
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.alert_states import describe_alert
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import CRITICAL, ENOUGH
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.guardian_reports import GuardianReports
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.loop import Monitor
from memwatch_monitor.transitions import _describe_scope
from memwatchd.guardian.telling import MAX_PENDING
from support.fakes import FakeClock
from support.monitors import create_monitor


def monitor_at(clock: FakeClock) -> Monitor:
    return create_monitor(Sampler([], clock), clock, MonitorRules(), Identity("spark-1", "boot-1"))


def test_event_without_a_time_is_one_of_now() -> None:
    clock = FakeClock()
    monitor = monitor_at(clock)

    monitor.record("mark", "epoch 1")
    monitor.record("mark", "epoch 0", "ram", 1_600_000_000.0)

    assert [(one.unix, one.text, one.target) for one in monitor.events.since(0)] == [
        (clock.wall(), "epoch 1", None),
        (1_600_000_000.0, "epoch 0", "ram"),
    ]


def test_report_that_the_guardian_sends_again_is_taken_once() -> None:
    """Without an answer it sends a report again, and behind it all that it has kept meanwhile."""
    monitor = monitor_at(FakeClock())
    reports = monitor.features.get(GuardianReports)
    kept = [GuardianReport(f"{number}", 1.0, "nothing", True, "because") for number in range(MAX_PENDING + 1)]

    assert all(reports.take(one) for one in kept)
    assert not any(reports.take(one) for one in kept)

    assert len(monitor.events.since(0)) == len(kept)
    (counted,) = reports.families()
    assert dict(counted.rows)["nothing", "true"] == len(kept)


def notification(rule: str, level: Level | None, firing: bool = True, **fields: object) -> Notification:
    reasons = (Reason("util", "96.2% used"),)
    return Notification("msg_1", rule, 1.0, "ram", level, None, reasons, firing, rule=rule, **fields)  # type: ignore[arg-type]


def with_reason(signal: str, text: str, **fields: object) -> Notification:
    given = notification(CRITICAL, Level.CRITICAL, **fields)  # type: ignore[arg-type]
    return replace(given, **{"new_reasons" if given.firing else "reasons": (Reason(signal, text),)})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (notification(CRITICAL, Level.CRITICAL), "alert firing: System RAM critical"),
        (notification("pressure.high", Level.HIGH), "alert firing: System RAM high (pressure.high)"),
        (notification(CRITICAL, Level.CRITICAL, repeated=True), "alert still firing: System RAM critical"),
        (
            notification(CRITICAL, Level.CRITICAL, repeated=True, level_now=Level.HIGH),
            "alert still firing: System RAM critical (now high)",
        ),
        (notification(CRITICAL, Level.CRITICAL, level_now=Level.CRITICAL), "alert firing: System RAM critical"),
        (
            notification(CRITICAL, Level.CRITICAL, firing=False, level_now=Level.LOW),
            "alert resolved: System RAM critical (now OK)",
        ),
        (
            notification("pressure.high", Level.LOW, firing=False, level_now=Level.LOW),
            "alert resolved: System RAM pressure.high (now OK)",
        ),
        (
            with_reason("forecast", "full in about 20 s", repeated=True),
            "alert still firing: System RAM critical, now also: full in about 20 s",
        ),
        (
            with_reason(ENOUGH, "61 GiB available", firing=False),
            "alert resolved: System RAM critical: 61 GiB available",
        ),
        (notification("process.growing", None), "alert firing: process.growing (96.2% used)"),
        (notification("process.growing", None, firing=False), "alert resolved: process.growing (96.2% used)"),
    ],
)
def test_alert_is_named_by_its_level_and_by_its_rule_if_that_is_another(given: Notification, text: str) -> None:
    """The rule of critical memory is the usual one, and its name adds nothing."""
    assert describe_alert(given, "System RAM") == text


def test_wait_for_the_next_tick_ends_early_if_something_can_end_it() -> None:
    """A PSI trigger or a timer; without one the loop waits for its event."""
    clock, woken = FakeClock(), list[bool]()
    trigger = SimpleNamespace(wake=lambda: woken.append(True))

    Monitor(Sampler([], clock), clock, MonitorRules(), Identity("a", "b")).wake()
    Monitor(Sampler([], clock), clock, MonitorRules(), Identity("a", "b"), trigger=trigger).wake()

    assert woken == [True]


UNKNOWN_SCOPE = ", of the machine or at a cgroup's limit: no log and no counter shows which"


@pytest.mark.parametrize(
    ("kills", "words"),
    [
        (NewKills((), 1, True), ""),
        (NewKills((), 1, True, is_whole=False), ""),
        (NewKills((), 1), UNKNOWN_SCOPE),
        (
            NewKills((), 1, is_whole=False),
            f"{UNKNOWN_SCOPE} (only 2,000 cgroups were read)",
        ),
    ],
)
def test_scope_of_a_kill_without_a_name_is_unknown_unless_ram_was_short(kills: NewKills, words: str) -> None:
    assert _describe_scope(kills) == words


def test_kills_of_cgroups_are_new_after_the_first_reading() -> None:
    """The count at the start is of the time before, and a reading without one ends the comparison."""
    observer = monitor_at(FakeClock()).features.get(IncidentObserver)
    totals = (3, 3, 5, 1, None, 4, 6)

    found = [observer._new_group_kills(Findings(cgroup_oom_kills_total=one)) for one in totals]

    assert found == [0, 0, 2, 0, 0, 0, 2]
