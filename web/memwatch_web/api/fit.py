"""GET /api/v1/fit: check that a size, or a model given by its shape, fits on this machine now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from memwatch.monitor.render.fit_json import fit_json
from memwatch.planning.answer import answer_request
from memwatch.planning.request import parse_request
from memwatch.planning.sizes import InvalidInputError
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.fit_query import FitQuery
from memwatch_web.asgi.problems import ProblemError


async def fit(services: ApiServices, request: Request, question: Annotated[FitQuery, Query()]) -> Response:
    """Check if a size or a model fits now: on which device, with how many bytes to spare, and why."""
    # FastAPI 0.133 also sets parameters that have a default.
    sent = question.model_dump(include=question.model_fields_set.intersection(request.query_params))
    try:
        found = answer_request(parse_request(sent), services.current())
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    return services.json(fit_json(found))
