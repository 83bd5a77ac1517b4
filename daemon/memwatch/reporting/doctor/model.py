"""Results of an examination: one sentence per check, and a remedy if there is one."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc


class Verdict(Enum):
    """`OK`: no problem. `HINT`: works, but more data is possible. `PROBLEM`: data is missing or wrong."""

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


class Check(Struct, frozen=True):
    """Result of one check. `id`: stable name of the subject."""

    id: str
    verdict: Verdict
    text: str
    remedy: Annotated[str | None, Doc("What the operator can do; null if there is nothing to do.")] = None


class Examination(Struct, frozen=True):
    """All checks, in the order in which they ran."""

    checks: tuple[Check, ...]

    @property
    def worst(self) -> Annotated[Verdict, Doc("Worst verdict of all checks.")]:
        found = {check.verdict for check in self.checks}
        return next(verdict for verdict in reversed(Verdict) if verdict in found or verdict is Verdict.OK)
