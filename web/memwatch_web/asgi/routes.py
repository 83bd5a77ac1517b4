"""Row type of the tables of routes, and the paths that have rules beside their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from starlette.responses import Response

METRICS = "/metrics"
HEALTHZ, READYZ = "/healthz", "/readyz"
OPENAPI = "/openapi.json"
API = "/api/"
MARKS, REPORTS, LEASES = API + "v1/marks", API + "v1/reports", API + "v1/leases"
FIT_PAGE, LIVE, STATIC = "/fit", "/live", "/static/"

# The style of the page that asks for a login: a file of the package, the same on every machine.
PAGE_STYLE = STATIC + "app.css"
# For load balancers and orchestrators, and browsers before a login. The responses contain no memory data.
OPEN_PATHS = frozenset({HEALTHZ, READYZ, PAGE_STYLE})
# POST paths that change nothing.
QUESTIONS = frozenset({FIT_PAGE})
# Programs may mark, report and lease for processes of their own user. The handlers compare the users.
PROGRAM_PATHS = frozenset({MARKS, REPORTS, LEASES})
# Paths of the API that are not below API, with or without a slash at the end.
API_PATHS = frozenset({API.rstrip("/"), HEALTHZ, METRICS, OPENAPI, READYZ})

Method = Literal["GET", "POST", "DELETE"]
Who = Literal["anyone", "reader", "program", "operator"]
Handler = Callable[..., "Awaitable[Response]"]


class Route(Struct, frozen=True):
    """One method at one path.

    `handler`: of the API, a path operation function of FastAPI, whose docstring is the OpenAPI description; of a
    page, a function of the services and, if it needs it, the request. `answer`: a name of `openapi.SHAPES`, with
    the suffix [] for a list, or a media type, or both ("History or text/csv"). `changes`: effect of a call.
    `refusals`: problems specific to this route. The access middleware enforces `who`; a test checks that both
    agree:

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


def is_for_programs(path: str) -> bool:
    return path in PROGRAM_PATHS or path.startswith(f"{LEASES}/")


def is_of_api(path: str) -> bool:
    return path.startswith(API) or path.rstrip("/") in API_PATHS
