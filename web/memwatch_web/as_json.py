"""The snapshot and its parts as JSON: an absent figure is null, with its reason under `absent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import orjson

from memwatch.alerts import Watch
from memwatch.events import Event
from memwatch.model import Absent, Device, Pool, Process, Share
from memwatch.snapshot import CollectorStatus, Node, Pressure, SelfUse, Snapshot, Stalls, StallTime, Swap, Zram

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


def snapshot_json(snapshot: Snapshot) -> Json:
    total = snapshot.total
    return known(
        schema=SCHEMA,
        seq=snapshot.seq,
        time=rfc3339(snapshot.unix),
        unix=snapshot.unix,
        boot_id=snapshot.boot_id,
        host=snapshot.host,
        interval_seconds=snapshot.interval_seconds,
        simulated=snapshot.simulated,
        machine=machine_json(snapshot),
        pools=pools_json(snapshot),
        shares=shares_json(snapshot),
        total=known(
            size_bytes=total.size_bytes, used_bytes=total.used_bytes, available_bytes=total.available_bytes
        ),
        devices=devices_json(snapshot),
        processes=processes_json(snapshot),
        process_scan=_or_absent(
            snapshot.process_scan, lambda scan: {"seen": scan.seen, "unreadable": scan.unreadable}
        ),
        swap=_or_absent(snapshot.swap, swap_json),
        zram=_or_absent(snapshot.zram, zram_json),
        stalls=_or_absent(snapshot.stalls, stalls_json),
        nodes=[node_json(node) for node in snapshot.nodes],
        kernel=known(
            oom_kills_total=snapshot.kernel.oom_kills_total, compact_fail_total=snapshot.kernel.compact_fail_total
        ),
        pressure=pressure_json(snapshot),
        collectors=collectors_json(snapshot),
        own=own_json(snapshot.own),
    )


def machine_json(snapshot: Snapshot) -> Json:
    machine = snapshot.machine
    return known(
        name=machine.name,
        architecture=machine.architecture,
        explanation=machine.explanation,
        in_container=machine.in_container,
    )


def pools_json(snapshot: Snapshot) -> list[Json]:
    return [pool_json(pool) for pool in snapshot.pools]


def pool_json(pool: Pool) -> Json:
    return known(
        id=pool.id,
        kind=pool.kind.value,
        label=pool.label,
        size_bytes=pool.size_bytes,
        used_bytes=pool.used_bytes,
        available_bytes=pool.available_bytes,
        free_bytes=pool.free_bytes,
        reserved_bytes=pool.reserved_bytes,
        unattributed_bytes=pool.unattributed_bytes,
        overlap=pool.overlap,
        set_aside_bytes=pool.set_aside_bytes,
        contents={f"{part.kind}_bytes": part.size_bytes for part in pool.contents},
        source=pool.source,
        quality=pool.quality.value,
    )


def shares_json(snapshot: Snapshot) -> list[Json]:
    return [share_json(share, snapshot.relation(share)) for share in snapshot.shares]


def share_json(share: Share, relation: str) -> Json:
    return known(
        id=share.id,
        kind=share.kind.value,
        label=share.label,
        relation=relation,
        within=share.within,
        device=share.device,
        used_bytes=share.used_bytes,
        limit_bytes=share.limit_bytes,
        note=share.note,
        source=share.source,
        quality=share.quality.value,
    )


def devices_json(snapshot: Snapshot) -> list[Json]:
    return [device_json(device) for device in snapshot.devices]


def device_json(device: Device) -> Json:
    return known(
        id=device.id,
        vendor=device.vendor,
        name=device.name,
        uuid=device.uuid,
        pci=device.pci,
        driver=device.driver,
        architecture=device.architecture.value,
        allocates_from=list(device.allocates_from),
        headroom_bytes=device.headroom_bytes,
        state=device.state,
        evidence=list(device.evidence),
    )


def processes_json(snapshot: Snapshot) -> list[Json]:
    return [process_json(process) for process in snapshot.processes]


def process_json(process: Process) -> Json:
    return known(
        pid=process.pid,
        start_time=process.start_time,
        name=process.name,
        user=process.user,
        unit=process.unit,
        container=process.container,
        rss_bytes=process.rss_bytes,
        device_bytes=known(**process.device_bytes),
        footprint_bytes=process.footprint_bytes,
        footprint_basis=process.footprint_basis,
    )


def pressure_json(snapshot: Snapshot) -> list[Json]:
    return [one_pressure_json(pressure) for pressure in snapshot.pressure]


def one_pressure_json(pressure: Pressure) -> Json:
    return known(
        target=pressure.target,
        level=pressure.level.word,
        base_level=pressure.base_level.word,
        ratio=pressure.ratio,
        reasons=[{"signal": reason.signal, "text": reason.text} for reason in pressure.reasons],
        seconds_to_full=pressure.seconds_to_full,
    )


def collectors_json(snapshot: Snapshot) -> list[Json]:
    return [collector_json(status) for status in snapshot.collectors]


def collector_json(status: CollectorStatus) -> Json:
    return known(
        name=status.name,
        state=status.state,
        age_seconds=status.age_seconds,
        duration_seconds=status.duration_seconds,
        last_success_unix=status.last_success_unix,
        error=status.error,
        errors=dict(status.errors),
    )


def swap_json(swap: Swap) -> Json:
    return known(
        size_bytes=swap.size_bytes,
        used_bytes=swap.used_bytes,
        zswap_stored_bytes=swap.zswap_stored_bytes,
        zswap_memory_bytes=swap.zswap_memory_bytes,
    )


def zram_json(zram: Zram) -> Json:
    return known(stored_bytes=zram.stored_bytes, memory_bytes=zram.memory_bytes)


def stalls_json(stalls: Stalls) -> Json:
    return known(some=stall_json(stalls.some), full=_or_absent(stalls.full, stall_json))


def stall_json(stall: StallTime) -> Json:
    return {
        "ratio_10s": stall.ratio_10s,
        "ratio_60s": stall.ratio_60s,
        "ratio_300s": stall.ratio_300s,
        "total_seconds": stall.total_seconds,
    }


def node_json(node: Node) -> Json:
    return known(
        id=node.id,
        size_bytes=node.size_bytes,
        free_bytes=node.free_bytes,
        has_cpus=node.has_cpus,
        largest_free_block_bytes=node.largest_free_block_bytes,
        free_4mib_bytes=node.free_4mib_bytes,
    )


def own_json(own: SelfUse) -> Json:
    return known(
        rss_bytes=own.rss_bytes,
        cpu_seconds=own.cpu_seconds,
        tick_lag_seconds=own.tick_lag_seconds,
        tick_duration_seconds=own.tick_duration_seconds,
        memory_locked=own.memory_locked,
    )


def event_json(event: Event) -> Json:
    return {
        "seq": event.seq,
        "time": rfc3339(event.unix),
        "unix": event.unix,
        "kind": event.kind,
        "text": event.text,
        "target": event.target,
    }


def alerts_json(watches: Mapping[str, Watch]) -> list[Json]:
    """Alerts that fire or are about to."""
    return [
        {"target": target, "rule": "pressure.critical", "state": "firing" if watch.firing else "pending"}
        for target, watch in watches.items()
        if watch.firing or watch.since is not None
    ]


def events_json(events: Sequence[Event]) -> list[Json]:
    return [event_json(event) for event in events]


def _or_absent(value: Any, render: Any) -> Any:  # noqa: ANN401
    return value if isinstance(value, Absent) else render(value)
