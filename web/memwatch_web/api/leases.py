"""REST endpoints for leases: memory reserved for a process until it has allocated it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.leases import MAX_NAME_LENGTH, MAX_SECONDS, MIN_SECONDS
from memwatch.monitor.lease_book import LeaseBook, LeaseRefusedError, LeaseRequest
from memwatch.monitor.render.json import lease_json
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.programs import MAX_BYTES, Count, Pid, RequestBody, example, refuse_foreign_process
from memwatch_web.api.views import leases
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError


class LeaseBody(RequestBody):
    """Memory to reserve for a process that is about to allocate it."""

    model_config = example({"bytes": 21474836480, "target": "gpu0", "seconds": 120, "pid": 4242})

    bytes: Annotated[int, Field(ge=1, le=MAX_BYTES, strict=True)]
    target: Annotated[str, Field(max_length=80, description="Pool or device, such as ram or gpu0.")]
    seconds: Annotated[float, Field(ge=MIN_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
    pid: Annotated[Pid, Field(description="The lease ends with this process.")]
    start_ticks: Annotated[
        Count | None,
        Field(description="Field 22 of /proc/<pid>/stat, to detect a reused PID; by default it is read."),
    ] = None
    name: Annotated[
        str, Field(max_length=MAX_NAME_LENGTH, description="For display; by default the process's name.")
    ] = ""
    certain: Annotated[bool, Field(description="Count only memory that is free without reclaim of page cache.")] = (
        False
    )


async def lease(services: ApiServices, request: Request, body: LeaseBody) -> Response:
    """Reserve memory for a process. Of two requests that fit only alone, one is granted. The lease ends with its
    time, with its process, or when the process and its descendants have allocated the bytes. `fit` and `wait` of
    others count leased memory as used; the figures of pools do not change. A restart of memwatchd ends all leases.
    Without a login, `pid` is a process of the caller's user."""
    refuse_foreign_process(services, request, body.pid, "lease")
    caller = caller_of(request.scope)
    wanted = LeaseRequest(**body.model_dump(), made_by=caller.words, is_operator=caller.is_operator)
    try:
        granted = services.monitor.features.get(LeaseBook).grant(wanted, services.current())
    except LeaseRefusedError as error:
        raise ProblemError(409 if error.conflict else 422, f"{error}.") from None
    return services.json(lease_json(granted))


async def end(services: ApiServices, request: Request, lease_id: str) -> Response:
    """End a lease early; return the others. Without a login, it is that of a process of the caller's user."""
    caller, book = caller_of(request.scope), services.monitor.features.get(LeaseBook)
    missing = ProblemError(404, f"no lease {lease_id[:80]!r}; /api/v1/leases lists those in force.")
    if not caller.is_operator and book.owner_uid(lease_id) not in (None, caller.uid):
        raise ProblemError(
            403,
            f"{caller.words} may end only leases of own processes, and {lease_id[:80]!r} is of another user; "
            "use the socket file, root, or a login.",
        )
    if not book.end(lease_id, caller.words):
        raise missing
    return await leases(services)
