"""Decoding of the daemon's JSON into records of the model. Unknown fields are ignored, texts are made printable."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from memwatch.core.backends.model import Backends
from memwatch.core.leases import Lease
from memwatch.core.model import Device, Pool, Share
from memwatch.core.snapshot_json import RECORDS
from memwatch.library.daemon_client import Json

R = TypeVar("R")


class ResponseDecodeError(ValueError):
    """JSON that does not match the format of this version of memwatchd."""


def decode_pools(found: Json) -> tuple[Pool, ...]:
    return _decode(tuple[Pool, ...], found, "Pool")


def decode_shares(found: Json) -> tuple[Share, ...]:
    return _decode(tuple[Share, ...], found, "Share")


def decode_devices(found: Json) -> tuple[Device, ...]:
    return _decode(tuple[Device, ...], found, "Device")


def decode_leases(found: Json) -> tuple[Lease, ...]:
    return _decode(tuple[Lease, ...], found, "Lease")


def decode_backends(found: Json) -> Backends:
    return _decode(Backends, found, "backends")


def _decode(kind: type[R], found: Any, name: str) -> R:  # noqa: ANN401  JSON
    try:
        return cast(R, RECORDS.decode(kind, found))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise ResponseDecodeError(f"the daemon's {name} cannot be decoded: {error}") from None
