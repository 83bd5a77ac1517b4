"""Row type of the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

Method = Literal["GET", "POST", "DELETE"]
Who = Literal["anyone", "reader", "program", "operator"]


Handler = Callable[..., Awaitable[Response]]


class Route(Struct, frozen=True):
    """One method at one path.

    `handler` takes the services, then parameters of the request (see `parameters`). Its docstring is the
    OpenAPI description. `answer`: a name of `openapi.SHAPES`, with the suffix [] for a list, or a media type, or
    both ("History or text/csv"). `changes`: effect of a call. `refusals`: problems specific to this route.
    The access middleware enforces `who`; a test checks that both agree:

    anyone    without a login
    reader    with a login, if one is set
    program   operators, and processes of this machine for processes of their own user
    operator  with a login, over a socket file, or as root or the daemon's user of this machine if none is set
    """

    method: Method
    path: str
    handler: Handler
    answer: str = ""
    who: Who = "reader"
    changes: str = ""
    refusals: Mapping[int, str] = {}
