"""The snapshot and its parts as JSON. An absent value is null, with its reason under `absent`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, json
from msgspec.structs import replace

from memwatch.build_info import REVISION, __version__
from memwatch.core.accounting.unattributed import HELD_BY_PROCESSES, describe_causes, unattributed_bytes
from memwatch.core.backends.model import Backends
from memwatch.core.doc import Doc
from memwatch.core.engines.records import Engine
from memwatch.core.events import Event
from memwatch.core.leases import Lease
from memwatch.core.model import Absent, Bytes, Content, Pool, Process, Share
from memwatch.core.owners import OwnerKind, OwnerTotal, build_totals, find_caps
from memwatch.core.printable import printable
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.processes.leaks import LeakSuspect
from memwatch.core.processes.pss import Pss
from memwatch.core.silences import Silence
from memwatch.core.snapshot import CollectorStatus, Node, Pressure, Reason, Snapshot
from memwatch.core.wire import ABSENT, Form, Json, Shape, Wire, known
from memwatch.monitor.doctor.model import Examination
from memwatch.monitor.history.disk.last_run import UncleanShutdown
from memwatch.monitor.history.notable_ticks import Tick

if TYPE_CHECKING:
    from memwatch.planning.answer import FitAnswer

SCHEMA = 1

JSON_TYPE = "application/json"


def to_bytes(value: Any) -> bytes:  # noqa: ANN401  JSON is anything
    return json.encode(value, enc_hook=_encode_base)


def _encode_base(value: object) -> int | str:
    """Encode subclasses of int and str as their base type."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def answer_bytes(value: Any, simulated: bool) -> bytes:  # noqa: ANN401
    """Encode a response body. Simulated data is marked in each top-level object."""
    if simulated and isinstance(value, dict):
        return to_bytes({"simulated": True, **value})
    if simulated and isinstance(value, list):
        return to_bytes([{"simulated": True, **one} for one in value])
    return to_bytes(value)


def rfc3339(unix: float) -> str:
    """Format a time as RFC 3339: UTC, milliseconds, with a Z."""
    return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def schema(*_: Snapshot) -> int:
    return SCHEMA


def time(record: Snapshot, _: object) -> str:
    return rfc3339(record.unix)


def until(record: Lease | Silence, _: object) -> str:
    return rfc3339(record.until_unix)


def unattributed_note(
    pool: Pool, snapshot: Snapshot
) -> Annotated[str, Doc("Usual cause of it on such a machine; may be empty.")]:
    return describe_causes(pool, snapshot)


def relation(share: Share, snapshot: Snapshot) -> Annotated[str, Doc(examples=("CUDA Pool ⊂ System RAM",))]:
    return snapshot.relation(share)


def container_name(
    process: Process, snapshot: Snapshot
) -> Annotated[
    str | None, Doc("Null unless a configured container runtime or the kubelet's links to logs have it.")
]:
    return snapshot.container_names.get(str(process.container))


def pod_name(
    process: Process, snapshot: Snapshot
) -> Annotated[str | None, Doc("Namespace and name of the pod, from the kubelet's links to logs.")]:
    return snapshot.pod_names.get(str(process.pod))


def advice(
    engine: Engine, snapshot: Snapshot
) -> Annotated[str | None, Doc("A lower limit for the server while memory is short.")]:
    from memwatch.planning.engine_advice import advise  # the planner is loaded only if a server runs

    return advise(engine, snapshot)


def _write_contents(contents: Iterable[Content]) -> dict[str, int]:
    return {f"{part.kind}_bytes": part.size_bytes for part in contents}


def _read_contents(found: Mapping[str, int]) -> tuple[Content, ...]:
    return tuple(Content(printable(name.removesuffix("_bytes")), size) for name, size in found.items())


