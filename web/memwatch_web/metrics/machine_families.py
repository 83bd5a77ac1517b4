"""Metrics of the machine: pools, shares, other memory, devices, pressure, and the kernel's own signs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from memwatch.core.accounting.driver_errors import unassigned_errors
from memwatch.core.accounting.leased import held_by_pool
from memwatch.core.model import STALLED, Absent, Device, Pool, Share, ShareKind
from memwatch.core.pressure.oom_kills import SCOPES
from memwatch.core.snapshot import (
    Kernel,
    Level,
    Node,
    Pressure,
    PsiLine,
    Snapshot,
    Swap,
    Tegrastats,
    ZfsCache,
    Zram,
)
from memwatch_monitor.between_scrapes import KillCounts, LevelTimes, TargetTimes
from memwatch_web.metrics.samples import Row, Value, counter, find_devices, gauge, gauges, info, read_docs

POOL, DEVICE, NODE = ("pool", "kind", "device"), ("device",), ("node",)
SHARE = ("share", "kind", "within", "device")
TARGET = ("target", "device")

# Fields of a record with a family each.
POOL_FIELDS = ("size_bytes", "used_bytes", "available_bytes", "free_bytes", "unattributed_bytes")
ACTIVITY = ("busy_ratio", "memory_busy_ratio", "temperature_celsius", "power_watts")


def pool_families(snapshot: Snapshot) -> Iterator[Metric]:
    devices = find_devices(snapshot)
    rows = [((pool.id, pool.kind.value, devices.get(pool.id, "")), pool) for pool in snapshot.pools]
    yield from gauges("pool_", Pool, POOL_FIELDS, rows, POOL)
    held = held_by_pool(snapshot.leases, snapshot.shares) if snapshot.leases else {}
    text = "Available memory of a pool that is leased to programs that have not allocated it yet, in bytes."
    yield gauge("pool_leased_bytes", text, [(values, held.get(pool.id, 0)) for values, pool in rows], POOL)
    parts = [
        ((pool, part.kind, device), part.size_bytes) for (pool, _, device), one in rows for part in one.contents
    ]
    text = "Contents of a pool in bytes. The contents of a pool add up to its size."
    yield gauge("pool_contents_bytes", text, parts, ("pool", "content", "device"))


def share_families(snapshot: Snapshot) -> Iterator[Metric]:
    rows = [((s.id, s.kind.value, s.within, s.device or ""), s) for s in snapshot.shares]
    yield from gauges("share_", Share, ("used_bytes", "limit_bytes"), rows, SHARE)
    cgroups = [(values, s) for values, s in rows if s.kind is ShareKind.CGROUP and isinstance(s.limit_bytes, int)]
    text = "1 if the kernel slows the processes of a cgroup at its limit (memory.high), 0 if it kills them."
    yield gauge("share_limit_throttles", text, [(values, int(s.limit_throttles)) for values, s in cgroups], SHARE)


def swap_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield swap and compressed memory. zram and zswap are part of the kernel's memory in System RAM."""
    if not isinstance(swap := snapshot.swap, Absent):
        yield from gauges("swap_", Swap, ("size_bytes", "used_bytes"), [((), swap)])
        yield from gauges("", Swap, ("zswap_stored_bytes", "zswap_memory_bytes"), [((), swap)])
    if not isinstance(zram := snapshot.zram, Absent):
        yield from gauges("zram_", Zram, ("stored_bytes", "memory_bytes"), [((), zram)])


def pinned_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield memory that the kernel cannot reclaim, and ZFS's cache, which it can."""
    yield from gauges("", Kernel, ("mlocked_bytes", "unevictable_bytes"), [((), snapshot.kernel)])
    if not isinstance(cache := snapshot.zfs_cache, Absent):
        texts = read_docs(ZfsCache)
        yield gauge("zfs_cache_bytes", texts["size_bytes"], [((), cache.size_bytes)])
        yield from gauges("zfs_cache_", ZfsCache, ("minimum_bytes",), [((), cache)])


