"""The law of single figures: a corrupted one changes what depends on it, and nothing else.

A figure that depends on it is absent, or estimated with a mark, where the rest of the reading refutes it. Where
nothing does, it follows the corruption: such cases are undetected, and `undetected.toml` has all that are allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Quality
from support.field_dependencies import DEPENDENT, OTHER_WORD
from support.paths import TESTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Fields by record. Records are named by kind and id: "vram gpu0", "process 4711".
UNDETECTED = TESTS / "undetected.toml"
Records = Mapping[str, Mapping[str, Any]]
# Lists of records, and the name of their kind: a word, or that of the record.
LISTS = {
    "pools": "",
    "shares": "",
    "devices": "device",
    "processes": "process",
    "nodes": "node",
    "engines": "engine",
}
SINGLE = ("swap", "zram", "zfs_cache", "kernel", "machine", "process_scan", "tegrastats")
# Fields that are no figures.
DECISION = ("allocates_from", "architecture", "details", "evidence", "explanation")
WORDS = frozenset((*DECISION, "footprint_basis", "label", "source", "time"))
# Records without a quality, whose figures follow those of pools and shares.
FOLLOWERS = frozenset({"device", "process", "machine"})
COUNTS = frozenset({"odd_fields", "rejected"})
# Fields that say how sure a record is. A change of one of them marks its other figures.
MARKS = ("quality", "overlap", "note", "notes")


class Change(NamedTuple):
    """A figure that a corruption changed. `figure`: kind of record and field; `record` has its id."""

    record: str
    figure: str
    is_marked: bool


def records_of(found: Findings) -> Records:
    """Return the figures of composed findings by record."""
    records: dict[str, Mapping[str, Any]] = {}
    for name, kind in LISTS.items():
        for one in getattr(found, name):
            records[f"{kind or one.kind.value} {getattr(one, 'id', getattr(one, 'pid', ''))}"] = fields_of(one)
    for name in SINGLE:
        value = getattr(found, name)
        records[name] = fields_of(value) if isinstance(value, Struct) else {"": value}
    return records


def fields_of(record: Struct) -> Mapping[str, Any]:
    """Return the fields of a record, and those of its parts. Numbers of odd figures are no figures."""
    fields: dict[str, Any] = {}
    for name, value in asdict(record).items():
        parts = asdict(value) if isinstance(value, Struct) else value
        if isinstance(parts, Mapping):
            fields |= {f"{name}.{key}": one for key, one in parts.items()}
        elif name not in COUNTS:
            fields[name] = value
    return fields


def changes(sound: Records, found: Records) -> Iterator[Change]:
    """Yield each figure that differs; of a record that is only in one of them, one change."""
    for record in sound.keys() | found.keys():
        if record not in sound or record not in found:
            yield Change(record, name_of(record, "gone"), record not in found)
            continue
        before, after = sound[record], found[record]
        if before == after:
            continue
        marked = has_new_mark(before, after)
        for field in sorted(before.keys() | after.keys()):
            if before.get(field) != after.get(field):
                is_word = field.partition(".")[0] in WORDS
                yield Change(record, name_of(record, field), marked or is_word or is_absent(after.get(field)))


def name_of(record: str, field: str) -> str:
    return f"{record.partition(' ')[0]}.{field.partition('.')[0]}".rstrip(".")


def is_absent(value: Any) -> bool:
    return value is None or value == () or isinstance(value, Absent)


def has_new_mark(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Check if a record says that its figures are not sure, or less than before."""
    return after.get("quality") is Quality.ESTIMATED or any(
        after.get(mark) and before.get(mark) != after.get(mark) for mark in MARKS[1:]
    )


def broken(changed: Collection[Change], allowed: Collection[str]) -> list[str]:
    """Return the figures that changed although they do not depend on the field. `allowed`: patterns."""
    figures = {one.figure for one in changed}
    return sorted(one for one in figures if not any(fnmatchcase(one, pattern) for pattern in allowed))


def is_undetected(changed: Collection[Change]) -> bool:
    """Check if a figure follows a corruption without a mark.

    Figures of devices and processes follow from those of pools, and so do their marks.
    """
    unmarked = {one.record.partition(" ")[0] for one in changed if not one.is_marked}
    return bool(unmarked) and (not unmarked <= FOLLOWERS or not any(one.is_marked for one in changed))


def patterns_for(source: str, field: str) -> tuple[str, ...]:
    """Return what may change with a field: the patterns of all its names. Nothing depends on others."""
    fields = DEPENDENT[source]
    word = field.partition("[")[0] if source == "tegrastats" else field
    found = [allowed for name, allowed in fields.items() if word == name or fnmatchcase(word, name)]
    if not found and source == "tegrastats":
        return OTHER_WORD
    return tuple(pattern for allowed in found[:1] for pattern in allowed)


def name_of_word(field: str) -> str:
    """Return the word of a number of tegrastats; "other" for sensors, rails and engines, which differ by board."""
    word = field.partition("[")[0]
    return word if any(fnmatchcase(word, name) for name in DEPENDENT["tegrastats"]) else "other"


class Finding(NamedTuple):
    """A corrupted figure that broke the law, as a sentence, or that was not detected."""

    source: str
    field: str
    how: str
    complaint: str


def judge(source: str, field: str, how: str, changed: Collection[Change]) -> Finding | None:
    """Return the complaint about a corrupted figure, or that nothing detected it; None if all is right."""
    name = name_of_word(field) if source == "tegrastats" else field
    wrong = broken(changed, patterns_for(source, field))
    if wrong:
        return Finding(source, name, how, f"{source}: {field} {how} changes {', '.join(wrong)}")
    return Finding(source, name, how, "") if is_undetected(changed) else None


def read_undetected() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the corruptions that nothing detects, by source and field."""
    return tomllib.loads(UNDETECTED.read_text())


def is_known(finding: Finding, known: Mapping[str, Mapping[str, Sequence[str]]]) -> bool:
    return finding.how in known.get(finding.source, {}).get(finding.field, ())
