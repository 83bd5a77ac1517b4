"""Varlink messages (varlink.org): JSON objects that end with a NUL byte. Pure functions."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

END = b"\0"
SERVICE = "org.varlink.service"
Json = dict[str, Any]


class MessageError(ValueError):
    """A message that is not a method call."""


class Call(Struct, frozen=True):
    """A method call. `is_oneway`: the caller expects no reply."""

    method: str
    parameters: Json
    is_oneway: bool = False


def parse_call(data: bytes) -> Call:
    """Parse a message without its NUL byte. Raises MessageError."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise MessageError("it has no method")
    parameters = found.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise MessageError("its parameters are not an object")
    return Call(found["method"], parameters, found.get("oneway") is True)


def reply(parameters: Json) -> bytes:
    return json.dumps({"parameters": parameters}).encode() + END


def error_reply(name: str, parameters: Json) -> bytes:
    return json.dumps({"error": f"{SERVICE}.{name}", "parameters": parameters}).encode() + END
