"""The snapshot and its parts as JSON: an absent figure is null, with its reason under `absent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import orjson

from memwatch.backends.model import Backends
from memwatch.doctor.model import Examination
from memwatch.events import Event
from memwatch.model import Absent, Pool
from memwatch.snapshot import Level, Node, Snapshot

SCHEMA = 1

Json = dict[str, Any]


def to_bytes(value: Any) -> bytes:  # noqa: ANN401  JSON is anything
    return orjson.dumps(value)


def rfc3339(unix: float) -> str:
    """A time as users and logs write it: UTC, to the millisecond, with a Z."""
    return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def known(**fields: Any) -> Json:  # noqa: ANN401
    """The fields with absent figures as null, and the reasons beside them."""
    absent = {name: value.value for name, value in fields.items() if isinstance(value, Absent)}
    if not absent:
        return fields
    return {**fields, **dict.fromkeys(absent), "absent": absent}


def record_json(record: Any, **further: Any) -> Json:  # noqa: ANN401  one of the model's data classes
    """A record of the model, which is slotted, under its own names: the model's word is JSON's word too."""
    return known(**{name: _plain(getattr(record, name)) for name in record.__slots__}, **further)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Level):
        return value.word
    if isinstance(value, Enum) and not isinstance(value, Absent):
        return value.value
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return known(**value)
    return record_json(value) if is_dataclass(value) else value


def snapshot_json(snapshot: Snapshot) -> Json:
    parts = (snapshot.machine, snapshot.total, snapshot.kernel, snapshot.own)
    machine, total, kernel, own = map(record_json, parts)
    return known(
        schema=SCHEMA,
        seq=snapshot.seq,
        time=rfc3339(snapshot.unix),
        unix=snapshot.unix,
        boot_id=snapshot.boot_id,
        host=snapshot.host,
        interval_seconds=snapshot.interval_seconds,
        simulated=snapshot.simulated,
        machine=machine,
        pools=pools_json(snapshot),
        shares=shares_json(snapshot),
        total=total,
        devices=devices_json(snapshot),
        processes=processes_json(snapshot),
        process_scan=_plain(snapshot.process_scan),
        swap=_plain(snapshot.swap),
        zram=_plain(snapshot.zram),
        stalls=_plain(snapshot.stalls),
        nodes=[_with_contents(node) for node in snapshot.nodes],
        tegrastats=_plain(snapshot.tegrastats),
        kernel=kernel,
        pressure=pressure_json(snapshot),
        collectors=collectors_json(snapshot),
        own=own,
    )


def pools_json(snapshot: Snapshot) -> list[Json]:
    return [_with_contents(pool) for pool in snapshot.pools]


def _with_contents(place: Pool | Node) -> Json:
    """A pool or a node; its contents as one object, `{"anonymous_bytes": …}`."""
    found = record_json(place)
    found["contents"] = {f"{part.kind}_bytes": part.size_bytes for part in place.contents}
    return found


def shares_json(snapshot: Snapshot) -> list[Json]:
    return [record_json(share, relation=snapshot.relation(share)) for share in snapshot.shares]


def devices_json(snapshot: Snapshot) -> list[Json]:
    return [record_json(device) for device in snapshot.devices]


def processes_json(snapshot: Snapshot) -> list[Json]:
    return [record_json(process) for process in snapshot.processes]


def pressure_json(snapshot: Snapshot) -> list[Json]:
    return [record_json(pressure, corroborated=pressure.corroborated) for pressure in snapshot.pressure]


def collectors_json(snapshot: Snapshot) -> list[Json]:
    return [record_json(status) for status in snapshot.collectors]


def event_json(event: Event) -> Json:
    return record_json(event, time=rfc3339(event.unix))


def events_json(events: Sequence[Event]) -> list[Json]:
    return [event_json(event) for event in events]


def backends_json(found: Backends) -> Json:
    return record_json(found)


def examination_json(found: Examination) -> Json:
    return {"worst": found.worst.value, "checks": [record_json(check) for check in found.checks]}
