"""Keys of sections: types, defaults and annotations, including those of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from memwatch.core.options import InvalidValueError, Section
from memwatch.monitor.notify.webhook_payload import Endpoint, parse_endpoint


class ContextConverter(Struct, frozen=True):
    """Parses a value that may refer to a file or a variable. The function's second argument is a SecretContext."""

    function: Callable[[Any, Any], object]


class TakesEffect(Struct, frozen=True):
    """Time at which a changed value takes effect. Every key declares one, itself or through its section.

    `at`: the next start, a reload, or the reading of the settings for a key that only permits other values.
    `while_set` names a key of the same section: a reload is enough only if it is set before and after. `simulated`
    is false for settings that are not used during replay.
    """

    at: Literal["start", "reload", "reading"]
    while_set: str = ""
    simulated: bool = True


AT_START = TakesEffect("start")
ON_RELOAD = TakesEffect("reload")
ON_RELOAD_OF_MACHINE = TakesEffect("reload", simulated=False)
ON_READING = TakesEffect("reading")


class Key(Struct, frozen=True):
    """A key of a section: its type, the type's annotations, and its default or NODEFAULT."""

    name: str
    kind: Any
    extras: tuple[object, ...]
    default: object


# Cache of `section_keys`.
KEYS_BY_SECTION: dict[type[Section], dict[str, Key]] = {}


def section_keys(section: type[Section]) -> dict[str, Key]:
    """Return the keys of a section, in order."""
    if section not in KEYS_BY_SECTION:
        hints = get_type_hints(section, include_extras=True)
        KEYS_BY_SECTION[section] = {one.name: describe_key(one, hints[one.name]) for one in fields(section)}
    return KEYS_BY_SECTION[section]


def describe_key(field: FieldInfo, hint: object) -> Key:
    """Describe a field. A derived section is declared as its base class; its default has the derived type."""
    kind, extras = unwrap(hint)
    default = default_of(field)
    if is_section(kind) and isinstance(default, kind):
        kind = type(default)
    return Key(field.name, kind, extras, default)


def default_of(key: FieldInfo) -> object:
    return key.default if key.default_factory is NODEFAULT else key.default_factory()


def unwrap(hint: Any) -> tuple[Any, tuple[object, ...]]:  # noqa: ANN401  any annotation
    """Return a type without `| None`, and its annotations."""
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
