"""REST endpoint at which memwatch-guardian reports its decisions."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Struct
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.doc import Doc
from memwatch.core.guardian_report import (
    ID_LENGTH,
    NAME_LENGTH,
    REASON_LENGTH,
    REPORT_SECONDS,
    STEP_COUNT,
    STEP_LENGTH,
    GuardianDecision,
    GuardianReport,
    Verdict,
)
from memwatch_monitor.guardian_reports import GuardianReports
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.programs import Count, Pid, RequestBody, example
from memwatch_web.asgi.caller import PEER, ROOT, caller_of
from memwatch_web.asgi.problems import ProblemError

EXAMPLE = {
    "id": "1767225600.125",
    "unix": 1767225600.125,
    "decision": "act",
    "dry_run": True,
    "reason": "ram is critical: 128.0 MiB of 64.0 GiB are available",
    "pid": 51210,
    "name": "train.py",
    "footprint_bytes": 42842456064,
    "steps": ["sigterm", "sigkill"],
}
Step = Annotated[str, Field(pattern=r"^[a-z]+$", max_length=STEP_LENGTH)]


class DecisionBody(RequestBody):
    """A decision of memwatch-guardian, with the process that it chose."""

    model_config = example(EXAMPLE)

    id: Annotated[str, Field(min_length=1, max_length=ID_LENGTH, description="One that is known is not counted.")]
    unix: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    decision: GuardianDecision
    dry_run: Annotated[bool, Field(strict=True)]
    reason: Annotated[str, Field(min_length=1, max_length=REASON_LENGTH)]
    pid: Pid | None = None
    name: Annotated[str, Field(max_length=NAME_LENGTH)] = ""
    footprint_bytes: Count | None = None
    steps: Annotated[list[Step], Field(max_length=STEP_COUNT)] = Field(default_factory=list)
    ended: Annotated[bool, Field(strict=True, description="A signal ended the process.")] = False
    helped: Annotated[
        Annotated[bool, Field(strict=True)] | None, Field(description="Memory was no longer critical afterwards.")
    ] = None
    verdict: Annotated[Verdict | None, Field(description="Of a dry run that was reported before.")] = None
    evidence: Annotated[str, Field(max_length=REASON_LENGTH, description="For the verdict, as a clause.")] = ""


class GuardianReceipt(Struct, frozen=True):
    is_new: Annotated[bool, Doc("False for a report that was taken before.")]


async def decisions(services: ApiServices, request: Request, report: DecisionBody) -> Response:
    """Take a decision of memwatch-guardian: it becomes an event. Only over the socket file, and only from root or
    the user of memwatchd."""
    refuse_others(request)
    if services.monitor.simulated:
        raise ProblemError(404, "not available for demo data: no guardian watches a simulated machine.")
    if report.decision != "nothing" and (report.pid is None or not report.name):
        why = "pid and name are missing; send those of the chosen process."
        raise ProblemError(422, f"decision {report.decision}: {why}")
    if services.monitor.moment().wall - report.unix > REPORT_SECONDS:
        raise ProblemError(422, f"unix: the decision is older than {REPORT_SECONDS:.0f} s; send newer ones only.")
    made = GuardianReport(**{**report.model_dump(), "steps": tuple(report.steps)})
    return services.json(GuardianReceipt(services.monitor.features.get(GuardianReports).take(made)))


def refuse_others(request: Request) -> None:
    """Raise ProblemError unless the kernel names root or the own user at the other end of the socket file."""
    peer = request.scope.get(PEER)
    if peer is None or peer.uid not in (ROOT, os.geteuid()):
        raise ProblemError(
            403,
            f"{caller_of(request.scope).words} may not report decisions of memwatch-guardian: they are taken only "
            "over the socket file, and only from root or the user of memwatchd. Run the guardian as root, with "
            "MEMWATCH_URL=unix:/run/memwatchd/memwatchd.sock.",
        )