CONTENTS = {"contents": Form(Mapping[str, int], _write_contents, _read_contents)}
# Records of a snapshot of which JSON has more or less than their fields.
WIRE = Wire(
    (
        Shape(
            Snapshot,
            further=(schema, time, Snapshot.total),
            without=("monotonic", "owners", "kernel_held", "container_names", "pod_names", "neighbours"),
            order=("schema", "seq", "time", "unix", "boot_id", "host", "interval_seconds", "simulated", "machine",
                   "pools", "shares", "total", ..., "self"),
        ),
        Shape(Pool, further=(unattributed_note,), order=(..., ABSENT, "unattributed_note"), forms=CONTENTS),
        Shape(Node, forms=CONTENTS),
        Shape(Share, further=(relation,)),
        Shape(
            Process,
            further=(container_name, pod_name, Process.footprint_low_bytes, Process.footprint_high_bytes),
            without=("footprint_range",),
        ),
        Shape(Pressure, further=(Pressure.used_ratio, Pressure.corroborated)),
        Shape(Reason, "PressureReason", optional=("level",)),
        Shape(Engine, further=(advice,)),
        Shape(CollectorStatus, "Collector"),
        Shape(Lease, further=(Lease.held_bytes, Lease.arrived_bytes, until)),
        Shape(
            Silence,
            "SilenceInForce",
            further=(until,),
            without=("until_boottime",),
            order=("id", "event", "target", "until", "until_unix", ...),
        ),
    )
)  # fmt: skip


def record_json(record: Struct, **further: Any) -> Json:  # noqa: ANN401
    """Return a record of the model. JSON has the same field names."""
    return known(**{name: WIRE.plain(getattr(record, name)) for name in record.__struct_fields__}, **further)


def snapshot_json(snapshot: Snapshot) -> Json:
    return WIRE.encode(snapshot, snapshot)


def pools_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.pools, snapshot)


def shares_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.shares, snapshot)


def devices_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.devices)


def processes_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.processes, snapshot)


def engines_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.engines, snapshot)


def pressure_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.pressure)


def collectors_json(snapshot: Snapshot) -> list[Json]:
    return WIRE.encode_all(snapshot.collectors)


def leases_json(leases: Iterable[Lease]) -> list[Json]:
    return WIRE.encode_all(leases)


def lease_json(lease: Lease) -> Json:
    return WIRE.encode(lease)


def silence_json(silence: Silence) -> Json:
    return WIRE.encode(silence)


def owners_json(snapshot: Snapshot, kind: OwnerKind) -> Json:
    """Return the owners of one kind, and the unattributed memory of each pool and share."""
    scan = snapshot.process_scan
    if snapshot.processes and not snapshot.owners and not isinstance(scan, Absent):
        scan = replace(scan, process_list="partial", note=scan.note or NOT_RECORDED)
    names = snapshot.container_names if kind == "container" else {}
    pods = snapshot.pod_names if kind == "pod" else {}
    rests = [
        partial_record_json(pool, ("id", "label", "used_bytes", "unattributed_bytes", "overlap"))
        | {"unattributed_note": describe_causes(pool, snapshot)}
        for pool in snapshot.pools
    ]
    shares = [
        known(
            id=share.id,
            relation=snapshot.relation(share),
            used_bytes=share.used_bytes,
            unattributed_bytes=unattributed_bytes(share, snapshot),
        )
        for share in snapshot.shares
        if share.kind in HELD_BY_PROCESSES
    ]
    return known(
        by=kind,
        process_list=scan if isinstance(scan, Absent) else scan.process_list,
        note=None if isinstance(scan, Absent) else scan.note,
        owners=[
            record_json(
                _with_reason(total), container_name=names.get(str(total.name)), pod_name=pods.get(str(total.name))
            )
            for total in list_totals(snapshot, kind)
        ],
        pools=rests,
        shares=shares,
    )


def _with_reason(total: OwnerTotal) -> OwnerTotal:
    """Return an owner without a cgroup with the reason why it has no figure of one."""
    return total if total.cgroup_bytes is not None else replace(total, cgroup_bytes=Absent.NOT_SUPPORTED)


