"""The snapshot and its parts as JSON. An absent value is null, with its reason under `absent`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import describe_causes
from memwatch.core.backends.model import Backends
from memwatch.core.doc import Doc
from memwatch.core.engines.records import Engine
from memwatch.core.events import Event
from memwatch.core.leases import Lease
from memwatch.core.model import Device, Pool, Process, Share
from memwatch.core.silences import Silence
from memwatch.core.snapshot import LEVEL_WORDS, CollectorStatus, LevelWord, Node, Pressure, Reason, Snapshot
from memwatch.core.snapshot_json import CONTENTS
from memwatch.core.wire import ABSENT, Form, Json, Shape, Wire, rfc3339, to_bytes
from memwatch.reporting.answers import Examination
from memwatch.reporting.history.last_run import Sample, UncleanShutdown
from memwatch.reporting.history.notable_ticks import Holder, PoolUse, TargetPressure, Tick

SCHEMA = 1

JSON_TYPE = "application/json"


def answer_bytes(value: Any, simulated: bool) -> bytes:  # noqa: ANN401
    """Encode a response body, a record or a list of records as well. Simulated data is marked in each object."""
    if isinstance(value, Struct):
        value = WIRE.encode(value)
    elif isinstance(value, (list, tuple)):
        value = [WIRE.encode(one) if isinstance(one, Struct) else one for one in value]
    if simulated and isinstance(value, dict):
        return to_bytes({"simulated": True, **value})
    if simulated and isinstance(value, list):
        return to_bytes([{"simulated": True, **one} for one in value])
    return to_bytes(value)


def schema(*_: Snapshot) -> int:
    return SCHEMA


def time(record: Snapshot | Event | Tick | UncleanShutdown, _: object) -> str:
    return rfc3339(record.unix)


def text(words: UncleanShutdown, _: object) -> str:
    return words.sentence


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
) -> Annotated[
    str | None, Doc("Namespace and name of the pod, from the kubelet's links to logs; null without one.")
]:
    return snapshot.pod_names.get(str(process.pod))


def advice(
    engine: Engine, snapshot: Snapshot
) -> Annotated[str | None, Doc("A lower limit for the server while memory is short; null otherwise.")]:
    from memwatch.planning.device_totals import advise  # the planner is loaded only if a server runs

    return advise(engine, snapshot)


LEVEL = Form(LevelWord, LEVEL_WORDS.__getitem__, LEVEL_WORDS.index)
SILENCE = Shape(
    Silence,
    "SilenceInForce",
    further=(until,),
    without=("until_boottime",),
    order=("id", "event", "target", "until", "until_unix", ...),
)
# Records of a snapshot of which JSON has more or less than their fields.
WIRE = Wire(
    (
        Shape(
            Snapshot,
            further=(schema, time, Snapshot.total),
            without=("monotonic", "unlisted", "owners", "kernel_held", "container_names", "pod_names",
                     "neighbours"),
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
        Shape(Device),
        Shape(Backends),
        SILENCE,
        Shape(Event, further=(time,)),
        Shape(
            Tick,
            further=(time,),
            order=("time", "unix", "pools", "pressure", "devices", "processes"),
        ),
        Shape(PoolUse, "TickPool"),
        Shape(TargetPressure, "TickPressure", forms={"level": LEVEL}),
        Shape(Holder, "TickProcess"),
        Shape(
            UncleanShutdown,
            "LastWords",
            further=(time, text),
            order=("time", "unix", "machine_restarted", "text", "samples", "last"),
        ),
        Shape(Sample, order=("unix", "figures")),
        Shape(
            Examination,
            further=(Examination.worst,),
            order=("worst", "version", "revision", "checks"),
        ),
    )
)  # fmt: skip


def snapshot_json(snapshot: Snapshot) -> Json:
    """Return everything of the latest sample in one answer."""
    return WIRE.encode(snapshot, snapshot)


def pools_json(snapshot: Snapshot) -> list[Json]:
    """Return the pools: physical memory, counted once, so that sizes and use add up."""
    return WIRE.encode_all(snapshot.pools, snapshot)


def shares_json(snapshot: Snapshot) -> list[Json]:
    """Return the shares: bytes inside a pool, such as the CUDA Pool or a limit. They never add up."""
    return WIRE.encode_all(snapshot.shares, snapshot)


def devices_json(snapshot: Snapshot) -> list[Json]:
    """Return GPUs and NPUs: what they allocate from, and how much they can allocate now."""
    return WIRE.encode_all(snapshot.devices)


def processes_json(snapshot: Snapshot) -> list[Json]:
    """Return the processes with their memory, resident and on devices."""
    return WIRE.encode_all(snapshot.processes, snapshot)


def engines_json(snapshot: Snapshot) -> list[Json]:
    """Return the model servers: their model, and the parts of their memory."""
    return WIRE.encode_all(snapshot.engines, snapshot)


def pressure_json(snapshot: Snapshot) -> list[Json]:
    """Return the level of each pool and limit, with the reasons and the time left."""
    return WIRE.encode_all(snapshot.pressure)


def collectors_json(snapshot: Snapshot) -> list[Json]:
    """Return the sources of figures: whether each works, and why not."""
    return WIRE.encode_all(snapshot.collectors)


def tick_json(tick: Tick, unix: float) -> Json:
    """Return a notable tick without the values that the history has as series."""
    return WIRE.encode(replace(tick, unix=unix))


def read_last_words(sent: Json) -> UncleanShutdown:
    """Decode the end of a run, whose times since boot JSON lacks. Raises TypeError, KeyError or ValueError."""
    unsent, last = {"seq": 0, "boottime": 0.0}, sent["last"]
    samples = [{**unsent, **one} for one in sent["samples"]]
    found: UncleanShutdown = WIRE.decode(
        UncleanShutdown, {**sent, "samples": samples, "last": last and {"processes": [], **unsent, **last}}
    )
    return found
