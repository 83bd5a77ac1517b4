"""Settings as flat lists of keys: what differs between two of them, and how a value is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta

from msgspec import Struct

from memwatch.options import Section, Size, duration_text
from memwatchd.settings.channels import Recipient
from memwatchd.settings.schema import Sections
from memwatchd.settings.section import keys_of

Path = tuple[str, ...]

# Taken up when the daemon starts, and not when it reloads: sockets, open files, threads, locked pages.
NEED_RESTART = (
    "web.listen",
    "web.tls",
    "state",
    "replay",
    "recording",
    "sampling.procfs",
    "sampling.sysfs",
    "sampling.rootfs",
    "sampling.lock_memory",
    "history.disk_size",
    "processes.top",
    "processes.interval",
    "processes.command_lines",
    "collectors",
)

SAYS_NOTHING = frozenset({"not set", "[]"})


class Change(Struct, frozen=True):
    """A setting that is not what it was; a secret says only that."""

    key: str
    before: str
    after: str
    needs_restart: bool

    def __str__(self) -> str:
        late = " (takes effect at the next start)" if self.needs_restart else ""
        return f"{self.key}: {self.before} → {self.after}{late}"


def describe_changes(old: Sections, new: Sections) -> tuple[Change, ...]:
    """What differs, key by key, in the order of the sections; of a receiver that came or went what it says."""
    before, after = dict(flat(old)), dict(flat(new))
    return tuple(
        Change(".".join(path), text_at(before, path), text_at(after, path), needs_restart(path))
        for path in {**before, **after}
        if (
            before[path] != after[path]
            if path in before and path in after
            else {text_at(before, path), text_at(after, path)}.difference(SAYS_NOTHING)
        )
    )


def needs_restart(path: Path) -> bool:
    return any(".".join(path[:end]) in NEED_RESTART for end in range(1, len(path) + 1))


def text_at(values: Mapping[Path, object], path: Path) -> str:
    return setting_text(values[path]) if path in values else "not set"


def flat(settings: Sections) -> Iterator[tuple[Path, object]]:
    """Every setting with its path; receivers go by their names."""
    for section in keys_of(Sections):
        yield from _flat((section,), getattr(settings, section))


def _flat(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if isinstance(value, Section):
        for name in keys_of(type(value)):
            yield from _flat((*path, name), getattr(value, name))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat((*path, name), inner)
    elif isinstance(value, tuple) and any(isinstance(item, Recipient) for item in value):
        for recipient in value:
            yield from _flat((*path, recipient.name), recipient)
    else:
        yield path, value


def setting_text(value: object) -> str:
    """A value as the configuration file writes it; of a URL the origin, of a secret nothing."""
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
