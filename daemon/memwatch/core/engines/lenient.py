"""Decode JSON of a known form field by field: an odd field costs only itself.

A field of type `X | None` is None if its value is not understood; its default is the meaning of an answer without
the field. Other fields have their default then. Unknown fields are skipped.
"""

from __future__ import annotations

import json
from types import UnionType
from typing import TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

T = TypeVar("T", bound=Struct)
MAX_NAMED = 4


class UnfitError(ValueError):
    """A value of another form than that of its field."""


def decode(data: bytes, kind: type[T]) -> tuple[T | None, tuple[str, ...]]:
    """Return the answer, and the fields that were not understood. None if no field of it is known.

    `null` is a value that is not there, and no odd one.
    """
    odd: list[str] = []
    try:
        return msgspec.json.decode(data, type=kind), ()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = convert(_parse(data), kind, odd)
    return found, tuple(dict.fromkeys(odd))


def is_understood(data: bytes, kind: type[T]) -> bool:
    """Return True if the answer has at least one known field with a value."""
    raw = _parse(data)
    return isinstance(raw, dict) and any(raw.get(one.encode_name) is not None for one in fields(kind))


def _parse(data: bytes) -> object:
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed


def convert(raw: object, kind: type[T], odd: list[str]) -> T | None:
    """Return the record of an object, None for anything else."""
    if not isinstance(raw, dict):
        return None
    given: dict[str, object] = {}
    for one in fields(kind):
        if one.encode_name not in raw:
            continue
        try:
            given[one.name] = _field(raw[one.encode_name], one.type, odd)
        except UnfitError:
            if raw[one.encode_name] is not None:
                odd.append(one.encode_name)
            if type(None) in get_args(one.type):
                given[one.name] = None
    return kind(**given)


def _field(value: object, wanted: object, odd: list[str]) -> object:
    """Return a value as its field wants it. An entry of a list that is not understood is one without figures."""
    options = [one for one in _options(wanted) if one is not type(None)]
    if options[0] in (list,) or get_origin(options[0]) is list:
        if not isinstance(value, list):
            raise UnfitError
        (entry,) = get_args(options[0])
        return [_entry(one, entry, odd) for one in value]
    if isinstance(options[0], type) and issubclass(options[0], Struct):
        found = convert(value, options[0], odd)
        if found is None:
            raise UnfitError
        return found
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, OverflowError):
        raise UnfitError from None


def _options(wanted: object) -> tuple[object, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _entry(value: object, kind: type[Struct], odd: list[str]) -> Struct:
    found = convert(value, kind, odd)
    if found is None:
        odd.append("an entry of a list")
    return found or kind()
