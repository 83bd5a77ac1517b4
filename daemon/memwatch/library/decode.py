"""Decoding of the daemon's JSON into records of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct

from memwatch.backends.model import Backend, BackendDevice, Backends
from memwatch.library.daemon_client import Json
from memwatch.model import Absent, Architecture, Content, Device, Pool, PoolKind, Quality, Share, ShareKind

R = TypeVar("R", bound=Struct)
KINDS: dict[tuple[type, str], Any] = {
    (Pool, "kind"): PoolKind,
    (Pool, "quality"): Quality,
    (Share, "kind"): ShareKind,
    (Share, "quality"): Quality,
    (Device, "architecture"): Architecture,
}


class NotAnAnswer(ValueError):
    """JSON that does not match the format of this version of memwatchd."""


def pools_of(found: Json) -> tuple[Pool, ...]:
    return _records(Pool, found)


def shares_of(found: Json) -> tuple[Share, ...]:
    return _records(Share, found)


def devices_of(found: Json) -> tuple[Device, ...]:
    return _records(Device, found)


def backends_of(found: Json) -> Backends:
    try:
        backends = tuple(
            record(Backend, {**one, "devices": _records(BackendDevice, one["devices"])})
            for one in found["backends"]
        )
        return record(Backends, {**found, "backends": backends})
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotAnAnswer(f"the daemon's backends cannot be decoded: {error}") from None


def _records(kind: type[R], found: Iterable[Json]) -> tuple[R, ...]:
    try:
        return tuple(record(kind, one) for one in found)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotAnAnswer(f"the daemon's {kind.__name__} cannot be decoded: {error}") from None


def record(kind: type[R], found: Json) -> R:
    """Decode a record of the model. Unknown fields are ignored."""
    absent = found.get("absent", {})
    values: dict[str, Any] = {}
    for one in kind.__struct_fields__:
        if one not in found:
            continue
        value = found[one]
        if value is None and one in absent:
            value = Absent(absent[one])
        elif one == "contents":
            value = tuple(Content(name.removesuffix("_bytes"), size) for name, size in value.items())
        elif isinstance(value, list):
            value = tuple(value)
        elif (kind, one) in KINDS:
            value = KINDS[kind, one](value)
        values[one] = value
    return kind(**values)
