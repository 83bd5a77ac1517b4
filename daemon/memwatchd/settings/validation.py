"""Build sections from tables, and describe each mistake: its origin, the value, the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, field

from memwatch.core.options import (
    Accepts,
    Bounds,
    Converter,
    InvalidValueError,
    KeyPath,
    Section,
    Size,
    duration_text,
)
from memwatch.core.redaction import redact_text
from memwatchd.settings.credentials import SecretContext
from memwatchd.settings.keys import ContextConverter, Key, is_section, section_keys, setting_text, unwrap
from memwatchd.settings.schema import Sections

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


MAX_VALUE_CHARACTERS = 60
MAX_NAME_CHARACTERS = 120
KINDS = {timedelta: "a duration", Size: "a size"}
MIN_SIMILARITY = 0.65


class Problem(Struct, frozen=True):
    """A sentence about a mistake. `from_flag`: it is on the command line."""

    text: str
    from_flag: bool = False


class ValueOrigin(Struct, frozen=True):
    """Origin of a value: a flag, a variable, or a key on a line of a file."""

    origin: str
    key: str = ""
    from_flag: bool = False
    from_variable: bool = False

    @property
    def text(self) -> str:
        return f"{self.origin}: {name_text(self.key)}" if self.key else self.origin

    def written(self, example: str) -> str:
        """Format a file's example for this origin. Flags and variables have neither brackets nor quotes."""
        if not self.from_flag and not self.from_variable:
            return example
        found = json.loads(example)
        words = [
            one if isinstance(one, str) else json.dumps(one)
            for one in (found if isinstance(found, list) else [found])
        ]
        return f"{self.origin} {words[0]}" if self.from_flag else f"{self.origin}={','.join(words)}"


Finder = Callable[[KeyPath], ValueOrigin | None]


def describe_mistake(mistake: Mistake, find: Finder) -> Problem:
    """Describe a mistake. `find` returns the origin of a key, or None if it is not set."""
    path = mistake.path
    place = find(path) or ValueOrigin(dotted(path))
    if mistake.kind == "unknown":
        siblings = list(section_keys(section_at(path[:-1])))
        return Problem(f"{place.text} is not a setting; {guess(str(path[-1]), siblings, elsewhere(path))}")
    if mistake.kind == "missing":
        context = find(path[:-1]) or ValueOrigin(dotted(path[:-1]))
        return Problem(
            f"{context.text}.{path[-1]} is missing; add for example {path[-1]} = {accepted_at(path).example}"
        )
    if mistake.refusal.keys:
        keys = mistake.refusal.keys
        return problem_between([found for key in keys if (found := find((*path, *key)))], mistake.refusal)
    if not mistake.refusal.has_example:
        return Problem(f"{place.text} {mistake.refusal}", place.from_flag)
    return problem_with(place, path, mistake.value, str(mistake.refusal))


def problem_between(places: list[ValueOrigin], cause: InvalidValueError) -> Problem:
    """Describe values that are not valid together."""
    where = ", ".join(dict.fromkeys(place.text for place in places))
    return Problem(f"{where}: {cause}", all(place.from_flag for place in places))


def problem_with(place: ValueOrigin, path: KeyPath, value: object, why: str) -> Problem:
    """Describe a value that the key does not accept."""
    accepts = accepted_at(path)
    key, _ = key_at(path)
    if not why and key is not None and is_no_list(key, path, value):
        listed = f"[{json.dumps(value, ensure_ascii=False)}]" if is_item(key, value) else accepts.example
        return Problem(f"{place.text} is {value_text(value)}, which is not a list; write {key.name} = {listed}")
    if not why:
        shown = f"is {value_text(value)}, which is not" if accepts.shown else "is not"
        why = f"{shown} {accepts.words}"
    return Problem(f"{place.text} {why}; use for example {place.written(accepts.example)}", place.from_flag)


def is_no_list(key: Key, path: KeyPath, value: object) -> bool:
    """True if the key takes a list of values and the value is not a list."""
    if get_origin(key.kind) is not tuple or path[-1] != key.name or isinstance(value, list | tuple):
        return False
    return not is_section(unwrap(get_args(key.kind)[0])[0])


