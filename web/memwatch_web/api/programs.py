"""Requests of programs: bodies, and permission by the user of a process."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from memwatch_web.api.services import Services
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError

MAX_BYTES = 1 << 60

Count = Annotated[int, Field(ge=0, le=MAX_BYTES, strict=True)]
Pid = Annotated[int, Field(ge=1, le=1 << 22, strict=True)]


class RequestBody(BaseModel):
    """Body of a request. Other fields are refused."""

    model_config = ConfigDict(extra="forbid")


def example(body: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a body with a valid example, for the description and for errors."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [body]})


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