def list_totals(snapshot: Snapshot, kind: OwnerKind) -> list[OwnerTotal]:
    """Return the owners of one kind with the memory of their processes and the kernel's own figures."""
    charged = snapshot.machine.charges_gpu_memory
    caps = find_caps(snapshot.processes, snapshot.pools, snapshot.shares)
    return build_totals(snapshot.owners, snapshot.processes, kind, snapshot.kernel_held, charged, caps)


def partial_record_json(record: Any, names: Sequence[str]) -> Json:  # noqa: ANN401
    """Return some fields of a record of the model."""
    return known(**{name: WIRE.plain(getattr(record, name)) for name in names})


NOT_RECORDED = "This recording has no owners: it contains only the largest processes."
PROCESS_IDENTITY = ("pid", "start_time", "name", "user", "unit", "container")


def grown_json(grown: ProcessGrowth, windows: Mapping[str, Bytes], shift: float) -> Json:
    """Return the growth of a process. `windows`: growth in recent windows. `shift`: boot time to Unix time."""
    seconds = grown.to_boottime - grown.from_boottime
    return {
        **partial_record_json(grown.process, PROCESS_IDENTITY),
        "from_unix": grown.from_boottime + shift,
        "from_bytes": grown.from_bytes,
        "to_bytes": grown.to_bytes,
        "grown_bytes": grown.grown_bytes,
        "bytes_per_second": grown.grown_bytes / seconds if seconds else 0.0,
        "whole": grown.whole,
        "windows": known(**windows),
    }


def suspect_json(suspect: LeakSuspect, shift: float) -> Json:
    return {
        **partial_record_json(suspect.process, PROCESS_IDENTITY),
        "since_unix": suspect.since_boottime + shift,
        "grown_bytes": suspect.grown_bytes,
        "evidence": suspect.evidence,
    }


def pss_json(process: Process, pss: Pss) -> Json:
    return {**partial_record_json(process, PROCESS_IDENTITY[1:]), **record_json(pss)}


def event_json(event: Event) -> Json:
    return record_json(event, time=rfc3339(event.unix))


def events_json(events: Sequence[Event]) -> list[Json]:
    return [event_json(event) for event in events]


def tick_json(tick: Tick, unix: float) -> Json:
    """Return a notable tick without the values that the history has as series."""
    return {
        "time": rfc3339(unix),
        "unix": unix,
        "pools": [record_json(pool) for pool in tick.pools],
        "pressure": [record_json(one) | {"level": one.word} for one in tick.pressure],
        "devices": [record_json(device) for device in tick.devices],
        "processes": [record_json(process) for process in tick.processes],
    }


def unclean_shutdown_json(words: UncleanShutdown) -> Json:
    return {
        "time": rfc3339(words.unix),
        "unix": words.unix,
        "machine_restarted": words.machine_restarted,
        "text": words.sentence,
        "samples": [{"unix": one.unix, "figures": one.figures} for one in words.samples],
        "last": None if words.last is None else tick_json(words.last, words.last.unix),
    }


def backends_json(found: Backends) -> Json:
    return record_json(found)


def examination_json(found: Examination) -> Json:
    checks = [record_json(check) for check in found.checks]
    return {"worst": found.worst.value, "version": __version__, "revision": REVISION, "checks": checks}


def fit_json(found: FitAnswer) -> Json:
    """Return the answer of /api/v1/fit and of `memwatch fit --json`."""
    change, need = found.change, found.need
    reduction = None
    if change:
        moved = change.need.demand.ram_bytes
        sizes = {"bytes": change.need.bytes, "ram_bytes": moved}
        reduction = {"words": change.words, "flags": change.flags, **sizes}
    return {
        **record_json(found.fit),
        "unknown": found.fit.unknown or None,
        "parts": dict(need.parts),
        "runtime_source": need.runtime_source or None,
        "moves": {part: moved for part, moved in need.moves.items() if moved},
        "ram_bytes": need.demand.ram_bytes,
        "change": reduction,
        "greatest": record_json(found.greatest) if found.greatest else None,
        "launch": [record_json(line) for line in found.launches.lines],
        "launch_refused": dict(found.launches.refused),
    }
