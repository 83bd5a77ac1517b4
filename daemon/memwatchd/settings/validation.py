"""Makes sections of what was given. Whatever is wrong is noted, and the reading goes on."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, field

from memwatch.options import Bounds, KeyPath, Read, Refused, Section
from memwatchd.settings.secrets_source import Surroundings
from memwatchd.settings.section import ReadAround, is_section, keys_of, unwrapped

AnySection = TypeVar("AnySection", bound=Section)


class Mistake(Struct, frozen=True):
    """What is wrong with the `value` given at a path: there is no such setting, it is missing, or `refusal`."""

    path: KeyPath
    kind: Literal["unknown", "missing", "refused"]
    value: object = None
    refusal: Refused = field(default_factory=Refused)


class Checker(Struct):
    """Reads tables into sections; `around` is what values that are kept elsewhere are looked up in."""

    around: Surroundings
    mistakes: list[Mistake] = field(default_factory=list)

    def section(self, kind: type[AnySection], given: object, path: KeyPath = ()) -> AnySection | None:
        """A section; None where something in it is wrong."""
        if not isinstance(given, dict):
            self._refuse(path, given)
            return None
        before = len(self.mistakes)
        keys = keys_of(kind)
        values = {}
        for name, key in keys.items():
            if name in given:
                values[name] = self._value(key.kind, key.extras, given[name], (*path, name))
            elif key.default is NODEFAULT:
                self.mistakes.append(Mistake((*path, name), "missing"))
        self.mistakes += [Mistake((*path, name), "unknown", given[name]) for name in given if name not in keys]
        if len(self.mistakes) > before:
            return None
        try:
            return kind(**values)
        except Refused as refusal:
            self._refuse(path, given, refusal)
            return None

    def _value(self, kind: Any, extras: tuple[object, ...], given: object, path: KeyPath) -> object:  # noqa: ANN401
        """A value; None where something is wrong with it."""
        try:
            value = self._read(kind, extras, given)
        except Refused as refusal:
            self._refuse(path, given, refusal)
            return None
        if is_section(kind):
            return self.section(kind, value, path)
        if isinstance(value, tuple) and get_origin(kind) is tuple:
            inside = unwrapped(get_args(kind)[0])
            return tuple(self._value(*inside, item, (*path, at)) for at, item in enumerate(value))
        if isinstance(value, dict):
            names, inside = (unwrapped(part) for part in get_args(kind))
            return {
                self._value(*names, name, (*path, name)): self._value(*inside, item, (*path, name))
                for name, item in value.items()
            }
        return value

    def _read(self, kind: Any, extras: tuple[object, ...], given: object) -> object:  # noqa: ANN401
        """What was given, as what it means; Refused where it means nothing or is out of bounds."""
        reader = next((extra for extra in extras if isinstance(extra, Read | ReadAround)), None)
        if isinstance(reader, ReadAround):
            value = reader.function(given, self.around)
        else:
            value = plain(kind, given) if reader is None else reader.function(given)
        if not all(extra.hold(value) for extra in extras if isinstance(extra, Bounds)):
            raise Refused
        return value

    def _refuse(self, path: KeyPath, given: object, refusal: Refused | None = None) -> None:
        self.mistakes.append(Mistake(path, "refused", given, refusal or Refused()))


def plain(kind: Any, given: object) -> object:  # noqa: ANN401  what a key is declared as
    """What was given, where it is what is wanted as it stands; a whole number is a number too."""
    if is_section(kind):
        return given
    if get_origin(kind) is Literal:
        fits = isinstance(given, str) and given in get_args(kind)
    elif kind is float and type(given) is int:
        try:
            return float(given)
        except OverflowError:
            raise Refused from None
    else:
        fits = type(given) is (get_origin(kind) or kind)
    if not fits:
        raise Refused
    return given
