"""Settings as flat lists of keys: differences between two of them, and the text of a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, get_args

from msgspec import Struct

from memwatch.core.options import Section, Size, duration_text
from memwatchd.settings.channels import ReceiverSection
from memwatchd.settings.engines import EngineServer
from memwatchd.settings.neighbours import NeighbourSection
from memwatchd.settings.schema import Sections
from memwatchd.settings.section import TakesEffect, is_section, section_keys, unwrap

Path = tuple[str, ...]

# Tables of lists, which have a unique name.
NAMED = (ReceiverSection, EngineServer, NeighbourSection)
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
    for section in section_keys(Sections):
        yield from _flat((section,), getattr(settings, section))


def _flat(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if isinstance(value, Section):
        for name in section_keys(type(value)):
            yield from _flat((*path, name), getattr(value, name))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat((*path, name), inner)
    elif isinstance(value, tuple) and any(isinstance(item, NAMED) for item in value):
        for item in value:
            yield from _flat((*path, item.name), item)
    else:
        yield path, value


def setting_text(value: object) -> str:
    """Format a value as in the configuration file. Of a URL only the origin is shown, of a secret nothing."""
    if value is None or value == ():
        return "not set" if value is None else "[]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f'"{duration_text(value)}"'
    if isinstance(value, Size):
        return f'"{value.text}"'
    if isinstance(value, tuple):
        return f"[{', '.join(setting_text(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)
