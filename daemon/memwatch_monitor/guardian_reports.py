"""Reports of memwatch-guardian: an event for each of its decisions, their number, and its kills."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import get_args

from msgspec.structs import replace

from memwatch.core.guardian_report import GuardianDecision, GuardianReport
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.model import RAM, find_system_ram
from memwatch.core.printable import printable
from memwatch_monitor.feature import Family, Feature
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.loop import Monitor

# The guardian sends a report again if it got no answer: it keeps fewer of them.
MAX_KNOWN = 256
# After this time the shortage of a decision is over: an incident that begins now is another one.
OVER_SECONDS = 120.0


class GuardianReports(Feature):
    """The reports of memwatch-guardian. Call `take` from one thread."""

    name = "guardian"

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._known: deque[str] = deque(maxlen=MAX_KNOWN)
        self._counts = dict.fromkeys(product(get_args(GuardianDecision), ("false", "true")), 0)

    def take(self, report: GuardianReport) -> bool:
        """Take a report. Return False for one that was taken before."""
        if report.id in self._known:
            return False
        self._known.append(report.id)
        if report.verdict is None:
            self._counts[report.decision, str(report.dry_run).lower()] += 1
        report = replace(
            report,
            name=printable(report.name),
            reason=printable(report.reason),
            evidence=printable(report.evidence),
        )
        latest = self._monitor.latest
        ram = find_system_ram(latest.pools) if latest is not None else None
        unix = min(report.unix, self._monitor.moment().wall)
        self._monitor.record(report.kind, report.text, RAM if ram is None else ram.id, unix)
        if report.ended and self._monitor.moment().wall - unix < OVER_SECONDS:
            kill = ServiceKill(sum(self._counts.values()), unix, "guardian", report.reason, report.pid, report.name)
            self._monitor.features.get(IncidentObserver).announce(kill)
        return True

    def families(self) -> Iterator[Family]:
        text = "Total decisions that memwatch-guardian has reported. In a dry run it ends nothing."
        # A machine without a guardian has no series of it.
        rows = list(self._counts.items()) if self._known else ()
        yield Family("counter", "guardian_decisions", text, rows, ("decision", "dry_run"))
