"""What an examination finds: one sentence a matter, with the remedy where there is one."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Verdict(Enum):
    """`OK`: as it should be. `HINT`: it works, and could tell more. `PROBLEM`: figures are missing or wrong."""

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


class Check(Struct, frozen=True):
    """`id` is stable and says what was looked at; `remedy` is what somebody can do, or None."""

    id: str
    verdict: Verdict
    text: str
    remedy: str | None = None


class Examination(Struct, frozen=True):
    """All checks, what was asked first."""

    checks: tuple[Check, ...]

    @property
    def worst(self) -> Verdict:
        found = {check.verdict for check in self.checks}
        return next(verdict for verdict in reversed(Verdict) if verdict in found or verdict is Verdict.OK)
