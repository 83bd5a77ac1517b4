"""Build sections from tables. Mistakes are collected; validation continues after each."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, field

from memwatch.core.options import Bounds, Converter, InvalidValueError, KeyPath, Section
from memwatchd.settings.secrets_source import SecretContext
from memwatchd.settings.section import ContextConverter, is_section, section_keys, unwrap

AnySection = TypeVar("AnySection", bound=Section)


class Mistake(Struct, frozen=True):
    """A mistake at a path: an unknown setting, a missing one, or a `value` rejected for the reason in `refusal`."""

    path: KeyPath
    kind: Literal["unknown", "missing", "refused"]
    value: object = None
    refusal: InvalidValueError = field(default_factory=InvalidValueError)
    is_secret: bool = False

    @property
    def is_external(self) -> bool:
        """True if a file, a credential or a variable that the value names is at fault, or a secret."""
        return self.kind == "refused" and (self.is_secret or not self.refusal.has_example)


class Checker(Struct):
    """Builds sections from tables. `context` resolves references to files, credentials and variables."""

    context: SecretContext
    mistakes: list[Mistake] = field(default_factory=list)

    def section(self, kind: type[AnySection], value: object, path: KeyPath = ()) -> AnySection | None:
        """Return a section, or None if it has mistakes."""
        if not isinstance(value, dict):
            self._refuse(path, value)
            return None
        before = len(self.mistakes)
        keys = section_keys(kind)
        values = {}
        for name, key in keys.items():
            if name in value:
                values[name] = self._value(key.kind, key.extras, value[name], (*path, name))
            elif key.default is NODEFAULT:
                self.mistakes.append(Mistake((*path, name), "missing"))
        self.mistakes += [Mistake((*path, name), "unknown", value[name]) for name in value if name not in keys]
        if len(self.mistakes) > before:
            return None
        try:
            return kind(**values)
        except InvalidValueError as refusal:
            self._refuse(path, value, refusal)
            return None

    def _value(self, kind: Any, extras: tuple[object, ...], given: object, path: KeyPath) -> object:  # noqa: ANN401
        """Return a value, or None if it is invalid."""
        try:
            value = self._read(kind, extras, given)
        except InvalidValueError as refusal:
            is_secret = any(isinstance(extra, ContextConverter) for extra in extras)
            self._refuse(path, given, refusal, is_secret)
            return None
        if is_section(kind):
            return self.section(kind, value, path)
        if isinstance(value, tuple) and get_origin(kind) is tuple:
            inside = unwrap(get_args(kind)[0])
            return tuple(self._value(*inside, item, (*path, at)) for at, item in enumerate(value))
        if isinstance(value, dict):
            names, inside = (unwrap(part) for part in get_args(kind))
            return {
                self._value(*names, name, (*path, name)): self._value(*inside, item, (*path, name))
                for name, item in value.items()
            }
        return value

    def _read(self, kind: Any, extras: tuple[object, ...], given: object) -> object:  # noqa: ANN401
        """Convert a value. Raises InvalidValueError if it is invalid or out of bounds."""
        reader = next((extra for extra in extras if isinstance(extra, Converter | ContextConverter)), None)
        if isinstance(reader, ContextConverter):
            value = reader.function(given, self.context)
        else:
            value = plain(kind, given) if reader is None else reader.function(given)
        if not all(extra.hold(value) for extra in extras if isinstance(extra, Bounds)):
            raise InvalidValueError
        return value

    def _refuse(
        self, path: KeyPath, value: object, refusal: InvalidValueError | None = None, is_secret: bool = False
    ) -> None:
        self.mistakes.append(Mistake(path, "refused", value, refusal or InvalidValueError(), is_secret))


def plain(kind: Any, value: object) -> object:  # noqa: ANN401  the declared type of a key
    """Return the value if it already has the declared type. An integer is accepted as a float."""
    if is_section(kind):
        return value
    if get_origin(kind) is Literal:
        fits = isinstance(value, str) and value in get_args(kind)
    elif kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise InvalidValueError from None
    else:
        fits = type(value) is (get_origin(kind) or kind)
    if not fits:
        raise InvalidValueError
    return value
