"""Puts what is wrong with settings into words: where it stands, what it says, what would work."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from memwatchd.settings.changes import setting_text
from memwatchd.settings.model import Sections
from memwatchd.settings.values import Accepts, KeyPath, Refused, duration_text

VALUE_MOST_CHARACTERS = 60
NAME_MOST_CHARACTERS = 120
LIKENESS_LEAST = 0.65


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence about something that has to be corrected; `from_flag`: on the command line."""

    text: str
    from_flag: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was given: by a flag, by a variable, or on a line of a file under a key."""

    origin: str
    key: str = ""
    from_flag: bool = False

    @property
    def text(self) -> str:
        return f"{self.origin}: {name_text(self.key)}" if self.key else self.origin


Finder = Callable[[KeyPath], Place | None]


def problem_of(error: ErrorDetails, find: Finder) -> Problem:
    """The sentence for one of pydantic's errors. `find` says where a key was given, None if it was not."""
    path: KeyPath = error["loc"]
    place = find(path) or Place(dotted(path))
    cause = error.get("ctx", {}).get("error")
    if error["type"] == "extra_forbidden":
        siblings = list(model_at(path[:-1]).model_fields)
        return Problem(f"{place.text} is not a setting; {guess(str(path[-1]), siblings, elsewhere(path))}")
    if error["type"] == "missing":
        around = find(path[:-1]) or Place(dotted(path[:-1]))
        return Problem(
            f"{around.text}.{path[-1]} is missing; add for example {path[-1]} = {accepted_at(path).example}"
        )
    if isinstance(cause, Refused) and cause.keys:
        return problem_between([found for key in cause.keys if (found := find((*path, *key)))], cause)
    return problem_with(place, path, error["input"], str(cause) if isinstance(cause, Refused) else "")


def problem_between(places: list[Place], cause: Refused) -> Problem:
    """Several values that do not go together."""
    where = ", ".join(dict.fromkeys(place.text for place in places))
    return Problem(f"{where}: {cause}", all(place.from_flag for place in places))


def problem_with(place: Place, path: KeyPath, value: object, why: str) -> Problem:
    """A value that is none of what may stand there."""
    accepts = accepted_at(path)
    if not why:
        shown = f"is {value_text(value)}, which is not" if accepts.shown else "is not"
        why = f"{shown} {accepts.words}"
    return Problem(f"{place.text} {why}; use for example {accepts.example}", place.from_flag)


def guess(wrong: str, known: Collection[str], elsewhere: Collection[str] = ()) -> str:
    """What may have been meant."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=LIKENESS_LEAST) or list(elsewhere)[:1]
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def elsewhere(path: KeyPath) -> list[str]:
    """Keys of the same name in other sections."""
    return [dotted(known) for known in all_paths(Sections, ()) if known[-1] == path[-1]]


def all_paths(model: type[BaseModel], prefix: KeyPath) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_paths(field.annotation, (*prefix, name))


def dotted(path: KeyPath) -> str:
    """A path as people write it: alerts.webhooks[0].url."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def field_at(path: KeyPath) -> tuple[FieldInfo | None, type[BaseModel] | None]:
    """The field that a path leads to, as far as it leads to one, and the model at its end if there is one."""
    model: type[BaseModel] | None = Sections
    field: FieldInfo | None = None
    inside: Any = None
    for part in path:
        if model is not None and part in model.model_fields:
            field = model.model_fields[str(part)]
            inside = field.annotation
        else:  # an item of a list, or an entry of a table with free names
            inside = next((arg for arg in reversed(get_args(inside)) if arg is not Ellipsis), None)
        model = inside if isinstance(inside, type) and issubclass(inside, BaseModel) else None
    return field, model


def model_at(path: KeyPath) -> type[BaseModel]:
    return field_at(path)[1] or Sections


def accepted_at(path: KeyPath) -> Accepts:
    """What may stand at a path."""
    field, model = field_at(path)
    entry = accepted_entry(field, path)
    if entry is not None:
        return entry
    if field is None or model is not None or get_origin(field.annotation) is dict:
        name = ".".join(str(part) for part in path if isinstance(part, str))
        return Accepts("a table", f"[{name}]")
    given = next((extra for extra in field.metadata if isinstance(extra, Accepts)), None)
    if given and given.example:
        return given
    return Accepts(given.words if given else words_for(field), setting_text(field.default))


def accepted_entry(field: FieldInfo | None, path: KeyPath) -> Accepts | None:
    """What an entry of a table with free names takes, where the path leads to one that is no table itself."""
    if field is None or get_origin(field.annotation) is not dict:
        return None
    if field_at(path[:-1])[0] is not field:  # the table itself
        return None
    value = get_args(field.annotation)[1]
    return next((extra for extra in get_args(value) if isinstance(extra, Accepts)), None)


def words_for(field: FieldInfo) -> str:
    kinds = set(get_args(field.annotation)) or {field.annotation}
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(json.dumps(word) for word in get_args(field.annotation))
    if bool in kinds:
        return "true or false"
    if timedelta in kinds:
        return f"a duration{bounds(field)}"
    return f"a {'whole ' if int in kinds else ''}number{bounds(field)}"


def bounds(field: FieldInfo) -> str:
    extras = field.metadata
    low = next((getattr(extra, name) for extra in extras for name in ("ge", "gt") if hasattr(extra, name)), None)
    high = next((extra.le for extra in extras if hasattr(extra, "le")), None)
    return f" from {bound_text(low)} to {bound_text(high)}"


def bound_text(bound: Any) -> str:  # noqa: ANN401  a number or a timedelta
    return duration_text(bound) if isinstance(bound, timedelta) else f"{bound:g}"


def name_text(name: str) -> str:
    """A name as it was written, cut where it is long: it may be none of ours."""
    return name if len(name) <= NAME_MOST_CHARACTERS else f"{name[:NAME_MOST_CHARACTERS]}…"


def value_text(value: object) -> str:
    """A value as it was written, cut where it is long."""
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
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
    return text if len(text) <= VALUE_MOST_CHARACTERS else f"{text[:VALUE_MOST_CHARACTERS]}…"
