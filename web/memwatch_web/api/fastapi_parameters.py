"""Handlers as FastAPI reads them: their `msgspec` declarations as parameters of FastAPI and models of pydantic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import Header, Path, Query
from msgspec import Meta, Struct, convert
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.responses import Response

from memwatch_web.api.parameters import HEADER, is_body, meta_of, parse_parameter, signature_of
from memwatch_web.api.route import Route
from memwatch_web.api.services import Services

# Members of `Meta` that pydantic has by the same name.
MEMBERS = ("description", "examples", "gt", "ge", "lt", "le", "min_length", "max_length", "pattern")
# Of numbers in a body: no text, and no NaN.
STRICTNESS: Mapping[Any, dict[str, Any]] = {int: {"strict": True}, float: {"allow_inf_nan": False}}


def bind(route: Route, services: Services) -> Callable[..., Coroutine[Any, Any, Response]]:
    """Return the handler of a route with its services, and with a signature for FastAPI."""
    declared = signature_of(route.handler)
    bodies = {one.name: one.annotation for one in declared if is_body(one.annotation)}

    async def answer(**arguments: Any) -> Response:  # noqa: ANN401  validated by FastAPI
        for name, kind in bodies.items():
            arguments[name] = convert(arguments[name], kind, from_attributes=True)
        return await route.handler(services, **arguments)

    answer.__name__, answer.__doc__ = route.handler.__name__, route.handler.__doc__
    signature = inspect.Signature([translate_parameter(one, route.path) for one in declared])
    answer.__signature__ = signature  # type: ignore[attr-defined]
    return answer


def translate_parameter(declared: inspect.Parameter, path: str) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if is_body(declared.annotation):
        return declared.replace(annotation=build_model(declared.annotation), kind=kind)
    meta = meta_of(declared.annotation)
    if meta is None:  # a request, or declared for FastAPI alone
        return declared.replace(kind=kind)
    make: Any = Path if f"{{{declared.name}}}" in path else Header if meta.extra == HEADER else Query
    names = {"alias": parse_parameter(declared).wire_name} if make is Query else {}
    inner = get_args(declared.annotation)[0]
    limits = {"allow_inf_nan": False} if inner is float else {}
    annotation: Any = Annotated[translate_type(inner), make(**names, **limits, **members_of(meta))]
    return declared.replace(annotation=annotation, kind=kind)


def build_model(struct: type[Struct]) -> type[BaseModel]:
    """Build the model of a body: no other fields, and its `EXAMPLE`."""
    example = getattr(struct, "EXAMPLE", None)
    config = ConfigDict(extra="forbid", json_schema_extra={"examples": [example]} if example else None)
    found: dict[str, Any] = {one.name: (translate_type(one.type), default_of(one)) for one in fields(struct)}
    return create_model(struct.__name__, __config__=config, __doc__=struct.__doc__, **found)


def translate_type(annotation: Any) -> Any:  # noqa: ANN401  any annotation
    """Translate a type with its limits."""
    if is_body(annotation):
        return build_model(annotation)
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        members = {name: value for meta in metas for name, value in members_of(meta).items()}
        return Annotated[translate_type(inner), Field(**members, **STRICTNESS.get(inner, {}))]
    if get_origin(annotation) in (Union, UnionType):
        return reduce(or_, map(translate_type, get_args(annotation)))
    if get_origin(annotation) is list:
        return list[translate_type(get_args(annotation)[0])]  # type: ignore[misc]
    return annotation


def default_of(field: FieldInfo) -> Any:  # noqa: ANN401  any default
    return ... if field.required else field.default


def members_of(meta: Meta) -> dict[str, Any]:
    return {name: value for name in MEMBERS if (value := getattr(meta, name)) is not None}
