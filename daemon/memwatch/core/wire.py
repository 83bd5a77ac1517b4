"""Records as JSON: one encoder, one decoder and one description, all three from the records.

A field is declared once, with its type and its `Doc`, on its record. A `Shape` says what an answer has beside or
without them. An absent value is null, and `absent` of the same object has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property
from itertools import chain
from math import isfinite
from types import EllipsisType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, field, json
from msgspec.structs import FieldInfo, fields

from memwatch.core.doc import Doc
from memwatch.core.model import Absent
from memwatch.core.printable import printable

Json = dict[str, Any]
ABSENT, SIMULATED = "absent", "simulated"
# Larger than any real size, and beyond 64-bit signed integers.
TOO_MANY = 1 << 63
# Types of values that are the same in JSON: most of them, and cheaper to recognize than all others.
SAME = frozenset({int, str, float, bool, type(None), Absent})
REASON_BY_WORD = {one.value: one for one in Absent}
REASONS: Json = {
    "additionalProperties": {"enum": [one.value for one in Absent], "type": "string"},
    "type": "object",
}
PLAIN: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
REFERENCE = "#/components/schemas/"


def to_bytes(value: Any) -> bytes:  # noqa: ANN401  JSON is anything
    return json.encode(value, enc_hook=_encode_base)


def _encode_base(value: object) -> int | str:
    """Encode subclasses of int and str as their base type."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def rfc3339(unix: float) -> str:
    """Format a time as RFC 3339: UTC, milliseconds, with a Z."""
    return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Return the Unix time of a text of `rfc3339`. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()  # Python 3.10 knows no Z


class Form(Struct, frozen=True):
    """A field that JSON has in another form: its type there, how it is written, and how read if it ever is."""

    kind: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None = None


