"""Prometheus metrics of a snapshot: base units, one name for each fact, no sample for unknown values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from memwatch.build_info import UNKNOWN
from memwatch.core.budget import Budgets
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from memwatch.core.reading.identity import Identity
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch.reporting.doctor.model import ConfigState
from memwatch_monitor.between_scrapes import BetweenScrapes, RecentExtremes
from memwatch_monitor.feature import Features
from memwatch_web.metrics.encoder import FamilyEncoder, SteadyFamilies
from memwatch_web.metrics.machine_families import (
    DEFAULT_OWNERS,
    OwnerSelection,
    device_families,
    ghost_families,
    holder_families,
    kernel_families,
    owner_families,
    pinned_families,
    pool_families,
    pressure_families,
    process_families,
    share_families,
    swap_families,
)
from memwatch_web.metrics.samples import (
    Row,
    RowFamily,
    Value,
    build_family,
    counter,
    find_devices,
    gauge,
    gauges,
    histogram,
    info,
)

# Metrics of the daemon itself: collectors, lists, log, threads and settings.


class ProcessFigures(Struct, frozen=True):
    """State of the daemon's own process."""

    log_lines_dropped: int
    thread_states: Mapping[str, ThreadState]
    failed_logins: int


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


def list_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the number of entries that lists leave out. Most machines have no such list, and no such series."""
    rows = [((name,), count) for name, count in sorted(snapshot.left_out.items()) if count]
    text = "Number of entries that a list leaves out because of its maximum; absent if it has all."
    yield gauge("list_left_out", text, rows, ("list",))


def budget_families(budgets: Budgets | None) -> Iterator[Metric]:
    """Yield what the budgets of accounts refused. Most machines have no such series."""
    kinds = {} if budgets is None else budgets.by_kind
    rows = [((name,), one.refused) for name, one in sorted(kinds.items()) if one.refused]
    text = "Total things that were refused, or had to go, by the budgets of accounts; absent for a kind without."
    yield counter("budget_refused", text, rows, ("kind",))


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


def config_families(config: ConfigState | None) -> Iterator[Metric]:
    """Yield the state of the configuration."""
    problems = [] if config is None else [((), len(config.problems))]
    yield gauge(
        "config_problems", "Number of settings that are not in force; memwatch doctor names them.", problems
    )
    loaded = [] if config is None else [((), int(config.is_loaded))]
    text = "1 if the latest start or reload took the configuration as it is, 0 if not."
    yield gauge("config_last_reload_successful", text, loaded)
    at = [] if config is None or config.loaded_unix is None else [((), config.loaded_unix)]
    text = "Unix time of the latest start or reload that took the configuration."
    yield gauge("config_last_reload_success_timestamp_seconds", text, at)


def machine_families(
    snapshot: Snapshot, identity: Identity | None, own_labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Yield the identity of the machine. `own_labels`: those of [labels]."""
    kernel, cpu = (identity.kernel, identity.cpu) if identity else ("", "")
    machine = snapshot.machine
    labels = ("hostname", "model", "architecture", "kernel", "memory", *own_labels)
    values = (snapshot.host, machine.name, cpu, kernel, machine.architecture, *own_labels.values())
    text = "Identity of the machine: CPU architecture, kernel release, memory of its devices, and your own labels."
    yield info("machine", text, [values], labels)


def tick_families(snapshot: Snapshot, between: BetweenScrapes | None) -> Iterator[Metric]:
    yield gauge("snapshot_timestamp_seconds", "Unix time of the latest snapshot.", [((), snapshot.unix)])
    usage = snapshot.self_usage
    yield gauge("tick_lag_seconds", "Delay of the latest tick in seconds.", [((), usage.tick_lag_seconds)])
    text = "Duration of the previous tick in seconds."
    yield gauge("tick_duration_seconds", text, [((), usage.tick_duration_seconds)])
    text = "1 if the daemon's memory is locked (mlockall), 0 if it can be swapped out."
    yield gauge("memory_locked", text, [((), int(usage.memory_locked))])
    if between is not None:
        yield histogram("tick_run_seconds", "Durations of ticks in seconds.", [((), between.ticks)])
        runs = [((name,), one) for name, one in between.runs.durations.items()]
        text = "Durations of the runs of a collector with a thread in seconds. Ticks include the other collectors."
        yield histogram("collector_run_seconds", text, runs, ("collector",))


