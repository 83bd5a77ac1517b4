"""Settings as flat lists of keys, and the differences between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from msgspec import Struct

from memwatch.core.options import KeyPath, Section
from memwatchd.settings.keys import NamedTable, TakesEffect, is_section, section_keys, setting_text, unwrap
from memwatchd.settings.schema import Sections

Path = tuple[str, ...]

EMPTY_TEXTS = frozenset({"not set", "[]"})
NOT_YET = " (takes effect at the next start)"
NOT_USED = " (not used during replay)"


class Change(Struct, frozen=True):
    """A changed setting; secrets are not shown. `note` is set if the new value is not in force."""

    key: str
    before: str
    after: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.before} → {self.after}{self.note}"


def describe_changes(old: Sections, new: Sections, simulated: bool = False) -> tuple[Change, ...]:
    """Return the differences by key. Added and removed receivers are listed with the keys that they set.

    `simulated`: a recording is played in place of this machine.
    """
    before, after = dict(flat(old)), dict(flat(new))
    changed = [
        path
        for path in {**before, **after}
        if (
            before[path] != after[path]
            if path in before and path in after
            else {text_at(before, path), text_at(after, path)}.difference(EMPTY_TEXTS)
        )
    ]
    return tuple(
        Change(".".join(path), text_at(before, path), text_at(after, path), note_on(path, before, after, simulated))
        for path in changed
    )


def note_on(path: Path, before: Mapping[Path, object], after: Mapping[Path, object], simulated: bool) -> str:
    """Return the reason why a changed setting is not in force after a reload, or "" if it is."""
    effect = find_effect(path)
    if effect.program != "memwatchd":
        when = "at the next start of" if effect.at == "start" else "at the next reload of"
        return f" (takes effect {when} {effect.program})"
    needed = (*path[:-1], effect.while_set)
    if effect.at == "start" or (effect.while_set and None in (before.get(needed), after.get(needed))):
        return NOT_YET
    return NOT_USED if simulated and not effect.simulated else ""


def find_effect(path: Path, root: type[Section] = Sections) -> TakesEffect:
    """Return the declaration of a key or of the nearest section or list around it. LookupError if there is none."""
    kind: Any = root
    declared: TakesEffect | None = None
    for name in path:
        if is_section(kind):
            key = section_keys(kind)[name]
            kind = key.kind
            declared = next((extra for extra in key.extras if isinstance(extra, TakesEffect)), declared)
        else:  # the name of a receiver, a target or a user
            kind = next(unwrap(one)[0] for one in reversed(get_args(kind)) if one is not Ellipsis)
    if declared is None:
        raise LookupError(f"{'.'.join(path)} declares neither AT_START nor ON_RELOAD; add one to its type")
    return declared


def text_at(values: Mapping[Path, object], path: Path) -> str:
    return setting_text(values[path]) if path in values else "not set"


def flat(settings: Sections) -> Iterator[tuple[Path, object]]:
    """Yield every setting with its path. Receivers, model servers and neighbours are identified by name."""
    for path, _, value in located(settings):
        yield path, value


def located(settings: Sections) -> Iterator[tuple[Path, KeyPath, object]]:
    """Yield every setting with its path, and the path in the file, where a table of a list has a number."""
    for name in section_keys(Sections):
        yield from _located((name,), (name,), getattr(settings, name))


def _located(path: Path, place: KeyPath, value: object) -> Iterator[tuple[Path, KeyPath, object]]:
    inside: Iterable[tuple[str, str | int, object]] = ()
    if isinstance(value, Section):
        inside = ((name, name, getattr(value, name)) for name in section_keys(type(value)))
    elif isinstance(value, Mapping):
        inside = ((name, name, inner) for name, inner in value.items())
    elif isinstance(value, tuple) and any(isinstance(item, NamedTable) for item in value):
        inside = ((item.name, index, item) for index, item in enumerate(value))
    else:
        yield path, place, value
    for name, key, inner in inside:
        yield from _located((*path, name), (*place, key), inner)
