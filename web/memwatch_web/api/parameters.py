"""Parameters of handlers, declared once by their signatures: types, with limits as `msgspec.Meta`.

A plain route admits requests whose parameters are known, given once, and valid in their usual form. Every other
request goes to FastAPI, which reads the same declaration (`fastapi_parameters`) and describes errors.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from msgspec import DecodeError, Meta, Struct, ValidationError, convert, defstruct
from msgspec.json import Decoder
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.types import Scope

from memwatch_web.api.route import Handler

Values = dict[str, Any]

# For `Meta.extra`: the parameter is a header.
HEADER = {"in": "header"}
USUAL_NUMBER = re.compile(r"(0|[1-9][0-9]{0,15})(\.[0-9]{1,6})?")
JSON_TYPE = b"application/json"
NO_DEFAULT = inspect.Parameter.empty


class Parameter(Struct, frozen=True):
    """One parameter of a handler. `wire_name`: its name in the query or path, or that of the header."""

    name: str
    wire_name: str
    annotation: Any
    default: Any
    is_header: bool
    is_list: bool


class Parameters:
    """Parameters that a handler takes from a request."""

    def __init__(self, handler: Handler) -> None:
        declared = signature_of(handler)
        self.request_name = next((one.name for one in declared if one.annotation is Request), None)
        body = next((one for one in declared if is_body(one.annotation)), None)
        self.body_name = None if body is None else body.name
        self._body = None if body is None else Decoder(body.annotation)
        self._fields = [
            parse_parameter(one) for one in declared if one.annotation is not Request and one is not body
        ]
        self._lists = frozenset(one.wire_name for one in self._fields if one.is_list)
        self._headers = frozenset(one.wire_name for one in self._fields if one.is_header)
        self._form = build_form(self._fields)

    def admit(self, scope: Scope, in_path: Mapping[str, Any]) -> Values | None:
        """Return the arguments from path, query and headers, or None if FastAPI must read the request."""
        values = self._given(scope, in_path)
        if values is None:
            return None
        try:
            form = convert(values, self._form, strict=False)
        except ValidationError:
            return None
        found = {one.name: getattr(form, one.name) for one in self._fields}
        usual = all(is_usual(values.get(one.wire_name), found[one.name]) for one in self._fields)
        return found if usual else None

    def admit_body(self, scope: Scope, body: bytes) -> Values | None:
        """Return the argument from the body, or None if FastAPI must read it."""
        types = [value for name, value in scope["headers"] if name == b"content-type"]
        if self._body is None or types != [JSON_TYPE]:
            return None
        try:
            return {str(self.body_name): self._body.decode(body)}
        except (DecodeError, RecursionError, UnicodeDecodeError):
            return None

    def _given(self, scope: Scope, in_path: Mapping[str, Any]) -> Values | None:
        """Return values by name, or None if a name has several values, or is one of the path or of a header."""
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        values: Values = {name: headers[name] for name in self._headers if name in headers}
        for name in query:
            given = query.getlist(name)
            if name in in_path or name in self._headers or (len(given) > 1 and name not in self._lists):
                return None
            values[name] = given if name in self._lists else given[0]
        return {**values, **in_path}


def signature_of(handler: Handler) -> list[inspect.Parameter]:
    """Return the parameters of a handler after the services."""
    return list(inspect.signature(handler, eval_str=True).parameters.values())[1:]


def is_body(annotation: Any) -> bool:  # noqa: ANN401  any annotation
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def meta_of(annotation: Any) -> Meta | None:  # noqa: ANN401  any annotation
    return next((one for one in get_args(annotation)[1:] if isinstance(one, Meta)), None)


def parse_parameter(declared: inspect.Parameter) -> Parameter:
    """Parse an annotated parameter: `from_` to `from`, and `last_event_id` of a header to `last-event-id`."""
    meta, name = meta_of(declared.annotation), declared.name.rstrip("_")
    is_header = meta is not None and meta.extra == HEADER
    inner = get_args(declared.annotation)[0]
    is_list = any(get_origin(one) is list for one in get_args(inner))
    wire_name = name.replace("_", "-") if is_header else name
    return Parameter(declared.name, wire_name, declared.annotation, declared.default, is_header, is_list)


def build_form(fields: list[Parameter]) -> type[Struct]:
    """Build the type of all values together. It has no other names."""
    types = [
        (one.name, one.annotation) if one.default is NO_DEFAULT else (one.name, one.annotation, one.default)
        for one in fields
    ]
    names = {one.name: one.wire_name for one in fields}
    return defstruct("Form", types, rename=names, forbid_unknown_fields=True, kw_only=True)


def is_usual(text: Any, value: Any) -> bool:  # noqa: ANN401  any parameter
    """Check the form of a number: msgspec and pydantic differ in others, such as 1e2 and +5."""
    if text is None or not isinstance(value, float | int):
        return True
    usual = USUAL_NUMBER.fullmatch(text)
    return usual is not None and (isinstance(value, float) or usual[2] is None)