# Metrics of model servers.

ENGINE = ("engine",)
ENGINE_FIELDS = (
    *("weights_bytes", "draft_weights_bytes", "kv_cache_bytes", "kv_cache_used_bytes", "kv_cache_ratio"),
    *("kv_cache_mean_ratio", "remainder_bytes"),
)


def engine_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the memory and the load of each model server."""
    engines = snapshot.engines
    rows = [(one.id, one.kind, one.version, one.model) for one in engines]
    yield info(
        "engine", "Kind, version and model of each model server.", rows, ("engine", "kind", "version", "model")
    )
    more = [((), snapshot.engines_not_followed)] if engines else []
    yield gauge("engines_not_followed", "Model servers beyond the limit of those that are followed.", more, ())
    yield from gauges("engine_", Engine, ENGINE_FIELDS, [((one.id,), one) for one in engines], ENGINE)
    requests = [
        ((one.id, state), figure)
        for one in engines
        for state, figure in (("running", one.requests_running), ("waiting", one.requests_waiting))
    ]
    yield gauge("engine_requests", "Requests of a model server now.", requests, ("engine", "state"))
    tokens = [
        ((one.id, kind), figure)
        for one in engines
        for kind, figure in (("prompt", one.prompt_tokens_total), ("generation", one.generation_tokens_total))
    ]
    yield counter("engine_tokens", "Total tokens of a model server since it started.", tokens, ("engine", "kind"))


# Metrics of the machines that this one follows.

LABELS = ("neighbour",)


def neighbour_families(snapshot: Snapshot) -> Iterator[Metric]:
    up = [((one.name,), int(one.state == "up")) for one in snapshot.neighbours]
    yield gauge("neighbour_up", "1 if a neighbour sends ticks, else 0.", up, LABELS)
    times = [((one.name,), one.last_tick_unix) for one in snapshot.neighbours]
    text = "Time of the last tick of a neighbour by its own clock, in Unix seconds."
    yield gauge("neighbour_last_tick_timestamp_seconds", text, times, LABELS)


# Metrics of the highest use and the lowest available memory between scrapes.

WINDOW = "1m"
POOL = ("pool", "kind", "device", "window")


def extreme_families(snapshot: Snapshot, recent: RecentExtremes) -> Iterator[Metric]:
    """Yield extremes of the last minute. A pool or device whose figure is unknown now has none."""
    found, devices = recent.extremes(snapshot.monotonic), find_devices(snapshot)
    used: list[Row] = []
    available: list[Row] = []
    for pool in snapshot.pools:
        if not isinstance(pool.used_bytes, Absent):
            key = (pool.id, pool.kind.value, devices.get(pool.id, ""), WINDOW)
            used.append((key, found.used.get(pool.id, pool.used_bytes)))
            available.append((key, found.available.get(pool.id, pool.available_bytes)))
    text = "Highest used memory of a pool in the window, in bytes."
    yield gauge("pool_used_bytes_max", text, used, POOL)
    text = "Lowest available memory of a pool in the window, in bytes."
    yield gauge("pool_available_bytes_min", text, available, POOL)
    room = [
        ((device.id, WINDOW), found.headroom.get(device.id, device.headroom_after_reclaim_bytes))
        for device in snapshot.devices
        if not isinstance(device.headroom_after_reclaim_bytes, Absent)
    ]
    text = "Lowest headroom of a device after reclaim of page cache in the window, in bytes."
    yield gauge("device_headroom_after_reclaim_bytes_min", text, room, ("device", "window"))


# More than any machine has: a limit on what one machine can cost a Prometheus server.
MAX_SERIES = 5000


class Exporter(Collector):
    """Converter of the latest snapshot to metric families. It runs at most once per tick and content type."""

    def __init__(
        self,
        version: str,
        features: Features | None = None,
        max_processes: Callable[[], int] = lambda: 0,
        process: Callable[[], ProcessFigures | None] = lambda: None,
        identity: Identity | None = None,
        max_owners: Callable[[], int] = lambda: DEFAULT_OWNERS,
        labels: Callable[[], Mapping[str, str]] = dict,
        revision: str = UNKNOWN,
        config: Callable[[], ConfigState | None] = lambda: None,
        budgets: Budgets | None = None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._build = {"version": version, "revision": revision}
        self._max_processes = max_processes
        self._process = process
        self._features = features or Features()
        self._between = self._features.find(BetweenScrapes)
        self._identity = identity
        self._max_owners = max_owners
        self._labels = labels
        self._config = config
        self._budgets = budgets
        self._owners = OwnerSelection()
        self._steady = SteadyFamilies()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, snapshot: Snapshot, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        self.snapshot = snapshot
        return encode(self._registry)

    def renderer(self, encode: Callable[[CollectorRegistry], bytes]) -> Callable[[Snapshot], bytes]:
        """Return `render` with this encoder, for a client that asks again: only what changed is rendered."""
        again = FamilyEncoder(encode)  # type: ignore[arg-type]  # encoders only call `collect`
        return lambda snapshot: self.render(snapshot, again)

    @staticmethod
    def negotiate_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
        """Return the encoder for `render` and the content type, by an Accept header."""
        return negotiate_format(accept)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples, within MAX_SERIES."""
        if self.snapshot is not None:
            yield from limit_series(self.families(self.snapshot))

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Yield all families, including those without samples. The last ones are dropped first."""
        between, steady = self._between, self._steady.build
        yield from steady(machine_families, snapshot, self._identity, self._labels())
        yield from pool_families(snapshot)
        yield from steady(swap_families, snapshot)
        yield from steady(pinned_families, snapshot)
        yield from tick_families(snapshot, between)
        yield from steady(self._build_families, snapshot)
        for feature in self._features:
            yield from map(build_family, feature.families())
        yield from collector_families(snapshot)
        yield from steady(list_families, snapshot)
        yield from budget_families(self._budgets)
        yield from daemon_families(self._process())
        yield from config_families(self._config())
        yield from steady(kernel_families, snapshot, between.kills.scopes if between else {})
        yield from steady(device_families, snapshot)
        yield from steady(ghost_families, snapshot)
        yield from steady(engine_families, snapshot)
        yield from steady(neighbour_families, snapshot)
        if between is not None:
            yield from extreme_families(snapshot, between.recent)
        yield from steady(share_families, snapshot)
        yield from pressure_families(snapshot, between.levels if between else None)
        if most := self._max_owners():
            yield from steady(holder_families, snapshot, self._max_processes() > 0)
            yield from owner_families(snapshot, self._owners, most)
        if most := self._max_processes():
            yield from steady(process_families, snapshot, most)

    def _build_families(self, snapshot: Snapshot) -> Iterator[Metric]:
        labels = {**self._build, "simulated": "true" if snapshot.simulated else "false"}
        text = "Version and commit of memwatchd, and whether its data is simulated."
        yield info("build", text, [tuple(labels.values())], tuple(labels))


def limit_series(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield families with samples, at most MAX_SERIES together, and the number of samples left out.

    A family that does not fit is left out as a whole: a part of it would give wrong sums.
    """
    left, dropped = MAX_SERIES, 0
    for family in families:
        size = len(family.rows if isinstance(family, RowFamily) else family.samples)
        if size > left:
            dropped += size
        elif size:
            left -= size
            yield family
    text = f"Number of series left out of this scrape because it is limited to {MAX_SERIES}."
    yield gauge("series_dropped", text, [((), dropped)])


@lru_cache(maxsize=32)
def negotiate_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return the encoder and the content type for an Accept header."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a non-numeric version with (1, 0, 0)
        return choose_encoder("")
