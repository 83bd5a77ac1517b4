"""JSON schema of answers about events and requests; that of the snapshot follows from its records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch.core.snapshot import LevelWord
from memwatch_web.api.schema_base import Answer


class PressureReason(Answer):
    signal: str
    text: str
    level: LevelWord | None = Field(
        default=None, description="The level that the reason asks for; null or absent if that is not known."
    )


class SilenceInForce(Answer):
    """A silence: notifications of matching alerts are muted until it ends."""

    id: str
    event: str | None = Field(description="Muted event; null: all.")
    target: str | None = Field(description="Muted target; null: all.")
    until: str
    until_unix: float
    created_unix: float
    comment: str
    made_by: str = Field(description="User of this machine, user or token of the login, or client certificate.")


class Event(Answer):
    seq: int
    time: str
    unix: float
    kind: str
    text: str
    target: str | None


class Release(Answer):
    released: list[str] = Field(description="Collectors that release their driver within one period.")
    seconds: float


class MarkReceipt(Answer):
    seq: int = Field(description="Number of the new event.")


class ReportReceipt(Answer):
    claims: int


class Health(Answer):
    status: Literal["ok", "stalled", "starting"]
    age_seconds: float | None


class ProblemDetails(Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