def device_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield identity, headroom, utilization, sensors and errors of devices."""
    devices = snapshot.devices
    rows = [((device.id,), device) for device in devices]
    names = ("device", "vendor", "name", "uuid", "pci", "driver", "architecture")
    identities = [(d.id, d.vendor, d.name, d.uuid, d.pci, d.driver, d.architecture.value) for d in devices]
    yield info("device", "Identity of a device.", identities, names)
    up = [(key, int(one.state == "ok")) for key, one in rows if one.state != STALLED]
    text = "1 if a device responds, 0 if it is lost, missing or needs a reset; absent if its collector is stalled."
    yield gauge("device_up", text, up, DEVICE)
    yield from gauges("device_", Device, ("headroom_bytes", "headroom_after_reclaim_bytes"), rows, DEVICE)
    frees = [((device.id, api), size) for device in devices for api, size in device.api_free_bytes.items()]
    text = "Free memory of a device in bytes, as reported by an API such as CUDA."
    yield gauge("device_api_free_bytes", text, frees, ("device", "api"))
    complete = [
        (key, int(one.process_list == "complete")) for key, one in rows if isinstance(one.process_list, str)
    ]
    text = "1 if all processes that hold memory of a device are visible, 0 if some are hidden."
    yield gauge("device_process_list_complete", text, complete, DEVICE)
    yield from gauges("device_", Device, ACTIVITY, rows, DEVICE)
    clocks = [
        ((device.id, name), hertz)
        for device in devices
        if not isinstance(device.clock_hertz, Absent)
        for name, hertz in device.clock_hertz.items()
    ]
    yield gauge("device_clock_hertz", "Frequency of a clock of a device in hertz.", clocks, ("device", "clock"))
    reasons = [
        ((device.id, reason), 1)
        for device in devices
        if not isinstance(device.throttled, Absent)
        for reason in device.throttled
    ]
    text = "1 for each reason that lowers the clocks of a device now."
    yield gauge("device_throttled", text, reasons, ("device", "reason"))
    yield from driver_error_families(snapshot)


def driver_error_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("device", "kind")
    log = snapshot.kernel_log
    others = () if isinstance(log, Absent) else unassigned_errors(snapshot.devices, log)
    errors = [((device.id, kind), count) for device in snapshot.devices for kind, count in device.errors.items()]
    errors += [((one.place, one.kind), one.count) for one in others]
    yield counter("driver_memory_errors", "Total memory errors reported by a driver, by kind.", errors, labels)
    seen = [((device.id, kind), at) for device in snapshot.devices for kind, at in device.errors_seen_unix.items()]
    seen += [((one.place, one.kind), one.last_seen_unix) for one in others]
    text = "Unix time of the last memory error reported by a driver, by kind."
    yield gauge("driver_memory_error_last_seen_timestamp_seconds", text, seen, labels)


def pressure_families(snapshot: Snapshot, levels: LevelTimes | None) -> Iterator[Metric]:
    devices, judged = find_devices(snapshot), snapshot.pressure

    def rows(figure: Callable[[Pressure], Value]) -> list[Row]:
        return [((one.target, devices.get(one.target, "")), figure(one)) for one in judged]

    text = "Pressure level of a target: 0 OK (low), 1 medium, 2 high, 3 critical."
    yield gauge("pressure_level", text, rows(lambda one: int(one.level)), TARGET)
    yield gauge(
        "pressure",
        "1 for the current level of a target, 0 for the other levels.",
        [((*key, level.word), int(word == level)) for key, word in rows(lambda one: one.level) for level in Level],
        (*TARGET, "level"),
    )
    text = "Used fraction of the judged memory of a target, without resident memory; above 1 if over budget."
    yield gauge("pressure_ratio", text, rows(lambda one: one.ratio), TARGET)
    yield gauge(
        "pressure_reason",
        "1 for each signal that supports the current level of a target.",
        [((one.target, devices.get(one.target, ""), reason.signal), 1) for one in judged for reason in one.reasons],
        (*TARGET, "signal"),
    )
    text = "Forecast of the time until a target is full, in seconds."
    yield gauge("time_to_full_seconds", text, rows(lambda one: one.seconds_to_full), TARGET)
    if levels is not None:
        yield from level_families(levels.times(snapshot.monotonic), devices)


def level_families(times: Mapping[str, TargetTimes], devices: Mapping[str, str]) -> Iterator[Metric]:
    """Yield counters that include levels between two scrapes."""
    keys = {target: (target, devices.get(target, "")) for target in times}
    seconds = [
        ((*keys[target], level.word), one.seconds[level]) for target, one in times.items() for level in Level
    ]
    text = "Total time of a target at each level since the daemon started, in seconds."
    yield counter("pressure_seconds", text, seconds, (*TARGET, "level"))
    changes = [(keys[target], one.changes) for target, one in times.items()]
    yield counter("pressure_changes", "Total changes of the level of a target.", changes, TARGET)


def kernel_families(snapshot: Snapshot, counts: KillCounts | None) -> Iterator[Metric]:
    yield from psi_families(snapshot)
    yield from gauges(
        "",
        Node,
        ("largest_free_block_bytes", "free_large_blocks_bytes"),
        [((str(node.id),), node) for node in snapshot.nodes],
        NODE,
    )
    if not isinstance(tegrastats := snapshot.tegrastats, Absent):
        yield from gauges(
            "tegrastats_", Tegrastats, ("largest_free_block_bytes", "largest_free_blocks"), [((), tegrastats)]
        )
    scopes = counts.scopes if counts and counts.scopes else {"unknown": snapshot.kernel.oom_kills_total}
    text = (
        "Total processes killed by the kernel OOM killer since boot: for lack of System RAM (machine), at the "
        "limit of a cgroup, or unknown."
    )
    kills = [((scope,), scopes.get(scope, 0)) for scope in SCOPES]
    is_known = not isinstance(snapshot.kernel.oom_kills_total, Absent)
    yield counter("kernel_oom_kills", text, kills if is_known else [], ("scope",))


def psi_families(snapshot: Snapshot) -> Iterator[Metric]:
    psi = snapshot.psi
    if isinstance(psi, Absent):
        return
    kinds: dict[str, PsiLine] = {"some": psi.some}
    if not isinstance(psi.full, Absent):
        kinds["full"] = psi.full
    windows = {"10s": "ratio_10s", "60s": "ratio_60s", "300s": "ratio_300s"}
    yield gauge(
        "psi_stall_ratio",
        "Fraction of time tasks stalled on memory (PSI), by window, 0–1.",
        [((kind, window), getattr(line, name)) for kind, line in kinds.items() for window, name in windows.items()],
        ("kind", "window"),
    )
    totals = [((kind,), line.total_seconds) for kind, line in kinds.items()]
    text = "Total time tasks stalled on memory since boot (PSI), in seconds."
    yield counter("psi_stalled_seconds", text, totals, ("kind",))
