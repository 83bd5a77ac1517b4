"""JSON schema of alerts, silences, receivers and deliveries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch_web.api.schema import PressureReason, SilenceInForce
from memwatch_web.api.schema_base import Answer


class Alert(Answer):
    target: str
    rule: str = Field(examples=["pressure.critical"])
    severity: Literal["critical", "warning", "info"]
    state: Literal["pending", "firing"]
    since: str | None = Field(description="Start of firing; null while pending.")
    since_unix: float | None
    silenced: bool
    fires_in_seconds: float | None = Field(description="Of a pending alert, if its condition lasts.")
    runbook: str | None = Field(
        description="Section of the runbooks: a URL, or a path if no address of the pages is known.",
        examples=["http://gpu1.example.org:6360/runbooks#memorycritical"],
    )
    reasons: list[PressureReason]


class Silence(SilenceInForce):
    """A silence in the list of silences."""

    note: str | None = Field(description="If the target does not exist now: the existing ones.")


class Delivery(Answer):
    """Latest attempt to deliver one notification."""

    id: str = Field(description="`webhook-id` of the notification.")
    rule: str
    target: str
    kind: Literal["firing", "resolved", "fact", "test"]
    result: Literal["queued", "delivered", "retry", "gave_up", "disabled", "superseded"]
    attempts: int = Field(description="Since memwatchd started.")
    status: int | None = Field(description="HTTP status; null without a response.")
    failure: str = Field(description="Error of the last attempt; empty if it succeeded.")
    unix: float | None = Field(description="End of the last attempt; null before the first one.")
    next_attempt_seconds: float | None = Field(description="Null for one that does not wait.")


class Receiver(Answer):
    """Notification receiver and its delivery status."""

    name: str
    kind: str = Field(examples=["webhook", "alertmanager", "apprise"])
    events: list[str]
    targets: list[str] = Field(description="Empty: all targets.")
    disabled: bool = Field(description="True after a 410 response: nothing is sent until a restart.")
    pending: int
    outcomes: dict[str, int]
    failure: str = Field(description="Error of the last attempt; empty if it succeeded.")
    next_attempt_seconds: float | None
    last_delivered_unix: float | None
    deliveries: list[Delivery] = Field(
        description="Up to 10 queued ones, then the last attempts of 50 messages, newest first."
    )


class AlertTest(Answer):
    receivers: list[str]
