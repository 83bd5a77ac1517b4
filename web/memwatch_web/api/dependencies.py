"""Dependencies of all routes of the API: the services, and the refusal of unknown and repeated query parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends
from pydantic import BaseModel
from starlette.requests import Request

from memwatch.core.wire import to_bytes
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import ProblemError, refuse_repeated


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ApiServices = Annotated[Services, Depends(services_of)]


async def refuse_unknown(request: Request) -> None:
    """Raise ProblemError with the known names: `history?range=30d` must not silently return one hour."""
    if not request.scope["query_string"]:
        return
    path: str = request.scope["path"]
    known = dict(names_in(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            use = f"use {', '.join(known)}." if known else "this path takes none."
            raise ProblemError(422, f"unknown parameter {name[:80]!r} for {path}: {use}")
    refuse_repeated(request.query_params, [name for name, annotation in known.items() if is_list(annotation)])


def is_list(annotation: Any) -> bool:  # noqa: ANN401  any annotation
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def find_example(dependant: Any, where: Sequence[int | str]) -> str | None:  # noqa: ANN401  FastAPI's own
    """Return an example for a missing parameter or body, such as `seconds=3600`, or None."""
    if where[0] == "body":
        bodies = [field.field_info.annotation.model_config for field in dependant.body_params]
        examples = [one for body in bodies for one in body.get("json_schema_extra", {}).get("examples", ())]
        return to_bytes(examples[0]).decode() if examples else None
    examples = [
        one
        for field in dependant.query_params
        if field.alias == where[-1]
        for one in field.field_info.examples or ()
    ]
    return f"{where[-1]}={examples[0]}" if examples else None


def names_in(dependant: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  FastAPI's own, which it does not export
    """Yield the names and types of all query parameters of a route, including the fields of models."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((known.alias or name, known.annotation) for name, known in kind.model_fields.items())
        else:
            yield field.alias, kind
    for other in dependant.dependencies:
        yield from names_in(other)
