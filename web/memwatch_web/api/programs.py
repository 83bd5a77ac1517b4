"""Requests of programs: bodies, and permission by the user of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, Struct
from starlette.requests import Request

from memwatch_web.api.services import Services
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError

MAX_BYTES = 1 << 60

Count = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Pid = Annotated[int, Meta(ge=1, le=1 << 22)]


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a request. Other fields are refused. `EXAMPLE`: a valid one, for the description and for errors."""

    EXAMPLE: ClassVar[Mapping[str, object]] = {}


def refuse_foreign_process(services: Services, request: Request, pid: int | None, change: str) -> None:
    """Raise ProblemError unless the caller is an operator or runs the process."""
    caller = caller_of(request.scope)
    if caller.is_operator:
        return
    if pid is None or services.monitor.reports.owner_uid(pid) != caller.uid:
        whose = "no pid was sent" if pid is None else f"process {pid} does not exist or has another user"
        raise ProblemError(
            403,
            f"{caller.words} may {change} only for processes of this user: {whose}. Send the pid of such a "
            "process as the host numbers it, or use the socket file or a login.",
        )
