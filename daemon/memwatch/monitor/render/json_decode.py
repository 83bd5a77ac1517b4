"""Decode a snapshot from its JSON, for recordings. Anything else raises SnapshotDecodeError.

A recording comes from another machine: its texts are made printable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, NoReturn, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct, json
from msgspec.structs import fields, replace

from memwatch.core.model import Absent, Content, Process
from memwatch.core.printable import printable
from memwatch.core.snapshot import Level, Snapshot

Build = Callable[[Any], Any]
LAST_UNIX = 253_402_300_800.0
# Larger than any real size, and beyond 64-bit signed integers.
TOO_MANY = 1 << 63
MIN_INTERVAL, MAX_INTERVAL = 0.001, 86_400.0
# Names in recordings of development snapshots of version 0.1.0, and today's. Collectors were renamed as well.
RENAMED = {
    "own": "self",
    "stalls": "psi",
    "squeezed": "cgroup_pressure",
    "free_4mib_bytes": "free_large_blocks_bytes",
}
RENAMED_COLLECTORS = {"memory": "meminfo", "squeezed": "cgroup_pressure"}


class SnapshotDecodeError(ValueError):
    """The JSON is not a snapshot; the message has the reason."""


def snapshot_from(line: bytes) -> Snapshot:
    """Decode the body of `/api/v1/snapshot`. `monotonic` is set to the Unix time: JSON has no other clock."""
    try:
        return build_snapshot(json.decode(line))
    except (ValueError, RecursionError) as error:
        raise SnapshotDecodeError(f"not a snapshot: {str(error)[:200]}") from None


def build_snapshot(found: Any) -> Snapshot:  # noqa: ANN401  JSON
    """Build a snapshot from decoded JSON, which is changed. Raises SnapshotDecodeError."""
    try:
        if not isinstance(found, dict) or found.get("schema") != 1:
            raise SnapshotDecodeError("it has no schema 1")
        found["monotonic"] = found.get("unix")
        _use_current_names(found)
        snapshot = cast(Snapshot, _builder(cast(Hashable, Snapshot))(found))
        _refuse_impossible_times(snapshot)
        return _with_derived(snapshot, found.get("processes") or [])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, AttributeError) as error:
        raise SnapshotDecodeError(f"not a snapshot: {str(error)[:200]}") from None


def _use_current_names(found: dict[str, Any]) -> None:
    for record in (found, *found.get("nodes", ())):
        for names in (record, record.get("absent", {})):
            for old in RENAMED.keys() & names.keys():
                names.setdefault(RENAMED[old], names.pop(old))
    for status in found.get("collectors", ()):
        status["name"] = RENAMED_COLLECTORS.get(status["name"], status["name"])


def _refuse_impossible_times(snapshot: Snapshot) -> None:
    """Refuse times outside 1970 to 9999 and impossible intervals. Raises SnapshotDecodeError."""
    if not 0 <= snapshot.unix < LAST_UNIX:
        raise SnapshotDecodeError(f"unix is {snapshot.unix:g}, which is no time from 1970 to 9999")
    if not MIN_INTERVAL <= snapshot.interval_seconds <= MAX_INTERVAL:
        raise SnapshotDecodeError(f"interval_seconds is {snapshot.interval_seconds:g}; for example 1.0")


def _with_derived(snapshot: Snapshot, listed: list[dict[str, Any]]) -> Snapshot:
    """Restore fields that JSON names differently: footprint ranges, names of containers and pods."""
    ranged = tuple(
        _add_footprint_range(process, one) for process, one in zip(snapshot.processes, listed, strict=True)
    )
    names = _collect_names(listed, "container")
    return replace(snapshot, processes=ranged, container_names=names, pod_names=_collect_names(listed, "pod"))


def _collect_names(listed: list[dict[str, Any]], kind: str) -> dict[str, str]:
    named = [one for one in listed if one.get(f"{kind}_name")]
    return {printable(str(one[kind])): printable(str(one[f"{kind}_name"])) for one in named}


def _add_footprint_range(process: Process, listed: dict[str, Any]) -> Process:
    low, high = listed.get("footprint_low_bytes"), listed.get("footprint_high_bytes")
    if type(low) is not int or not isinstance(process.footprint_bytes, Absent):
        return process
    reason = _absent_in(listed).get("footprint_high_bytes", Absent.NOT_AVAILABLE)
    return replace(process, footprint_range=(low, high if type(high) is int else reason))


@cache
def _builder(kind: Any) -> Build:  # noqa: ANN401  a type, or what typing makes of several
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        build = _union_builder([one for one in get_args(kind) if one is not Absent])
        has_reasons = Absent in get_args(kind) and type(None) not in get_args(kind)
        return _with_reason(build) if has_reasons else build
    if origin is Literal:
        return _literal_builder(frozenset(get_args(kind)), kind)
    if origin is tuple:
        return _tuple_builder(get_args(kind)[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_builder(get_args(kind)[1])
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _record_builder(kind)
    if kind is Level:
        return lambda value: Level[str(value).upper()]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is float:
        return lambda value: float(value) if type(value) in (int, float) else _refuse(value, kind)
    if kind is int:
        return lambda value: value if type(value) is int and abs(value) < TOO_MANY else _refuse(value, kind)
    if kind is str:
        return lambda value: printable(value) if type(value) is str else _refuse(value, kind)
    if kind is type(None):
        return lambda value: None if value is None else _refuse(value, kind)
    return lambda value: value if type(value) is kind else _refuse(value, kind)


def _union_builder(kinds: list[Any]) -> Build:
    builders = [_builder(kind) for kind in kinds]

    def build(value: Any) -> Any:  # noqa: ANN401
        for one in builders[:-1]:
            with suppress(TypeError, KeyError, ValueError):
                return one(value)
        return builders[-1](value)

    return build


def _with_reason(build: Build) -> Build:
    """Return a builder for figures that had no reason in an older version while they were absent."""
    return lambda value: Absent.NOT_AVAILABLE if value is None else build(value)


def _literal_builder(words: frozenset[Any], kind: Any) -> Build:  # noqa: ANN401
    return lambda value: value if value in words else _refuse(value, kind)


def _tuple_builder(kind: Any) -> Build:  # noqa: ANN401
    part = _builder(kind)

    def build(value: Any) -> Any:  # noqa: ANN401
        if kind is Content and isinstance(value, dict):
            return tuple(Content(printable(name.removesuffix("_bytes")), size) for name, size in value.items())
        return tuple([part(one) for one in value]) if type(value) is list else _refuse(value, kind)

    return build


def _mapping_builder(kind: Any) -> Build:  # noqa: ANN401
    part = _builder(kind)

    def build(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict:
            _refuse(value, kind)
        absent = _absent_in(value)
        plain = {name: part(one) for name, one in value.items() if name not in absent and name != "absent"}
        return {printable(name): one for name, one in (plain | absent).items()}

    return build


def _record_builder(kind: Any) -> Build:  # noqa: ANN401
    hints = get_type_hints(kind)
    parts = [(one, _builder(hints[one.name])) for one in fields(kind)]

    def build(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict:
            _refuse(value, kind)
        absent = _absent_in(value)
        found = {}
        for part, build_part in parts:
            name = part.encode_name
            if name in absent:
                found[part.name] = absent[name]
            elif name in value:
                found[part.name] = build_part(value[name])
            elif part.required:
                raise KeyError(f"{kind.__name__} without {name}")
        return kind(**found)

    return build


def _absent_in(value: dict[str, Any]) -> dict[str, Absent]:
    reasons = value.get("absent")
    return {name: Absent(reason) for name, reason in reasons.items()} if isinstance(reasons, dict) else {}


def _refuse(value: Any, kind: Any) -> NoReturn:  # noqa: ANN401
    raise TypeError(f"{value!r:.60} is not {kind}")
