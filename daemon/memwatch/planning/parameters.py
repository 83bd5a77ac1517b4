"""Parameters of a request, declared once: as fields of records, each with its type, limits, default and `Doc`.

The options of `memwatch fit`, the query of /api/v1/fit, and what one sends to the other come from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import fields

from memwatch.core.doc import Doc
from memwatch.planning.arguments import InvalidInputError, check_count, describe, quote

Record = TypeVar("Record", bound=Struct)


class Text(Struct, frozen=True):
    """Beside the type of a field that a request has as text, such as 4GiB. `parse` takes it and its name."""

    parse: Callable[[str, str], object]


class Parameter(Struct, frozen=True):
    """A field of a record, by its name in requests.

    `record`: the type of a field that is a record itself: its fields are parameters too. If it may be missing and
    has a `Doc`, its name is a switch.
    """

    name: str
    attribute: str
    kind: Any
    default: Any
    doc: Doc
    limits: Meta
    record: type[Struct] | None
    parse: Callable[[str, str], object] | None

    @property
    def is_switch(self) -> bool:
        return self.record is not None and bool(self.doc.text)

    @property
    def is_whole(self) -> bool:
        """True if the record exists in every request, False if it may be missing."""
        return self.record is not None and self.default is not None

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words, without the empty one for none."""
        return tuple(word for word in get_args(self.kind) if word) if get_origin(self.kind) is Literal else ()

    def describe(self, spell: Callable[[str], str] = str) -> str:
        """Return the meaning. `spell`: a parameter's name as its reader writes it."""
        return self.doc.text.replace("{train}", spell("train"))

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Return the least and the greatest of a whole number, None without limits."""
        if int not in (self.kind, *get_args(self.kind)) or self.limits.ge is None or self.limits.le is None:
            return None
        return int(self.limits.ge), int(self.limits.le)

    @property
    def example(self) -> int:
        low, high = self.bounds or (0, 0)
        return int(self.doc.examples[0]) if self.doc.examples else min(max(low, self.default or 1024), high)

    def check(self, value: object, name: str) -> None:
        """Raise InvalidInputError for a number beyond its limits, and for another word than the choices."""
        if self.bounds:
            check_count(value, name, self.example, *self.bounds)
        elif self.choices and value not in get_args(self.kind):
            raise InvalidInputError(f"{name} is {quote(value)}, which is not one of {', '.join(self.choices)}")
        elif self.record and value is not None and not isinstance(value, self.record):
            kind = self.record.__name__
            raise InvalidInputError(f"{name} is {describe(value)}, which is not a {kind}; for example {kind}()")
        elif self.kind is bool and not isinstance(value, bool):
            raise InvalidInputError(f"{name} is {describe(value)}, which is not True or False; for example True")
        elif self.kind is str and self.parse is None and not isinstance(value, str):
            raise InvalidInputError(
                f"{name} is {describe(value)}, which is not a text; for example {self.default!r}"
            )


@cache
def list_parameters(record: type[Struct]) -> tuple[Parameter, ...]:
    """Return the parameters that are fields of a record: all, or its REQUESTED in that order."""
    known = {one.name: one for one in fields(record)}
    return tuple(_declared(known[name]) for name in getattr(record, "REQUESTED", known))


def _declared(one: Any) -> Parameter:  # noqa: ANN401  msgspec's FieldInfo
    kind, *marks = get_args(one.type) if get_origin(one.type) is Annotated else (one.type,)
    found = {type(mark): mark for mark in marks}
    inner = [part for part in (kind, *get_args(kind)) if isinstance(part, type) and issubclass(part, Struct)]
    text = found.get(Text)
    return Parameter(
        one.encode_name,
        one.name,
        str if text else kind,
        "" if text else None if one.default is NODEFAULT else one.default,
        found.get(Doc, Doc()),
        found.get(Meta, Meta()),
        inner[0] if inner else None,
        text.parse if text else None,
    )


def walk_parameters(record: type[Struct]) -> Iterator[Parameter]:
    """Yield the parameters of a record and of those inside it, in the order of its fields."""
    for one in list_parameters(record):
        if one.record is None:
            yield one
            continue
        if one.is_switch:
            yield Parameter(one.name, one.attribute, bool, False, one.doc, one.limits, None, None)
        yield from walk_parameters(one.record)


@cache
def _list_names(record: type[Struct]) -> frozenset[str]:
    return frozenset(one.name for one in walk_parameters(record))


def build(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a record from values of parameters. A record inside that may be missing needs its switch.

    Raises InvalidInputError with the names of parameters, where a record would name its fields.
    """
    found: dict[str, Any] = {}
    for one in list_parameters(record):
        if one.record is not None:
            # A whole record without a value stays its default.
            is_given = one.is_whole and not _list_names(one.record).isdisjoint(values)
            if is_given or (one.is_switch and values.get(one.name)):
                found[one.attribute] = build(one.record, values)
        elif one.name in values:
            value = values[one.name]
            if one.parse is None:
                if value != one.default:
                    one.check(value, one.name)
                found[one.attribute] = value
            elif value:
                found[one.attribute] = one.parse(value, one.name)
    return record(**found)


def write_parameters(record: Struct) -> dict[str, str]:
    """Return the values that `build` needs for a record: as text, without those that have their default."""
    found: dict[str, str] = {}
    for one in list_parameters(type(record)):
        value = getattr(record, one.attribute)
        if isinstance(value, Struct):
            found |= ({one.name: "true"} if one.is_switch else {}) | write_parameters(value)
        elif value != (one.default or 0 if one.parse else one.default) and value is not None:
            found[one.name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def check_fields(record: Struct, by_attribute: bool = False) -> None:
    """Check limits and words of the fields that do not have their default. Raises InvalidInputError."""
    for one in list_parameters(type(record)):
        value = getattr(record, one.attribute)
        is_missing = value is None and type(None) not in get_args(one.kind)
        if value != one.default or isinstance(value, bool) or is_missing:
            one.check(value, one.attribute if by_attribute else one.name)
