"""GET /api/v1/fit: check that a size, or a model given by its shape, fits on this machine now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from memwatch.monitor.render.fit_json import fit_json
from memwatch.planning.sizes import InvalidInputError
from memwatch_web.api.fit_request import FitRequest
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import ProblemError


async def fit(services: Services, request: Request, question: Annotated[FitRequest, Query()]) -> Response:
    """Check if a size or a model fits now: on which device, with how many bytes to spare, and why."""
    try:
        found = _as_sent(question, request).answer(services.current())
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    return services.json(fit_json(found))


def _as_sent(question: FitRequest, request: Request) -> FitRequest:
    """Return the request with only the query's parameters as set. FastAPI 0.133 also sets those with a default."""
    sent = question.model_fields_set.intersection(request.query_params)
    return FitRequest.model_construct(sent, **dict(question))
