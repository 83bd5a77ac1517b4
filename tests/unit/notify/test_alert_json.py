"""Test alerts as the API lists them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.reporting.answers import AlertRow
from memwatch_monitor.alerts.rules import AlertRules
from memwatch_monitor.alerts.state import AlertState
from memwatch_monitor.notify.channel import Sender
from memwatch_monitor.notify.status import ALERTS, AlertView, clear_times, fires_in

CLEAR = AlertState(firing=True, fired_at=700.0, since=990.0)
ROW = AlertRow("ram", "pressure.critical", "critical", "firing", 1.0, False, ())


@pytest.mark.parametrize(
    ("address", "runbook"),
    [
        ("http://gpu1.example.org:6360", "http://gpu1.example.org:6360/runbooks#memorycritical"),
        (None, "/runbooks#memorycritical"),
    ],
)
def test_listed_alert_has_the_runbook_of_its_notifications(address: str | None, runbook: str) -> None:
    """Without an address of the pages it is a path of the daemon that was asked."""
    assert ALERTS.encode(ROW, Sender(url=address))["runbook"] == runbook


def test_listed_alert_about_gpu_memory_has_its_own_runbook() -> None:
    row = AlertRow("gpu0", "pressure.critical", "critical", "firing", 1.0, False, ())

    assert ALERTS.encode(row, Sender())["runbook"] == "/runbooks#gpumemorycritical"


def test_alerts_are_grouped_by_rule_with_the_most_severe_firing_ones_first() -> None:
    def row(target: str, rule: str, severity: str, state: str) -> AlertRow:
        return AlertRow(target, rule, severity, state, 1.0 if state == "firing" else None, False, ())

    view = AlertView(
        [
            row("ram", "pressure.high", "warning", "firing"),
            row("gpu0.mig7", "pressure.critical", "critical", "pending"),
            row("gpu0.mig9", "pressure.critical", "critical", "firing"),
            row("gpu1.mig9", "pressure.critical", "critical", "firing"),
        ]
    )

    assert [(group.rule, group.state, [one.target for one in group.alerts]) for group in view.groups] == [
        ("pressure.critical", "firing", ["gpu0.mig9", "gpu1.mig9"]),
        ("pressure.high", "firing", ["ram"]),
        ("pressure.critical", "pending", ["gpu0.mig7"]),
    ]


@pytest.mark.parametrize(
    ("state", "pending", "seconds"),
    [
        (AlertState(since=10.0), 60.0, 52.0),
        (AlertState(since=10.0), 5.0, 0.0),
        (AlertState(firing=True), 60.0, None),
        (AlertState(since=10.0), None, None),
    ],
    ids=["pending", "due", "firing", "target without data"],
)
def test_pending_alert_says_when_it_fires(state: AlertState, pending: float | None, seconds: float | None) -> None:
    assert fires_in(state, pending, 18.0) == seconds


@pytest.mark.parametrize(
    ("state", "has_data", "times"),
    [
        (AlertState(firing=True, fired_at=900.0), True, {}),
        (AlertState(since=990.0), True, {}),
        (CLEAR, True, {"clear_since_unix": 90.0, "resolves_unix": 150.0}),
        (replace(CLEAR, fired_at=980.0), True, {"clear_since_unix": 90.0, "resolves_unix": 200.0}),
        (replace(CLEAR, returned=True), True, {"clear_since_unix": 90.0, "resolves_unix": 390.0}),
        (CLEAR, False, {"clear_since_unix": 90.0}),
    ],
    ids=["true", "pending", "clear", "fires for its minimum", "returned", "target without data"],
)
def test_firing_alert_says_since_and_until_when_it_is_clear(
    state: AlertState, has_data: bool, times: dict[str, float]
) -> None:
    rules = AlertRules(resolve_seconds=60, keep_firing_seconds=120, again_seconds=300)

    assert clear_times(state, has_data, Moment(1000.0, 1000.0, 100.0), rules) == times
