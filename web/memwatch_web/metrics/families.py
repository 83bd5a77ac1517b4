"""Prometheus metrics of a snapshot: base units, one name for each fact, no sample for unknown values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import prometheus_client
from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from memwatch.accounting.driver_errors import unassigned_errors
from memwatch.alerts.rules import CRITICAL, SEVERITY
from memwatch.alerts.state import AlertState, Key
from memwatch.history.disk.files import FilesStatus
from memwatch.model import STALLED, Absent, Process, sum_figures
from memwatch.notify.outbox.outbox import OutboxFigures
from memwatch.notify.receiver import Subscription
from memwatch.runtime.worker import ThreadState
from memwatch.snapshot import CollectorStatus, Level, PsiLine, Snapshot
from memwatch_web.metrics.pushed_alerts import pushed_family
from memwatch_web.metrics.samples import PREFIX, Row, Value, counter, gauge


class Notifier(Protocol):
    """Exported statistics of a notification receiver."""

    name: str

    def counts(self) -> Mapping[str, int]: ...

    def pending(self) -> int: ...

    def in_place_of_prometheus(self) -> Subscription | None: ...


class ProcessFigures(Struct, frozen=True):
    """State of the daemon's own process."""

    log_lines_dropped: int
    thread_states: Mapping[str, ThreadState]
    failed_logins: int


