"""REST endpoint for the release of GPU drivers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.doc import Doc
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.asgi.caller import caller_of


class Release(Struct, frozen=True):
    released: Annotated[tuple[str, ...], Doc("Collectors that release their driver within one period.")]
    seconds: float


async def release(
    services: ApiServices,
    request: Request,
    seconds: Annotated[float, Query(ge=1, le=3600, allow_inf_nan=False)] = 60.0,
) -> Response:
    """Release all GPU drivers for `seconds`, so that a GPU can be reset or partitioned into MIG instances."""
    released = services.monitor.release(seconds, caller_of(request.scope).words)
    return services.json(Release(tuple(released), seconds))
