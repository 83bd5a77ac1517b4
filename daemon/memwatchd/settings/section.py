"""Keys of sections: their types, defaults, and annotations of the process."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from memwatch.notify.webhook_payload import Endpoint, parse_endpoint
from memwatch.options import InvalidValueError, Section


class ContextConverter(Struct, frozen=True):
    """The same for what may be kept elsewhere; the function's second argument says where to look."""

    function: Callable[[Any, Any], object]


class TakesEffect(Struct, frozen=True):
    """When a changed value is in force. Every key declares one, itself or through the section that it is in.

    `at`: the next start, a reload, or the reading of the settings for a key that only permits others. `while_set`
    names a key of the same section that must be set before and after, else a reload is not enough. `simulated` is
    false for what is not used while a recording is shown.
    """

    at: Literal["start", "reload", "reading"]
    while_set: str = ""
    simulated: bool = True


AT_START = TakesEffect("start")
ON_RELOAD = TakesEffect("reload")
ON_RELOAD_OF_MACHINE = TakesEffect("reload", simulated=False)
ON_READING = TakesEffect("reading")


class Key(Struct, frozen=True):
    """A key of a section: its type, what is written beside that, and its default or NODEFAULT."""

    name: str
    kind: Any
    extras: tuple[object, ...]
    default: object


# What was found out about each section.
KEYS_BY_SECTION: dict[type[Section], dict[str, Key]] = {}


def section_keys(section: type[Section]) -> dict[str, Key]:
    """The keys of a section, in order."""
    if section not in KEYS_BY_SECTION:
        hints = get_type_hints(section, include_extras=True)
        KEYS_BY_SECTION[section] = {one.name: describe_key(one, hints[one.name]) for one in fields(section)}
    return KEYS_BY_SECTION[section]


def describe_key(field: FieldInfo, hint: object) -> Key:
    """Describe a field. A section whose keys are derived is declared as its base and known by its default."""
    kind, extras = unwrap(hint)
    default = default_of(field)
    if is_section(kind) and isinstance(default, kind):
        kind = type(default)
    return Key(field.name, kind, extras, default)


def default_of(key: FieldInfo) -> object:
    return key.default if key.default_factory is NODEFAULT else key.default_factory()


def unwrap(hint: Any) -> tuple[Any, tuple[object, ...]]:  # noqa: ANN401  whatever may stand in an annotation
    """A type that may be left out without that, and what is written beside it."""
    extras: tuple[object, ...] = ()
    while True:
        inside = [kind for kind in get_args(hint) if kind is not NoneType]
        if get_origin(hint) is Annotated:
            extras += hint.__metadata__
            hint = hint.__origin__
        elif len(inside) == 1 and NoneType in get_args(hint):
            hint = inside[0]
        else:
            return hint, extras


def is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def checked_endpoint(value: object) -> Endpoint:
    if not isinstance(value, str):
        raise InvalidValueError
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None


def checked_url(value: object) -> str:
    checked_endpoint(value)
    return str(value).rstrip("/")
