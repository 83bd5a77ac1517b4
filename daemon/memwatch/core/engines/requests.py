"""Requests to engines, their effect on a server that sleeps or loads a model, and the answers of one round.

JSON of a known form is decoded field by field: an odd field costs only itself. A field of type `X | None` is None
if its value is not understood; its default is the meaning of an answer without the field. Other fields have their
default then. Unknown fields are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from memwatch.core.engines.command import Command
from memwatch.core.engines.text import SAMPLE, Exposition
from memwatch.core.listing import some_of

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


class Model(Struct, frozen=True):
    """An entry of /v1/models. `loaded`: of servers that list other models as well (mlx-vlm 0.7)."""

    id: str = ""
    root: str | None = None
    max_model_len: int | None = None
    loaded: bool | None = None


class Models(Struct, frozen=True):
    data: list[Model] = []


class VersionAnswer(Struct, frozen=True):
    version: str = ""


class Answers(Struct, frozen=True):
    """Bodies by path. A path without an answer is missing. `inner`: the command line of a process that holds the
    model, if it is not that of the server."""

    bodies: Mapping[str, bytes]
    command: Command = Command()
    inner: Command = Command()

    def json(self, path: str, kind: type[T]) -> T | None:
        body = self.bodies.get(path)
        return decode(body, kind)[0] if body else None

    def metrics(self, path: str = "/metrics") -> Exposition:
        return Exposition(self.bodies.get(path))

    def models(self, path: str = "/v1/models") -> list[Model]:
        """Return an OpenAI-compatible list."""
        found = self.json(path, Models)
        return found.data if found else []

    def model(self, path: str = "/v1/models") -> Model:
        return next(iter(self.models(path)), Model())

    def version(self, path: str = "/version") -> str:
        found = self.json(path, VersionAnswer)
        return found.version if found else ""


NOT_UNDERSTOOD = "its answer was not understood."
Frequency = Literal["every 5 s", "once a minute", "never"]


def always(_: Answers) -> bool:
    return True


class Request(Struct, frozen=True):
    """A path of an engine. `A|B` is B if A has no answer, or one with no known field.

    LM Studio answers each path that it does not know with 200 and a sentence (lmstudio-bug-tracker#618).

    `effect` is that on a server that sleeps or loads a model. `allows` decides by the answers of this round to the
    requests before it, and by the command line. A request that is never sent is listed with the reason. `form` is
    that of its JSON; without, the answer is a Prometheus text.
    """

    path: str
    asked: Frequency
    effect: str
    allows: Callable[[Answers], bool] = always
    form: type[Struct] | None = None

    def is_answered_by(self, body: bytes) -> bool:
        """Return False for JSON without a known field."""
        return self.form is None or is_understood(body, self.form)

    def find_oddity(self, body: bytes) -> str:
        """Return a sentence if the answer, or a field of it, was not understood; empty otherwise."""
        odd: tuple[str, ...] = ()
        if self.form is None:
            is_clear = not body.strip() or SAMPLE.search(body) is not None
        else:
            found, odd = decode(body, self.form)
            is_clear = found is not None and (found != self.form() or is_understood(body, self.form))
        path = self.path.partition("|")[0]
        if not is_clear:
            return f"{path}: {NOT_UNDERSTOOD}"
        return f"{path}: {some_of(odd, MAX_NAMED)} in its answer was not understood." if odd else ""
