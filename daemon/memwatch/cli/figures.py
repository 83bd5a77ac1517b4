"""Decode figures of a record from JSON: present, or absent with a reason."""

from __future__ import annotations

from typing import Any

from memwatch.core.model import Absent, Bytes
from memwatch.monitor.render import words as wording

Json = dict[str, Any]


def figure(record: Json, name: str) -> Bytes:
    """Return a size in bytes, or the reason of its absence."""
    value = record[name]
    return Absent(record["absent"][name]) if value is None else int(value)


def certain_headroom(device: Json) -> Bytes:
    """Return the headroom that needs no reclaim. Daemons before this version do not report it."""
    name = "headroom_certain_bytes"
    return figure(device, name) if name in device else Absent.NOT_AVAILABLE


def size(record: Json, name: str) -> str:
    """Format the size: "44.3 GiB", "— not supported"."""
    return wording.size(figure(record, name))