class Exporter(Collector):
    """Converter of the latest snapshot to metric families. It runs at most once per tick and content type."""

    def __init__(
        self,
        version: str,
        alert_states: Callable[[], Mapping[Key, AlertState]],
        notifiers: Callable[[], Sequence[Notifier]] = tuple,
        max_processes: Callable[[], int] = lambda: 0,
        outbox: Callable[[], OutboxFigures | None] = lambda: None,
        files: Callable[[], FilesStatus | None] = lambda: None,
        process: Callable[[], ProcessFigures | None] = lambda: None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._version = version
        self._watches = alert_states
        self._notifiers = notifiers
        self._max_processes = max_processes
        self._outbox = outbox
        self._files = files
        self._process = process
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, snapshot: Snapshot, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        self.snapshot = snapshot
        return encode(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        if self.snapshot is not None:
            yield from (family for family in self.families(self.snapshot) if family.samples)

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Yield all families, including those without samples."""
        yield from pool_families(snapshot)
        yield from share_families(snapshot)
        yield from device_families(snapshot)
        yield from pressure_families(snapshot)
        yield from kernel_families(snapshot)
        if most := self._max_processes():
            yield from process_families(snapshot, most)
        yield from collector_families(snapshot)
        yield from self._self_families(snapshot)
        yield from self._alert_families()
        subscriptions = (notifier.in_place_of_prometheus() for notifier in self._notifiers())
        yield pushed_family(snapshot, filter(None, subscriptions))
        yield from history_families(self._files())
        yield from daemon_families(self._process())

    def _self_families(self, snapshot: Snapshot) -> Iterator[Metric]:
        yield gauge("snapshot_timestamp_seconds", "Unix time of the latest snapshot.", [((), snapshot.unix)])
        usage = snapshot.self_usage
        yield gauge("tick_lag_seconds", "Delay of the latest tick in seconds.", [((), usage.tick_lag_seconds)])
        yield gauge(
            "tick_duration_seconds",
            "Duration of the previous tick in seconds.",
            [((), usage.tick_duration_seconds)],
        )
        locked = int(usage.memory_locked)
        yield gauge(
            "memory_locked",
            "1 if the daemon's memory is locked (mlockall), 0 if it can be swapped out.",
            [((), locked)],
        )
        labels = {"version": self._version, "simulated": "true" if snapshot.simulated else "false"}
        yield InfoMetricFamily(PREFIX + "build", "Version of memwatchd, and whether its data is simulated.", labels)

    def _alert_families(self) -> Iterator[Metric]:
        notifiers = self._notifiers()
        firing = Counter({CRITICAL: 0})
        firing.update(rule for (rule, _), watch in self._watches().items() if watch.firing)
        rows: list[Row] = [((rule, SEVERITY[rule]), count) for rule, count in firing.items()]
        yield gauge("alerts_firing", "Number of firing alerts.", rows, ("rule", "severity"))
        yield counter(
            "notifications",
            "Total notifications by outcome.",
            [((n.name, outcome), count) for n in notifiers for outcome, count in n.counts().items()],
            ("receiver", "outcome"),
        )
        pending = [((n.name,), n.pending()) for n in notifiers]
        yield gauge("notifications_pending", "Number of undelivered notifications.", pending, ("receiver",))
        outbox = self._outbox() if notifiers else None
        durable = [((), int(outbox.durable))] if outbox else []
        yield gauge("outbox_durable", "1 if undelivered notifications survive a restart, 0 if not.", durable)
        errors = [((), outbox.errors)] if outbox else []
        yield counter("outbox_errors", "Total failed writes of undelivered notifications to disk.", errors)
        recovered = [((), outbox.recovered)] if outbox else []
        yield counter(
            "outbox_recovered",
            "Total unusable outbox files replaced, or loaded without their damaged rows.",
            recovered,
        )


def pool_families(snapshot: Snapshot) -> Iterator[Metric]:
    texts = {
        "size": "Physical size of a pool in bytes. Pools do not overlap and may be summed.",
        "used": "Used memory of a pool in bytes; used + available = size.",
        "available": "Memory of a pool that can be allocated without swapping, in bytes.",
        "free": "Free memory of a pool in bytes (MemFree on Linux). Page cache is available, not free.",
        "unattributed": "Used memory of a pool that is not attributed to any holder, in bytes.",
    }
    for what, text in texts.items():
        rows = [((pool.id, pool.kind.value), getattr(pool, f"{what}_bytes")) for pool in snapshot.pools]
        yield gauge(f"pool_{what}_bytes", text, rows, ("pool", "kind"))


def share_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("share", "kind", "within", "device")
    rows = [((s.id, s.kind.value, s.within, s.device or ""), s) for s in snapshot.shares]
    text = (
        "Used memory of a share in bytes. A share is part of a pool or of another share: never add shares to pools."
    )
    yield gauge("share_used_bytes", text, [(values, share.used_bytes) for values, share in rows], labels)
    limits = [(values, share.limit_bytes) for values, share in rows]
    yield gauge("share_limit_bytes", "Limit of a share in bytes.", limits, labels)


def device_families(snapshot: Snapshot) -> Iterator[Metric]:
    names = ("device", "vendor", "name", "uuid", "pci", "driver", "architecture")
    info = InfoMetricFamily(PREFIX + "device", "Identity of a device.", labels=names)
    for device in snapshot.devices:
        values = (
            device.id,
            device.vendor,
            device.name,
            device.uuid,
            device.pci,
            device.driver,
            device.architecture,
        )
        words = ["" if isinstance(value, Absent) else str(getattr(value, "value", value)) for value in values]
        info.add_metric(words, {})
    yield info
    up = [((one.id,), int(one.state == "ok")) for one in snapshot.devices if one.state != STALLED]
    text = "1 if a device responds, 0 if it is lost, missing or needs a reset; absent if its collector is stalled."
    yield gauge("device_up", text, up, ("device",))
    rows = [((device.id,), device.headroom_bytes) for device in snapshot.devices]
    yield gauge(
        "device_headroom_bytes", "Memory that can be allocated on a device now, in bytes.", rows, ("device",)
    )
    certain = [((device.id,), device.headroom_certain_bytes) for device in snapshot.devices]
    text = "Part of the headroom of a device that is free without reclaiming page cache, in bytes."
    yield gauge("device_headroom_certain_bytes", text, certain, ("device",))
    frees = [((device.id, api), size) for device in snapshot.devices for api, size in device.api_free_bytes.items()]
    yield gauge(
        "device_api_free_bytes",
        "Free memory of a device in bytes, as reported by an API such as CUDA.",
        frees,
        ("device", "api"),
    )
    complete = [
        ((device.id,), int(device.process_list == "complete"))
        for device in snapshot.devices
        if isinstance(device.process_list, str)
    ]
    text = "1 if all processes that hold memory of a device are visible, 0 if some are hidden."
    yield gauge("device_process_list_complete", text, complete, ("device",))
    yield from ghost_families(snapshot)
    busy = [((device.id,), device.busy_ratio) for device in snapshot.devices]
    yield gauge("device_busy_ratio", "Fraction of time a device was busy, 0–1.", busy, ("device",))
    moving = [((device.id,), device.memory_busy_ratio) for device in snapshot.devices]
    yield gauge(
        "device_memory_busy_ratio",
        "Fraction of time the memory of a device was read or written, 0–1.",
        moving,
        ("device",),
    )
    yield from vital_families(snapshot)
    yield from driver_error_families(snapshot)


def vital_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield temperature, power, clocks and throttling of devices."""
    devices = snapshot.devices
    temperatures = [((device.id,), device.temperature_celsius) for device in devices]
    text = "Temperature of a device in degrees Celsius."
    yield gauge("device_temperature_celsius", text, temperatures, ("device",))
    power = [((device.id,), device.power_watts) for device in devices]
    yield gauge("device_power_watts", "Power of a device in watts.", power, ("device",))
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


def pressure_families(snapshot: Snapshot) -> Iterator[Metric]:
    judged = snapshot.pressure
    yield gauge(
        "pressure_level",
        "Pressure level of a target: 0 low, 1 medium, 2 high, 3 critical.",
        [((pressure.target,), int(pressure.level)) for pressure in judged],
        ("target",),
    )
    yield gauge(
        "pressure",
        "1 for the current level of a target, 0 for the other levels.",
        [((p.target, level.word), int(p.level is level)) for p in judged for level in Level],
        ("target", "level"),
    )
    yield gauge(
        "pressure_ratio",
        "Used fraction of the judged memory of a target, without resident memory; above 1 if over budget.",
        [((pressure.target,), pressure.ratio) for pressure in judged],
        ("target",),
    )
    yield gauge(
        "pressure_reason",
        "1 for each signal that supports the current level of a target.",
        [((p.target, reason.signal), 1) for p in judged for reason in p.reasons],
        ("target", "signal"),
    )
    rows = [((pressure.target,), pressure.seconds_to_full) for pressure in judged]
    text = "Forecast of the time until a target is full, in seconds."
    yield gauge("time_to_full_seconds", text, rows, ("target",))


def kernel_families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from psi_families(snapshot)
    nodes = [((str(node.id),), node.largest_free_block_bytes) for node in snapshot.nodes]
    text = "Largest free block of physical memory on a NUMA node in bytes; falls with fragmentation."
    yield gauge("largest_free_block_bytes", text, nodes, ("node",))
    large = [((str(node.id),), node.free_large_blocks_bytes) for node in snapshot.nodes]
    text = "Free memory of a NUMA node in blocks of at least 4 MiB, in bytes."
    yield gauge("free_large_blocks_bytes", text, large, ("node",))
    yield from tegrastats_families(snapshot)
    swap = snapshot.swap
    if not isinstance(swap, Absent):
        yield gauge(
            "swap_size_bytes", "Size of swap in bytes; never counted as memory for a GPU.", [((), swap.size_bytes)]
        )
        yield gauge("swap_used_bytes", "Used swap in bytes.", [((), swap.used_bytes)])
    kills = [((), snapshot.kernel.oom_kills_total)]
    yield counter("kernel_oom_kills", "Total processes killed by the kernel OOM killer since boot.", kills)


def tegrastats_families(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.tegrastats
    if isinstance(found, Absent):
        return
    text = "Largest free block reported by tegrastats in bytes, at most 4 MiB; falls with fragmentation."
    yield gauge("tegrastats_largest_free_block_bytes", text, [((), found.largest_free_block_bytes)])
    text = "Number of free blocks of the largest size, as reported by tegrastats."
    yield gauge("tegrastats_largest_free_blocks", text, [((), found.largest_free_blocks)])


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


def ghost_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the memory of processes that only a driver lists. At most one sample for each pool and share."""
    ghosts = [process for process in snapshot.processes if not process.visible]
    places = dict.fromkeys(place for ghost in ghosts for place in ghost.device_bytes)
    kept = [((one.pool,), one.held_bytes) for one in snapshot.not_returned]
    text = "Memory in bytes that is still used 30 s after the processes ended that held it."
    yield gauge("memory_not_returned_bytes", text, kept, ("pool",))
    rows = [
        ((place,), sum_figures([ghost.device_bytes[place] for ghost in ghosts if place in ghost.device_bytes]))
        for place in places
    ]
    text = "Device memory in bytes of processes that a driver lists and /proc does not have, by pool or share."
    yield gauge("processes_not_visible_bytes", text, rows, ("where",))


def process_families(snapshot: Snapshot, max_processes: int) -> Iterator[Metric]:
    """Yield the largest processes. A snapshot has more: it includes every process that holds GPU memory."""

    def size(process: Process) -> int:
        return -1 if isinstance(process.footprint_bytes, Absent) else process.footprint_bytes

    labels = ("pid", "name", "unit", "container", "where")
    largest = sorted(snapshot.processes, key=size, reverse=True)[:max_processes]
    rows = [row for process in largest for row in process_rows(process)]
    yield gauge(
        "process_memory_bytes", "Memory of each of the largest processes in bytes, by location.", rows, labels
    )


def process_rows(process: Process) -> list[Row]:
    def word(value: str | Absent | None) -> str:
        return value if isinstance(value, str) else ""

    who = (str(process.pid), word(process.name), word(process.unit), word(process.container))
    return [((*who, where), size) for where, size in (("rss", process.rss_bytes), *process.device_bytes.items())]


def collector_families(snapshot: Snapshot) -> Iterator[Metric]:
    available = [status for status in snapshot.collectors if status.state != "unavailable"]

    def rows(figure: Callable[[CollectorStatus], Value]) -> list[Row]:
        return [((status.name,), figure(status)) for status in available]

    label = ("collector",)
    up = rows(lambda status: int(status.state == "ok"))
    yield gauge(
        "collector_up", "1 if a collector works, 0 if not; absent if it does not apply to this machine.", up, label
    )
    took = rows(lambda status: status.duration_seconds)
    yield gauge(
        "collector_duration_seconds", "Duration of a collector's last successful run in seconds.", took, label
    )
    last = rows(lambda status: status.last_success_unix)
    yield gauge("collector_last_success_timestamp_seconds", "Unix time of a collector's last success.", last, label)
    errors = [((s.name, reason), count) for s in snapshot.collectors for reason, count in s.errors.items()]
    yield counter("collector_errors", "Total errors of a collector, by reason.", errors, ("collector", "reason"))


def history_families(files: FilesStatus | None) -> Iterator[Metric]:
    """Yield the metrics of the history on disk; without samples if there is none."""

    def rows(figure: Callable[[FilesStatus], Value]) -> list[Row]:
        return [] if files is None else [((), figure(files))]

    yield gauge(
        "history_size_bytes",
        "Size of the history files in bytes; it does not grow.",
        rows(lambda status: status.size_bytes),
    )
    text = "Total bytes of history written to disk."
    yield counter("history_written_bytes", text, rows(lambda status: status.written_bytes))
    yield counter("history_writes", "Total history records written.", rows(lambda status: status.writes))
    text = "Duration of the last history fsync in seconds."
    yield gauge("history_sync_duration_seconds", text, rows(lambda status: status.sync_seconds))
    yield counter("history_errors", "Total failed writes of history.", rows(lambda status: status.errors))
    text = "Total history records dropped because the disk did not accept writes."
    yield counter("history_dropped_records", text, rows(lambda status: status.dropped))
    text = "Number of damaged or unreadable history records found at startup; the others are used."
    yield gauge("history_damaged_records", text, rows(lambda status: status.lost))


def daemon_families(process: ProcessFigures | None) -> Iterator[Metric]:
    """Yield the metrics of the daemon's log and threads."""
    dropped = [] if process is None else [((), process.log_lines_dropped)]
    yield counter("log_lines_dropped", "Total log lines dropped because stderr did not accept them.", dropped)
    refused = [] if process is None else [((), process.failed_logins)]
    yield counter("failed_logins", "Total requests refused for wrong credentials.", refused)
    states = {} if process is None else process.thread_states
    up = [((name,), int(state is ThreadState.OK)) for name, state in states.items()]
    text = "1 if a thread that delivers alerts works, 0 if it has not started, has ended or is stuck."
    yield gauge("thread_up", text, up, ("thread",))


@lru_cache(maxsize=32)
def negotiate_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return the encoder and the content type for an Accept header."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a non-numeric version with (1, 0, 0)
        return choose_encoder("")


PLAIN_CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
