"""A row of the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

Method = Literal["GET", "POST", "DELETE"]
Who = Literal["anyone", "reader", "operator"]


class Route(Struct, frozen=True):
    """One method at one path.

    `handler` takes the services and then what FastAPI reads from the request; its docstring is the description.
    `answer` names a model of the schema modules, with [] behind it for a list, or a media type, or both ("History
    or text/csv"). `changes` says what a call changes. `refusals` has the problems that no other route answers with.
    The access control in front of the application decides who may call it; a test holds both together:

    anyone    without a login
    reader    with a login, where one is set
    operator  with a login, or from this machine where none is set
    """

    method: Method
    path: str
    handler: Callable[..., Awaitable[Response]]
    answer: str = ""
    who: Who = "reader"
    changes: str = ""
    refusals: Mapping[int, str] = {}
