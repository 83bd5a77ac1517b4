"""The parameters of a request to the planner as pydantic reads them from a query, for FastAPI and the page /fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, create_model

from memwatch.planning.parameters import Parameter
from memwatch.planning.request import DESCRIBED, PARAMETERS, FitRequest, parse_request

LIMITS = ("ge", "le", "min_length", "max_length")


def _declare(one: Parameter) -> Any:  # noqa: ANN401  a type and a field of pydantic
    """Return a type and a field. The planner itself refuses whole numbers: its sentence has an example."""
    default = DESCRIBED.get(one.name, one.default)
    kind = one.kind | None if default is None else one.kind
    limits: dict[str, Any] = {name: getattr(one.limits, name) for name in LIMITS}
    if one.bounds:
        limits = {"json_schema_extra": dict(zip(("minimum", "maximum"), one.bounds, strict=True))}
    return kind, Field(default, description=one.describe() or None, **limits)


FIELDS: dict[str, Any] = {name: _declare(one) for name, one in PARAMETERS.items()}
FitQuery: Any = create_model(
    "FitQuery", __config__=ConfigDict(extra="forbid"), __doc__=FitRequest.__doc__, **FIELDS
)


def parse_query(fields: Mapping[str, str]) -> FitRequest:
    """Raises pydantic's ValidationError and InvalidInputError."""
    return parse_request(FitQuery.model_validate(fields).model_dump(exclude_unset=True))
