"""Records of doctor: the state of the configuration, and checks of one sentence each, with a remedy if any."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc

# Remedy for a kernel driver of another version than its library.
RELOAD_NVIDIA = "restart the machine, or reload the nvidia modules"


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


class ConfigState(Struct, frozen=True):
    """`problems`: a sentence for each setting that is not in force.

    `is_loaded`: the latest start or reload took the configuration as it is. `loaded_unix`: when one did; None if it
    has not happened since memwatchd started.
    """

    problems: tuple[str, ...] = ()
    is_loaded: bool = True
    loaded_unix: float | None = None

    @property
    def notice(self) -> str:
        """Return the state as a part of a line, empty if everything is in force."""
        if not self.problems:
            return ""
        problems = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"configuration not in force: {problems}, see memwatch doctor"
