"""Parameters that nobody reads are refused: `history?range=30d` must not answer an hour as if it were that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from memwatch.render.json import to_bytes
from memwatch_web.asgi.problems import Problem


async def refuse_unknown(request: Request) -> None:
    """A dependency of every route of the API. Raises Problem, with the names that there are."""
    if not request.scope["query_string"]:
        return
    path: str = request.scope["path"]
    known = list(dict.fromkeys(names_in(request.scope["route"].dependant)))
    for name in request.query_params:
        if name not in known:
            use = f"use {', '.join(known)}." if known else "it takes none."
            raise Problem(422, f"there is no parameter {name[:80]!r} at {path}: {use}")


def example_of(dependant: Any, where: Sequence[int | str]) -> str | None:  # noqa: ANN401  FastAPI's own
    """What one may send in place of what is missing: `seconds=3600`, or a whole body. None where none is known."""
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


def names_in(dependant: Any) -> Iterator[str]:  # noqa: ANN401  FastAPI's own, which it does not export
    """Of all that a route reads from its address, the fields of a model one by one."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (known.alias or name for name, known in kind.model_fields.items())
        else:
            yield field.alias
    for other in dependant.dependencies:
        yield from names_in(other)
