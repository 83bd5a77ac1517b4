"""Decode a snapshot from its JSON, for recordings. Anything else raises SnapshotDecodeError.

A recording comes from another machine: its texts are made printable. `RECORDS` has the forms that differ in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import json
from msgspec.structs import replace

from memwatch.core.model import Absent, Content, Pool, Process
from memwatch.core.printable import printable
from memwatch.core.snapshot import Node, Snapshot
from memwatch.core.wire import Form, Shape, Wire, reasons_in

# The end of the year 9999.
LAST_UNIX = 253_402_300_800.0
MIN_INTERVAL, MAX_INTERVAL = 0.001, 86_400.0
# Names in recordings of development snapshots of version 0.1.0, and today's. Collectors were renamed as well.
RENAMED = {
    "own": "self",
    "stalls": "psi",
    "squeezed": "cgroup_pressure",
    "free_4mib_bytes": "free_large_blocks_bytes",
}
CERTAIN = "headroom_certain_bytes"
RENAMED_COLLECTORS = {"memory": "meminfo", "squeezed": "cgroup_pressure"}


def _write_contents(contents: Iterable[Content]) -> dict[str, int]:
    return {f"{part.kind}_bytes": part.size_bytes for part in contents}


def _read_contents(found: Mapping[str, int]) -> tuple[Content, ...]:
    return tuple(Content(printable(name.removesuffix("_bytes")), size) for name, size in found.items())


CONTENTS: Mapping[str, Form] = {"contents": Form(Mapping[str, int], _write_contents, _read_contents)}
RECORDS: Wire = Wire((Shape(Pool, forms=CONTENTS), Shape(Node, forms=CONTENTS)))


class SnapshotDecodeError(ValueError):
    """The JSON is not a snapshot; the message has the reason."""


def snapshot_from(line: bytes) -> Snapshot:
    """Decode the body of `/api/v1/snapshot`. `monotonic` is set to the Unix time: JSON has no other clock."""
    try:
        found = json.decode(line)
    except (ValueError, RecursionError) as error:
        raise SnapshotDecodeError(f"not a snapshot: {str(error)[:200]}") from None
    return build_snapshot(found)


def build_snapshot(found: Any) -> Snapshot:  # noqa: ANN401  JSON
    """Build a snapshot from decoded JSON. Raises SnapshotDecodeError."""
    try:
        if not isinstance(found, dict) or found.get("schema") != 1:
            raise SnapshotDecodeError("it has no schema 1")
        snapshot: Snapshot = RECORDS.decode(Snapshot, _with_current_names(found))
        _refuse_impossible_times(snapshot)
        return _with_derived(snapshot, found.get("processes") or [])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, AttributeError) as error:
        raise SnapshotDecodeError(f"not a snapshot: {str(error)[:200]}") from None


def _with_current_names(found: dict[str, Any]) -> dict[str, Any]:
    return {
        **_renamed(found),
        "monotonic": found.get("unix"),
        "devices": with_both_headrooms(found.get("devices", ())),
        "nodes": [_renamed(node) for node in found.get("nodes", ())],
        "collectors": [
            {**status, "name": RENAMED_COLLECTORS.get(status["name"], status["name"])}
            for status in found.get("collectors", ())
        ],
    }


def with_both_headrooms(devices: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return devices with both ends of the headroom by their names.

    In early development versions the larger one was `headroom_bytes`, and the other, if any,
    `headroom_certain_bytes`.
    """
    after = "headroom_after_reclaim_bytes"
    return [
        one if after in one else {**one, after: one.get("headroom_bytes"), "headroom_bytes": one.get(CERTAIN)}
        for one in devices
    ]


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that have an earlier name by their current one. The decoder ignores others."""
    found = {RENAMED[old]: record[old] for old in RENAMED.keys() & record.keys()} | record
    return found | {"absent": _renamed(record["absent"])} if isinstance(record.get("absent"), dict) else found


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
    reason = reasons_in(listed).get("footprint_high_bytes", Absent.NOT_AVAILABLE)
    return replace(process, footprint_range=(low, high if type(high) is int else reason))
