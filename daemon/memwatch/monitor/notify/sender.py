"""The sending daemon, as its notifications describe it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from memwatch.monitor.alerts.naming import runbook_anchor

JOB = "memwatchd"


class Sender(Struct, frozen=True):
    """Identity of the sending daemon.

    `url`: address of its pages, None if other machines cannot reach them. `instance` and `job`: the labels that
    Prometheus gives its metrics; without an instance the host name is used. `labels`: those of [labels].
    `incident`: the incident of the alert that is sent, if there is one.
    """

    url: str | None = None
    instance: str = ""
    job: str = JOB
    labels: Mapping[str, str] = field(default_factory=dict)
    incident: str | None = None

    @property
    def incident_url(self) -> str | None:
        """Return the URL of the incident, None without one or without an address."""
        return f"{self.url}/incidents/{self.incident}" if self.url and self.incident else None

    def runbook_url(self, rule: str, target: str) -> str | None:
        """Return the URL of the runbook for an alert, None without an address."""
        anchor = runbook_anchor(rule, target)
        return f"{self.url}/runbooks#{anchor}" if self.url and anchor else None