def is_item(key: Key, value: object) -> bool:
    """True if a value is a valid item of the key's list."""
    kind, extras = unwrap(get_args(key.kind)[0])
    reader = next((extra for extra in extras if isinstance(extra, Converter)), None)
    try:
        plain(kind, value) if reader is None else reader.function(value)
    except InvalidValueError:
        return False
    return isinstance(value, str)


def guess(wrong: str, known: Collection[str], elsewhere: Collection[str] = ()) -> str:
    """Suggest the closest known name, or list all known names."""
    close = closest(wrong, known) or next(iter(elsewhere), None)
    return f"did you mean {close}?" if close else f"valid names are {', '.join(known)}"


def closest(wrong: str, known: Collection[str]) -> str | None:
    """Return the most similar known name, if one is similar enough."""
    import difflib  # needed only after a mistake

    return next(iter(difflib.get_close_matches(wrong, known, n=1, cutoff=MIN_SIMILARITY)), None)


def elsewhere(path: KeyPath) -> list[str]:
    """Return keys of the same name in other sections."""
    return [dotted(known) for known in all_paths(Sections, ()) if known[-1] == path[-1]]


def all_paths(section: type[Section], prefix: KeyPath) -> Iterator[KeyPath]:
    for name, key in section_keys(section).items():
        yield (*prefix, name)
        if is_section(key.kind):
            yield from all_paths(key.kind, (*prefix, name))


def dotted(path: KeyPath) -> str:
    """Format a path: alerts.webhooks[0].url."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def key_at(path: KeyPath) -> tuple[Key | None, type[Section] | None]:
    """Return the last known key on a path, and the section at its end if there is one."""
    section: type[Section] | None = Sections
    key: Key | None = None
    inside: Any = None
    for part in path:
        if section is not None and part in section_keys(section):
            key = section_keys(section)[str(part)]
            inside = key.kind
        else:  # an item of a list, or an entry of a table with free names
            inside = next((unwrap(arg)[0] for arg in reversed(get_args(inside)) if arg is not Ellipsis), None)
        section = inside if is_section(inside) else None
    return key, section


def section_at(path: KeyPath) -> type[Section]:
    return key_at(path)[1] or Sections


def accepted_at(path: KeyPath) -> Accepts:
    """Return the accepted values of a path."""
    key, section = key_at(path)
    entry = accepted_entry(key, path)
    if entry is not None:
        return entry
    if key is None or section is not None or get_origin(key.kind) is dict:
        name = ".".join(str(part) for part in path if isinstance(part, str))
        return Accepts("a table", f"[{name}]")
    accepts = next((extra for extra in key.extras if isinstance(extra, Accepts)), None)
    if accepts and accepts.example:
        return accepts
    return Accepts(accepts.words if accepts else words_for(key), setting_text(key.default))


def accepted_entry(key: Key | None, path: KeyPath) -> Accepts | None:
    """Return the accepted values of an entry in a table with free names, or None for other paths."""
    if key is None or get_origin(key.kind) is not dict:
        return None
    if key_at(path[:-1])[0] is not key:  # the table itself
        return None
    extras = unwrap(get_args(key.kind)[1])[1]
    return next((extra for extra in extras if isinstance(extra, Accepts)), None)


def words_for(key: Key) -> str:
    if get_origin(key.kind) is Literal:
        return "one of " + ", ".join(json.dumps(word) for word in get_args(key.kind))
    if key.kind is bool:
        return "true or false"
    within = next((f" {extra}" for extra in key.extras if isinstance(extra, Bounds)), "")
    if key.kind in KINDS:
        return f"{KINDS[key.kind]}{within}"
    return f"a {'whole ' if key.kind is int else ''}number{within}"


def name_text(name: str) -> str:
    """Return a name, truncated if it is long. It may come from another program."""
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"


def value_text(value: object) -> str:
    """Format a value, truncated if it is long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f'"{duration_text(value)}"'
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    text = redact_text(json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value))
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
