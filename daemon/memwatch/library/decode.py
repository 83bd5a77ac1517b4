"""Decoding of the daemon's JSON into records of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct

from memwatch.core.backends.model import Backend, BackendDevice, Backends
from memwatch.core.leases import Lease
from memwatch.core.model import Absent, Architecture, Content, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.printable import printable_parts
from memwatch.library.daemon_client import Json

R = TypeVar("R", bound=Struct)
KINDS: dict[tuple[type, str], Any] = {
    (Pool, "kind"): PoolKind,
    (Pool, "quality"): Quality,
    (Share, "kind"): ShareKind,
    (Share, "quality"): Quality,
    (Device, "architecture"): Architecture,
}


class ResponseDecodeError(ValueError):
    """JSON that does not match the format of this version of memwatchd."""


def decode_pools(found: Json) -> tuple[Pool, ...]:
    return _decode_records(Pool, found)


def decode_shares(found: Json) -> tuple[Share, ...]:
    return _decode_records(Share, found)


def decode_devices(found: Json) -> tuple[Device, ...]:
    return _decode_records(Device, found)


def decode_leases(found: Json) -> tuple[Lease, ...]:
    return _decode_records(Lease, found)


def decode_backends(found: Json) -> Backends:
    try:
        backends = tuple(
            decode_record(Backend, {**one, "devices": _decode_records(BackendDevice, one["devices"])})
            for one in found["backends"]
        )
        return decode_record(Backends, {**found, "backends": backends})
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ResponseDecodeError(f"the daemon's backends cannot be decoded: {error}") from None


def _decode_records(kind: type[R], found: Iterable[Json]) -> tuple[R, ...]:
    try:
        return tuple(decode_record(kind, one) for one in found)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ResponseDecodeError(f"the daemon's {kind.__name__} cannot be decoded: {error}") from None


def decode_record(kind: type[R], found: Json) -> R:
    """Decode a record of the model, with its texts made printable. Unknown fields are ignored."""
    found = printable_parts(found)
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
