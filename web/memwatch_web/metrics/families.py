"""The snapshot as Prometheus metrics: base units, one name per fact, and no sample for what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from memwatch.accounting.driver_errors import unassigned_errors
from memwatch.alerts.rules import CRITICAL, SEVERITY
from memwatch.alerts.state import AlertState, Key
from memwatch.history.disk.files import FilesStatus
from memwatch.model import STALLED, Absent, Process
from memwatch.notify.outbox.outbox import OutboxFigures
from memwatch.snapshot import CollectorStatus, Level, PsiLine, Snapshot

PREFIX = "memwatch_"

Value = float | int | Absent
Row = tuple[Sequence[str], Value]


class Notifier(Protocol):
    """What is exported about a receiver of notifications."""

    name: str

    def counts(self) -> Mapping[str, int]: ...

    def pending(self) -> int: ...


class Exporter(Collector):
    """Turns the latest snapshot into metric families; registered once, asked at most once per tick."""

    def __init__(
        self,
        version: str,
        alert_states: Callable[[], Mapping[Key, AlertState]],
        notifiers: Callable[[], Sequence[Notifier]] = tuple,
        max_processes: Callable[[], int] = lambda: 0,
        outbox: Callable[[], OutboxFigures | None] = lambda: None,
        files: Callable[[], FilesStatus | None] = lambda: None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._version = version
        self._watches = alert_states
        self._notifiers = notifiers
        self._max_processes = max_processes
        self._outbox = outbox
        self._files = files
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, snapshot: Snapshot, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        self.snapshot = snapshot
        return encode(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families that have something to say on this machine."""
        if self.snapshot is not None:
            yield from (family for family in self.families(self.snapshot) if family.samples)

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Every family there is, those without a sample included."""
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
        yield from history_families(self._files())

    def _self_families(self, snapshot: Snapshot) -> Iterator[Metric]:
        yield gauge(
            "snapshot_timestamp_seconds", "When the latest snapshot was taken, Unix time.", [((), snapshot.unix)]
        )
        usage = snapshot.self_usage
        yield gauge("tick_lag_seconds", "How late the latest tick began.", [((), usage.tick_lag_seconds)])
        yield gauge("tick_duration_seconds", "How long a tick took.", [((), usage.tick_duration_seconds)])
        locked = int(usage.memory_locked)
        yield gauge("memory_locked", "1 if the daemon's own pages cannot be swapped out.", [((), locked)])
        labels = {"version": self._version, "simulated": "true" if snapshot.simulated else "false"}
        yield InfoMetricFamily(PREFIX + "build", "Version of memwatchd; whether the figures are simulated.", labels)

    def _alert_families(self) -> Iterator[Metric]:
        notifiers = self._notifiers()
        firing = Counter({CRITICAL: 0})
        firing.update(rule for (rule, _), watch in self._watches().items() if watch.firing)
        rows: list[Row] = [((rule, SEVERITY[rule]), count) for rule, count in firing.items()]
        yield gauge("alerts_firing", "Alerts firing now.", rows, ("rule", "severity"))
        yield counter(
            "notifications",
            "Notifications by what became of them.",
            [((n.name, outcome), count) for n in notifiers for outcome, count in n.counts().items()],
            ("receiver", "outcome"),
        )
        pending = [((n.name,), n.pending()) for n in notifiers]
        yield gauge("notifications_pending", "Notifications not delivered yet.", pending, ("receiver",))
        outbox = self._outbox() if notifiers else None
        durable = [((), int(outbox.durable))] if outbox else []
        yield gauge("outbox_durable", "1 if notifications not delivered yet survive a restart.", durable)
        errors = [((), outbox.errors)] if outbox else []
        yield counter("outbox_errors", "How often the disk refused to keep notifications.", errors)
        anew = [((), outbox.recovered)] if outbox else []
        yield counter("outbox_recovered", "Damaged files that were set aside, or damaged parts left out.", anew)


def gauge(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, figure in rows:
        if not isinstance(figure, Absent):
            family.add_metric(values, figure)
    return family


def counter(name: str, text: str, rows: Iterable[Row], labels: Sequence[str] = ()) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, figure in rows:
        if not isinstance(figure, Absent):
            family.add_metric(values, figure)
    return family


def pool_families(snapshot: Snapshot) -> Iterator[Metric]:
    texts = {
        "size": "Physical size of a pool. Pools do not overlap: they may be added up.",
        "used": "Used part of a pool; used + available = size.",
        "available": "What could be allocated from a pool without swapping.",
        "free": "Memory nobody uses for anything (Linux MemFree); page cache is available and not free.",
        "unattributed": "Used part of a pool that nobody known holds.",
    }
    for what, text in texts.items():
        rows = [((pool.id, pool.kind.value), getattr(pool, f"{what}_bytes")) for pool in snapshot.pools]
        yield gauge(f"pool_{what}_bytes", text, rows, ("pool", "kind"))


def share_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("share", "kind", "within", "device")
    rows = [((s.id, s.kind.value, s.within, s.device or ""), s) for s in snapshot.shares]
    text = "Bytes inside a pool (or another share) held by somebody. Never add shares to pools."
    yield gauge("share_used_bytes", text, [(values, share.used_bytes) for values, share in rows], labels)
    limits = [(values, share.limit_bytes) for values, share in rows]
    yield gauge("share_limit_bytes", "The most a share may hold.", limits, labels)


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
    text = "1 if a device answers, 0 if it is lost, missing or needs a reset; absent if its collector is stalled."
    yield gauge("device_up", text, up, ("device",))
    rows = [((device.id,), device.headroom_bytes) for device in snapshot.devices]
    yield gauge("device_headroom_bytes", "What a device could allocate right now.", rows, ("device",))
    frees = [((device.id, api), size) for device in snapshot.devices for api, size in device.api_free_bytes.items()]
    yield gauge(
        "device_api_free_bytes", "What an interface itself calls free on a device.", frees, ("device", "api")
    )
    complete = [
        ((device.id,), int(device.process_list == "complete"))
        for device in snapshot.devices
        if isinstance(device.process_list, str)
    ]
    text = "1 if every process that holds memory of a device can be seen, 0 if some are hidden."
    yield gauge("device_process_list_complete", text, complete, ("device",))
    busy = [((device.id,), device.busy_ratio) for device in snapshot.devices]
    yield gauge("device_busy_ratio", "Part of the time that a device computed, 0 to 1.", busy, ("device",))
    moving = [((device.id,), device.memory_busy_ratio) for device in snapshot.devices]
    yield gauge("device_memory_busy_ratio", "Part of the time that its memory moved data.", moving, ("device",))
    yield from driver_error_families(snapshot)


def driver_error_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("device", "kind")
    log = snapshot.kernel_log
    others = () if isinstance(log, Absent) else unassigned_errors(snapshot.devices, log)
    errors = [((device.id, kind), count) for device in snapshot.devices for kind, count in device.errors.items()]
    errors += [((one.place, one.kind), one.count) for one in others]
    yield counter("driver_memory_errors", "Memory errors that a driver reports, by kind.", errors, labels)
    seen = [((device.id, kind), at) for device in snapshot.devices for kind, at in device.errors_seen_unix.items()]
    seen += [((one.place, one.kind), one.last_seen_unix) for one in others]
    text = "When a kind of error was last seen, Unix time."
    yield gauge("driver_memory_error_last_seen_timestamp_seconds", text, seen, labels)


def pressure_families(snapshot: Snapshot) -> Iterator[Metric]:
    judged = snapshot.pressure
    yield gauge(
        "pressure_level",
        "Pressure of a target: 0 low, 1 medium, 2 high, 3 critical.",
        [((pressure.target,), int(pressure.level)) for pressure in judged],
        ("target",),
    )
    yield gauge(
        "pressure",
        "1 for the level a target is at, 0 for the others.",
        [((p.target, level.word), int(p.level is level)) for p in judged for level in Level],
        ("target", "level"),
    )
    yield gauge(
        "pressure_ratio",
        "Used part of what a target is judged on, 0 to 1.",
        [((pressure.target,), pressure.ratio) for pressure in judged],
        ("target",),
    )
    yield gauge(
        "pressure_reason",
        "1 for every signal that speaks for the present level.",
        [((p.target, reason.signal), 1) for p in judged for reason in p.reasons],
        ("target", "signal"),
    )
    rows = [((pressure.target,), pressure.seconds_to_full) for pressure in judged]
    text = "Forecast of the time until a target is full, in seconds."
    yield gauge("time_to_full_seconds", text, rows, ("target",))


def kernel_families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from psi_families(snapshot)
    nodes = [((str(node.id),), node.largest_free_block_bytes) for node in snapshot.nodes]
    text = "Largest free block of physical memory on a NUMA node; falls with fragmentation."
    yield gauge("largest_free_block_bytes", text, nodes, ("node",))
    large = [((str(node.id),), node.free_large_blocks_bytes) for node in snapshot.nodes]
    text = "Free memory of a NUMA node in blocks of at least 4 MiB, in bytes."
    yield gauge("free_large_blocks_bytes", text, large, ("node",))
    yield from tegrastats_families(snapshot)
    swap = snapshot.swap
    if not isinstance(swap, Absent):
        yield gauge("swap_size_bytes", "Size of swap space; never capacity for a GPU.", [((), swap.size_bytes)])
        yield gauge("swap_used_bytes", "Used part of swap space.", [((), swap.used_bytes)])
    kills = [((), snapshot.kernel.oom_kills_total)]
    yield counter("kernel_oom_kills", "Processes the kernel killed for want of memory since boot.", kills)


def tegrastats_families(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.tegrastats
    if isinstance(found, Absent):
        return
    text = "Largest free block that tegrastats finds, at most 4 MiB; falls with fragmentation."
    yield gauge("tegrastats_largest_free_block_bytes", text, [((), found.largest_free_block_bytes)])
    text = "How many free blocks of the largest size tegrastats finds."
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
        "Fraction of a window in which tasks waited for memory (PSI), 0 to 1.",
        [((kind, window), getattr(line, name)) for kind, line in kinds.items() for window, name in windows.items()],
        ("kind", "window"),
    )
    totals = [((kind,), line.total_seconds) for kind, line in kinds.items()]
    text = "Total seconds in which tasks waited for memory since boot (PSI)."
    yield counter("psi_stalled_seconds", text, totals, ("kind",))


def process_families(snapshot: Snapshot, max_processes: int) -> Iterator[Metric]:
    """The largest. A snapshot also has everybody who holds memory of a GPU, however many they are."""

    def size(process: Process) -> int:
        return -1 if isinstance(process.footprint_bytes, Absent) else process.footprint_bytes

    labels = ("pid", "name", "unit", "container", "where")
    largest = sorted(snapshot.processes, key=size, reverse=True)[:max_processes]
    rows = [row for process in largest for row in process_rows(process)]
    yield gauge("process_memory_bytes", "Memory of one of the largest processes, by where it lies.", rows, labels)


def process_rows(process: Process) -> list[Row]:
    def word(value: str | Absent | None) -> str:
        return value if isinstance(value, str) else ""

    who = (str(process.pid), process.name, word(process.unit), word(process.container))
    return [((*who, where), size) for where, size in (("rss", process.rss_bytes), *process.device_bytes.items())]


def collector_families(snapshot: Snapshot) -> Iterator[Metric]:
    available = [status for status in snapshot.collectors if status.state != "unavailable"]

    def rows(figure: Callable[[CollectorStatus], Value]) -> list[Row]:
        return [((status.name,), figure(status)) for status in available]

    label = ("collector",)
    up = rows(lambda status: int(status.state == "ok"))
    yield gauge("collector_up", "1 if a collector answers; none for what this machine does not have.", up, label)
    took = rows(lambda status: status.duration_seconds)
    yield gauge("collector_duration_seconds", "How long a collector's last answer took.", took, label)
    last = rows(lambda status: status.last_success_unix)
    yield gauge(
        "collector_last_success_timestamp_seconds", "When a collector last answered, Unix time.", last, label
    )
    errors = [((s.name, reason), count) for s in snapshot.collectors for reason, count in s.errors.items()]
    yield counter("collector_errors", "A collector's errors by reason.", errors, ("collector", "reason"))


def history_families(files: FilesStatus | None) -> Iterator[Metric]:
    """The history on disk; nothing where none is kept there."""

    def rows(figure: Callable[[FilesStatus], Value]) -> list[Row]:
        return [] if files is None else [((), figure(files))]

    yield gauge(
        "history_size_bytes",
        "Space taken for history on disk; it does not grow.",
        rows(lambda status: status.size_bytes),
    )
    text = "Bytes of history written to disk."
    yield counter("history_written_bytes", text, rows(lambda status: status.written_bytes))
    yield counter("history_writes", "Records of history written.", rows(lambda status: status.writes))
    text = "How long the disk took to have it, the last time."
    yield gauge("history_sync_duration_seconds", text, rows(lambda status: status.sync_seconds))
    yield counter("history_errors", "Writes of history that the disk refused.", rows(lambda status: status.errors))
    text = "Records of history that were not written, for want of a disk that takes them."
    yield counter("history_dropped_records", text, rows(lambda status: status.dropped))
    text = "Records of history that were found damaged at the start; the others are used."
    yield gauge("history_damaged_records", text, rows(lambda status: status.lost))


@lru_cache(maxsize=32)
def negotiate_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """How to write metrics for this Accept header, and the content type that says so."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a version that is no number with (1, 0, 0)
        return choose_encoder("")


PLAIN_CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
