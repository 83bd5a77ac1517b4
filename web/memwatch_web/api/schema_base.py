"""Base of the JSON schema: an answer, and one with figures that may be absent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Reason = Literal[
    "not_supported", "not_permitted", "not_available", "not_read", "suspended", "stale", "inconsistent"
]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    simulated: bool = Field(default=False, description="True with --demo and --replay.")


class Figures(Answer):
    absent: dict[str, Reason] = Field(
        default_factory=dict, description="Reason for each null field of this object."
    )
