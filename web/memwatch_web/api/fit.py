"""GET /api/v1/fit: check that a size, or a model given by its shape, fits on this machine now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from memwatch.planning.sizes import InvalidInputError
from memwatch.render.json import fit_json
from memwatch_web.api.fit_request import FitRequest
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import ProblemError


async def fit(services: Services, question: Annotated[FitRequest, Query()]) -> Response:
    """Check that a size or a model fits now: on which device, with how many bytes to spare, and why."""
    try:
        found = question.answer(services.current())
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    return services.json(fit_json(found))