class Shape(Struct, frozen=True, dict=True):
    """A record in an answer. `name`: that of its description.

    `further`: fields beside those of the record, by the names of functions: properties, or functions of the record
    and of what the answer is about, such as its snapshot. Their return types describe them. `order`: names in the
    order of the answer, with `...` for all others. `absent` among them has the reasons, at the end by default.
    `flat`: attributes of the record that are records themselves, with the names of their fields that are shown as
    its own. `optional`: fields that some answers leave out.
    """

    record: Any
    name: str = ""
    further: tuple[Any, ...] = ()
    flat: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    order: tuple[str | EllipsisType, ...] = (...,)
    optional: tuple[str, ...] = ()
    forms: Mapping[str, Form] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or str(self.record.__name__)

    @cached_property
    def columns(self) -> Mapping[str, str | Callable[[Any, Any], Any]]:
        """Attribute of the record, or function, by name in JSON, in the order of the answer."""
        kind = self.record
        found: dict[str, Any] = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        found |= {name: _through(part, name) for part, names in self.flat.items() for name in names}
        found |= {name: name if one is not given else given for name, one, given in self._further}
        placed = {*self.order, *self.without, *self.flat}
        others = [name for name in found if name not in placed]
        names = chain.from_iterable(others if one is ... else (one,) for one in self.order)
        return {name: found.get(name, name) for name in names}

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Declared type by name in JSON, with its `Doc`."""
        declared = get_type_hints(self.record, include_extras=True)
        found = {name: self._hint(name, declared[one]) for name, one in self.columns.items() if one in declared}
        for part, names in self.flat.items():
            inner = get_type_hints(get_type_hints(self.record)[part], include_extras=True)
            found |= {name: self._hint(name, inner[name]) for name in names}
        return found | {name: get_type_hints(one, include_extras=True)["return"] for name, one, _ in self._further}

    def _hint(self, name: str, hint: Any) -> Any:  # noqa: ANN401
        """Return the type of a field, in its form if it has one, with its documentation."""
        if name not in self.forms:
            return hint
        kind = self.forms[name].kind
        parts = (kind, *get_args(hint)[1:])
        return Annotated[parts] if get_origin(hint) is Annotated else kind

    @property
    def _further(self) -> Iterable[tuple[str, Any, Any]]:
        """Yield name, function, and what was given: a function, or the property whose getter it is."""
        for given in self.further:
            yield _name_of(given), _function_of(given), given


def _through(part: str, name: str) -> Callable[[Any, Any], Any]:
    return lambda record, _: getattr(getattr(record, part), name)


def _function_of(one: Any) -> Any:  # noqa: ANN401  a property or a function
    if isinstance(one, cached_property):
        return one.func
    return one.fget if isinstance(one, property) else one


def _name_of(one: Any) -> str:  # noqa: ANN401
    return str(_function_of(one).__name__)


def known(**values: Any) -> Json:  # noqa: ANN401
    """Return the values with absent ones as null, and their reasons under `absent`."""
    reasons = {name: value.value for name, value in values.items() if isinstance(value, Absent)}
    return {**values, **dict.fromkeys(reasons), ABSENT: reasons} if reasons else values


def in_place(value: Any) -> Any:  # noqa: ANN401
    """Return a record, or an absent value, for a JSON encoder that keeps each reason in place of its value."""
    if value.__class__ is Absent:
        return {ABSENT: value.value}
    return {name: getattr(value, name) for name in value.__struct_fields__}


class Wire:
    """Encoder, decoder and description of records with the shapes that some of them have.

    Of several shapes of a record, the first is that inside other records. A record without one is shown as it is.
    Integers from `too_many` are refused.
    """

    def __init__(self, shapes: Iterable[Shape] = (), base: Wire | None = None, too_many: float = TOO_MANY) -> None:
        self._too_many = too_many
        self._shapes: dict[Any, Shape] = dict(base._shapes) if base else {}
        for shape in shapes:
            self._shapes.setdefault(shape.record, shape)
        self._writers: dict[Any, Callable[[Any, Any], Any]] = {}
        self._builders: dict[Any, Callable[[Any], Any]] = {}

    @property
    def shapes(self) -> Iterable[Shape]:
        return self._shapes.values()

    def shape_of(self, record: Any) -> Shape:  # noqa: ANN401  a class
        return self._shapes.setdefault(record, Shape(record))

    def encode(self, record: Struct, about: Any = None, shape: Shape | None = None) -> Json:  # noqa: ANN401
        """Return the record as JSON. `about`: what functions of shapes take beside it."""
        shape = shape or self.shape_of(record.__class__)
        found: Json = {}
        reasons: dict[str, str] = {}
        for name, source in shape.columns.items():
            if name == ABSENT:
                found |= {ABSENT: reasons} if reasons else {}
                continue
            value = getattr(record, source) if isinstance(source, str) else source(record, about)
            if value.__class__ is Absent:
                reasons[name], found[name] = value.value, None
            elif name in shape.forms:
                found[name] = shape.forms[name].write(value)
            else:
                found[name] = value if value.__class__ in SAME else self.plain(value, about)
        if reasons:
            found[ABSENT] = reasons
        return found

    def encode_all(self, records: Iterable[Struct], about: Any = None, shape: Shape | None = None) -> list[Json]:  # noqa: ANN401
        return [self.encode(record, about, shape) for record in records]

    def plain(self, value: Any, about: Any = None) -> Any:  # noqa: ANN401
        """Return any value of a record as JSON."""
        kind = value.__class__
        if kind in SAME:
            return value
        if kind not in self._writers:
            self._writers[kind] = self._writer_of(kind)
        return self._writers[kind](value, about)

    def _writer_of(self, kind: Any) -> Callable[[Any, Any], Any]:  # noqa: ANN401
        if issubclass(kind, Enum):
            return (lambda value, _: value.word) if hasattr(kind, "word") else (lambda value, _: value.value)
        if issubclass(kind, tuple | list):
            return self._encode_list
        if issubclass(kind, Mapping):
            return lambda value, _: known(**value)
        return self.encode if issubclass(kind, Struct) else lambda value, _: value

    def _encode_list(self, values: Sequence[Any], about: Any) -> list[Any]:  # noqa: ANN401
        if SAME.issuperset(map(type, values)):  # of numbers, such as a thousand points of a series
            return list(values)
        return [self.plain(part, about) for part in values]

    def decode(self, kind: Any, value: Any) -> Any:  # noqa: ANN401
        """Build a value of a type from decoded JSON. Texts are made printable.

        Anything else raises TypeError, KeyError or ValueError.
        """
        return self._builder(kind)(value)

    def _builder(self, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
        if kind not in self._builders:
            self._builders[kind] = self._make_builder(kind)
        return self._builders[kind]

    def _make_builder(self, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401  one line for each kind
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._builder(inner[0])
        if origin in (Union, UnionType):
            return self._union_builder(inner)
        if origin is Literal:
            return _choice_builder({word: word for word in inner}, kind)
        if origin is tuple:
            return self._tuple_builder(self._builder(inner[0]), kind)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping_builder(self._builder(inner[1]), kind)
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self._record_builder(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _choice_builder(_members(kind), kind)
        return self._build_int if kind is int else _plain_builder(kind)

    def _build_int(self, value: Any) -> int:  # noqa: ANN401
        return value if type(value) is int and abs(value) < self._too_many else refuse(value, int)

    def _union_builder(self, kinds: Sequence[Any]) -> Callable[[Any], Any]:
        *builders, last = [self._builder(kind) for kind in kinds if kind not in (Absent, type(None))]
        may_be_absent, may_be_none = Absent in kinds, type(None) in kinds

        def build(value: Any) -> Any:  # noqa: ANN401
            if value is None and may_be_none:
                return None
            if value is None and may_be_absent:  # an older version gave no reason
                return Absent.NOT_AVAILABLE
            if may_be_absent and type(value) is dict and type(value.get(ABSENT)) is str:  # see `in_place`
                return _reason_from(value[ABSENT])
            for one in builders:
                with suppress(TypeError, KeyError, ValueError):
                    return one(value)
            return last(value)

        return build

    def _tuple_builder(self, part: Callable[[Any], Any], kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
        return lambda value: tuple([part(one) for one in value]) if type(value) is list else refuse(value, kind)

    def _mapping_builder(self, part: Callable[[Any], Any], kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
        def build(value: Any) -> Any:  # noqa: ANN401
            if type(value) is not dict:
                refuse(value, kind)
            if type(value.get(ABSENT)) is not dict:
                return {printable(name): part(one) for name, one in value.items()}
            reasons = reasons_in(value)
            plain = {name: part(one) for name, one in value.items() if name not in reasons and name != ABSENT}
            return {printable(name): one for name, one in (plain | reasons).items()}

        return build

    def _record_builder(self, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
        parts: list[tuple[FieldInfo, Callable[[Any], Any]]] | None = None
        known_parts: dict[str, Callable[[Any], Any]] = {}

        def build(value: Any) -> Any:  # noqa: ANN401
            nonlocal parts
            if type(value) is not dict:
                refuse(value, kind)
            if parts is None:  # type hints take long, and most kinds of records are rare
                parts = self._record_parts(kind)
                known_parts.update((part.encode_name, build_part) for part, build_part in parts)
            reasons = reasons_in(value)
            if known_parts.keys() <= value.keys():  # of this version or a newer one: by position
                return kind(
                    *[
                        reasons[name] if name in reasons else build_part(value[name])
                        for name, build_part in known_parts.items()
                    ]
                )
            found = {}
            for part, build_part in parts:
                name = part.encode_name
                if name in reasons:
                    found[part.name] = reasons[name]
                elif name in value:
                    found[part.name] = build_part(value[name])
                elif part.required:
                    raise KeyError(f"{kind.__name__} without {name}")
            return kind(**found)

        return build

    def _record_parts(self, kind: Any) -> list[tuple[FieldInfo, Callable[[Any], Any]]]:  # noqa: ANN401
        hints, forms = get_type_hints(kind), self.shape_of(kind).forms
        return [
            (one, (one.name in forms and forms[one.name].read) or self._builder(hints[one.name]))
            for one in fields(kind)
        ]


def reasons_in(value: Mapping[str, Any]) -> dict[str, Absent]:
    """Return the reasons in an object, by field."""
    reasons = value.get(ABSENT)
    return {name: _reason_from(word) for name, word in reasons.items()} if isinstance(reasons, dict) else {}


def _reason_from(word: Any) -> Absent:  # noqa: ANN401
    """Return a reason. One that only a newer version has: the figure is not available."""
    return REASON_BY_WORD.get(word, Absent.NOT_AVAILABLE) if type(word) is str else refuse(word, Absent)


def refuse(value: Any, kind: Any) -> NoReturn:  # noqa: ANN401
    raise TypeError(f"{value!r:.60} is not {kind}")


def _choice_builder(choices: Mapping[Any, Any], kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    return lambda value: choices[value] if value in choices else refuse(value, kind)


def _members(kind: Any) -> dict[str, Any]:  # noqa: ANN401  an enumeration
    return {getattr(one, "word", one.value): one for one in kind}


def _plain_builder(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    if kind is float:  # JSON has neither NaN nor infinity, but Python's parser accepts both
        return lambda value: (
            float(value) if type(value) in (int, float) and isfinite(value) else refuse(value, kind)
        )
    if kind is str:
        return lambda value: printable(value) if type(value) is str else refuse(value, kind)
    if kind is type(None):
        return lambda value: None if value is None else refuse(value, kind)
    return lambda value: value if type(value) is kind else refuse(value, kind)


class Description:
    """JSON schemas of shapes, and of the records inside them: `definitions`, by name."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.definitions: Json = {}

    def add(self, shape: Shape) -> Json:
        """Add the schema of a shape, and return a reference to it."""
        if shape.title not in self.definitions:
            schema: Json = {"additionalProperties": False, "properties": {}, "title": shape.title, "type": "object"}
            self.definitions[shape.title] = schema
            from inspect import cleandoc  # with six more modules, which a helper process does without

            if documented := cleandoc(vars(shape.record).get("__doc__") or ""):
                schema["description"] = " ".join(documented.partition("\n\n")[0].split())
            schema["properties"] = self._properties(shape)
            left_out = {ABSENT, *shape.optional, *(() if SIMULATED in shape.hints else (SIMULATED,))}
            schema["required"] = [name for name in schema["properties"] if name not in left_out]
        return {"$ref": REFERENCE + shape.title}

    def _properties(self, shape: Shape) -> Json:
        found: Json = {SIMULATED: {"default": False, "description": "True with --demo and --replay.",
                                   "title": "Simulated", "type": "boolean"}}  # fmt: skip
        if any(Absent in _alternatives(hint) for hint in shape.hints.values()):
            found[ABSENT] = {
                **REASONS,
                "description": "Reason for each null field of this object.",
                "title": "Absent",
            }
        for name in shape.columns:
            if name != ABSENT:
                found[name] = self._property(name, shape.hints[name])
        for name in shape.optional:
            found[name]["default"] = None
        return found

    def _property(self, name: str, hint: Any) -> Json:  # noqa: ANN401
        docs = [one for one in get_args(hint)[1:] if isinstance(one, Doc)] if get_origin(hint) is Annotated else []
        schema = self._schema(hint)
        if "$ref" not in schema and not any("$ref" in one for one in schema.get("anyOf", ())):
            schema["title"] = name.replace("_", " ").title()
        for doc in docs:
            schema |= {"enum": list(doc.values)} if doc.values else {}
            schema |= {"description": doc.text} if doc.text else {}
            schema |= {"examples": list(doc.examples)} if doc.examples else {}
        return schema

    def _schema(self, hint: Any) -> Json:  # noqa: ANN401
        alternatives = _alternatives(hint)
        known = [self._one(kind) for kind in alternatives if kind not in (Absent, type(None))]
        if len(known) == len(alternatives) == 1:
            return known[0]
        return {"anyOf": [*known, {"type": "null"}]} if len(known) < len(alternatives) else {"anyOf": known}

    def _one(self, kind: Any) -> Json:  # noqa: ANN401
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(inner), "type": "string"}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"additionalProperties": self._values(inner[1]), "type": "object"}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"items": self._schema(inner[0]), "type": "array"}
        if issubclass(kind, Struct):
            return self.add(self._wire.shape_of(kind))
        return {"enum": list(_members(kind)), "type": "string"} if issubclass(kind, Enum) else {"type": PLAIN[kind]}

    def _values(self, hint: Any) -> Json:  # noqa: ANN401
        """Return the schema of the values of a mapping: `absent` among them has the reasons of the others."""
        schema = self._schema(hint)
        if Absent in _alternatives(hint):
            schema["anyOf"].insert(-1, REASONS)
        return schema


def _alternatives(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the types of a union, or the type."""
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
