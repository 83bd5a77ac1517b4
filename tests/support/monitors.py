"""Monitors with the features that every daemon has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memwatch.core.clock import Moment
from memwatch.core.findings import Findings
from memwatch.core.pressure.oom_kills import NO_KILLS, NewKills
from memwatch.core.processes.unreturned import ReturnChanges
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_monitor.feature import Feature, Features, MonitorRules, Tick
from memwatch_monitor.guardian_reports import GuardianReports
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.lease_book import LeaseBook
from memwatch_monitor.loop import Monitor
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.processes import EndedProcesses, GrowthWatch
from memwatch_monitor.transitions import EventWriter

NOTHING_FOUND = Findings()
ALWAYS = (
    EndedProcesses,
    EventWriter,
    GrowthWatch,
    Alerts,
    BetweenScrapes,
    HistoryRecorder,
    LeaseBook,
    IncidentObserver,
    GuardianReports,
    NeighbourBook,
)


def create_monitor(*given: Any, **named: Any) -> Monitor:
    """Return a monitor with its features, as in a daemon without receivers."""
    monitor = Monitor(*given, **named)
    for kind in ALWAYS:
        monitor.features.add(kind.of(monitor))
    return monitor


class Listener(Feature):
    """Takes published snapshots, and the notifications as receivers would."""

    name = "listener"

    def __init__(self, monitor: Monitor, listen: Callable[[Snapshot, tuple[Notification, ...]], object]) -> None:
        self._alerts, self._listen = monitor.features.get(Alerts), listen

    def on_publish(self, snapshot: Snapshot) -> None:
        self._listen(snapshot, self._alerts.pending)
        self._alerts.pending = ()


def listen(monitor: Monitor, to: Callable[[Snapshot, tuple[Notification, ...]], object]) -> None:
    """Have a function called with each published snapshot and its notifications."""
    monitor.features.add(Listener(monitor, to))


def tick_of(
    now: Moment, snapshot: Snapshot, kills: NewKills = NO_KILLS, findings: Findings = NOTHING_FOUND
) -> Tick:
    return Tick(now, None, snapshot, kills, ReturnChanges(), findings, MonitorRules())


def features_of(*features: Feature) -> Features:
    found = Features()
    for one in features:
        found.add(one)
    return found


def history(monitor: Monitor) -> HistoryRecorder:
    return monitor.features.get(HistoryRecorder)


def alerts(monitor: Monitor) -> Alerts:
    return monitor.features.get(Alerts)


def incidents(monitor: Monitor) -> IncidentObserver:
    return monitor.features.get(IncidentObserver)


def alerting(monitor: Monitor) -> NotificationManager:
    return monitor.features.get(NotificationManager)
