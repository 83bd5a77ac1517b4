"""GET /api/v1/fit: whether so many bytes, or a model of a shape, would fit on this machine now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from memwatch.planning.sizes import BadInput
from memwatch.render.json import Json, record_json
from memwatch_web.api.fit_request import Answered, FitQuestion
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import Problem


async def fit(services: Services, question: Annotated[FitQuestion, Query()]) -> Response:
    """Whether it would fit now, on which device, with how much to spare, and why."""
    try:
        found = question.answer(services.current())
    except BadInput as error:
        raise Problem(422, f"{error}.") from None
    return services.json(fit_json(found))


def fit_json(found: Answered) -> Json:
    change = found.change
    said = {"words": change.words, "bytes": change.need.bytes} if change else None
    return {**record_json(found.fit), "parts": dict(found.need.parts), "change": said}
