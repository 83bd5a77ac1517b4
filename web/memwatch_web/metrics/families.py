"""Prometheus metrics of a snapshot: base units, one name for each fact, no sample for unknown values."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from memwatch.build_info import UNKNOWN
from memwatch.core.budget import Budgets
from memwatch.core.engines.records import Engine
from memwatch.core.linux.files import read_once
from memwatch.core.linux.process_files import parse_boot_time, read_start_ticks
from memwatch.core.model import Absent, Bytes
from memwatch.core.options import ConfigState
from memwatch.core.reading.identity import Identity
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import SelfUsage, Snapshot
from memwatch_monitor.between_scrapes import BetweenScrapes, RecentExtremes
from memwatch_monitor.feature import Family, Feature, Features
from memwatch_web.metrics.encoder import Families, FamilyEncoder, Group, SteadyFamilies
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
    virtual_bytes: Bytes = Absent.NOT_AVAILABLE


def collector_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    available = [((status.name,), status) for status in snapshot.collectors if status.state != "unavailable"]
    label = ("collector",)
    up = [(key, int(status.state == "ok")) for key, status in available]
    yield gauge(
        "collector_up", "1 if a collector works, 0 if not; absent if it does not apply to this machine.", up, label
    )
    took = [(key, status.duration_seconds) for key, status in available]
    yield gauge(
        "collector_duration_seconds", "Duration of a collector's last successful run in seconds.", took, label
    )
    last = [(key, status.last_success_unix) for key, status in available]
    yield gauge("collector_last_success_timestamp_seconds", "Unix time of a collector's last success.", last, label)
    errors = [((s.name, reason), count) for s in snapshot.collectors for reason, count in s.errors.items()]
    yield counter("collector_errors", "Total errors of a collector, by reason.", errors, ("collector", "reason"))


def list_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    """Yield the number of entries that lists leave out. Most machines have no such list, and no such series."""
    rows = [((name,), count) for name, count in sorted(snapshot.left_out.items()) if count]
    text = "Number of entries that a list leaves out because of its maximum; absent if it has all."
    yield gauge("list_left_out", text, rows, ("list",))


def budget_families(_snapshot: Snapshot, refused: Mapping[str, int]) -> Iterator[RowFamily]:
    """Yield what the budgets of accounts refused. Most machines have no such series."""
    text = "Total things that were refused, or had to go, by the budgets of accounts; absent for a kind without."
    yield counter("budget_refused", text, [((name,), count) for name, count in refused.items()], ("kind",))


def count_refused(budgets: Budgets | None) -> Mapping[str, int]:
    kinds = {} if budgets is None else budgets.by_kind
    return {name: one.refused for name, one in sorted(kinds.items()) if one.refused}


def daemon_families(
    _snapshot: Snapshot, dropped: Value, failed_logins: Value, states: Mapping[str, ThreadState]
) -> Iterator[RowFamily]:
    """Yield the metrics of the daemon's log and threads."""
    text = "Total log lines dropped because stderr did not accept them."
    yield counter("log_lines_dropped", text, [((), dropped)])
    yield counter("failed_logins", "Total requests refused for wrong credentials.", [((), failed_logins)])
    up = [((name,), int(state is ThreadState.OK)) for name, state in states.items()]
    text = "1 if a thread that delivers alerts works, 0 if it has not started, has ended or is stuck."
    yield gauge("thread_up", text, up, ("thread",))


def daemon_figures(process: ProcessFigures | None) -> tuple[Value, Value, Mapping[str, ThreadState]]:
    """Return the figures of `daemon_families`."""
    if process is None:
        return Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, {}
    return process.log_lines_dropped, process.failed_logins, process.thread_states


def config_families(_snapshot: Snapshot, config: ConfigState | None) -> Iterator[RowFamily]:
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
) -> Iterator[RowFamily]:
    """Yield the identity of the machine. `own_labels`: those of [labels]."""
    kernel, cpu = (identity.kernel, identity.cpu) if identity else ("", "")
    machine = snapshot.machine
    labels = ("hostname", "model", "architecture", "kernel", "memory", *own_labels)
    values = (snapshot.host, machine.name, cpu, kernel, machine.architecture, *own_labels.values())
    text = "Identity of the machine: CPU architecture, kernel release, memory of its devices, and your own labels."
    yield info("machine", text, [values], labels)


def tick_families(snapshot: Snapshot, between: BetweenScrapes | None) -> Iterator[RowFamily]:
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


def engine_families(snapshot: Snapshot) -> Iterator[RowFamily]:
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


def neighbour_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    up = [((one.name,), int(one.state == "up")) for one in snapshot.neighbours]
    yield gauge("neighbour_up", "1 if a neighbour sends ticks, else 0.", up, LABELS)
    times = [((one.name,), one.last_tick_unix) for one in snapshot.neighbours]
    text = "Time of the last tick of a neighbour by its own clock, in Unix seconds."
    yield gauge("neighbour_last_tick_timestamp_seconds", text, times, LABELS)


# Metrics of the highest use and the lowest available memory between scrapes.

WINDOW = "1m"
POOL = ("pool", "kind", "device", "window")


def extreme_families(snapshot: Snapshot, recent: RecentExtremes) -> Iterator[RowFamily]:
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


# Metrics of the daemon's own process.

OWN_FOLDER, OWN_FILES = Path("/proc/self"), "/proc/self/fd"
OWN_HEADS = (
    Metric("process_virtual_memory_bytes", "Virtual memory size in bytes.", "gauge"),
    Metric("process_resident_memory_bytes", "Resident memory size in bytes.", "gauge"),
    Metric("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge"),
    Metric("process_cpu_seconds", "Total user and system CPU time spent in seconds.", "counter"),
    Metric("process_open_fds", "Number of open file descriptors.", "gauge"),
    Metric("process_max_fds", "Maximum number of open file descriptors.", "gauge"),
)


def own_process_families(usage: SelfUsage, process: ProcessFigures | None) -> Group:
    """Return standard metrics of the daemon's own process, as each client library of Prometheus names them.

    Most of their figures were read by the tick: prometheus-client opens three files, and lists a folder, for each
    scrape. There are none without /proc.
    """
    start = find_own_start()
    if process is None or start is None:
        return ()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    figures = (process.virtual_bytes, usage.rss_bytes, start, usage.cpu_seconds, count_own_files(), most)
    rows = zip(OWN_HEADS, figures, strict=True)
    return tuple([RowFamily(head, [((), figure)]) for head, figure in rows if not isinstance(figure, Absent)])


@cache
def find_own_start() -> float | None:
    """Return the start of this process as Unix time."""
    ticks, stat = read_start_ticks(OWN_FOLDER), read_once(OWN_FOLDER.parent / "stat")
    return None if ticks is None or stat is None else parse_boot_time(stat) + ticks / os.sysconf("SC_CLK_TCK")


def count_own_files() -> int:
    """Return the number of open descriptors: the size of their folder since Linux 6.2, which is 0 before."""
    return os.stat(OWN_FILES).st_size or len(os.listdir(OWN_FILES)) - 1  # without that of the listing itself


# More than any machine has: a limit on what one machine can cost a Prometheus server.
MAX_SERIES = 5000
ROWS = attrgetter("rows")


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
        self._of_features: dict[Feature, tuple[Sequence[Family], Group]] = {}
        self._count = SeriesCount()

    def render(self, snapshot: Snapshot, encode: Callable[[Collector], bytes]) -> bytes:
        self.snapshot = snapshot
        return encode(Families([*self.collect(), *own_process_families(snapshot.self_usage, self._process())]))

    def renderer(self, encode: Callable[[Collector], bytes]) -> Callable[[Snapshot], bytes]:
        """Return `render` with this encoder, for a client that asks again: only what changed is rendered."""
        again = FamilyEncoder(encode)

        def render(snapshot: Snapshot) -> bytes:
            process = self._process()
            own = own_process_families(snapshot.self_usage, process)
            groups = self.groups(snapshot, process)
            return again((*limit_series(groups, self._count(groups)), own))

        return render

    @staticmethod
    def negotiate_format(accept: str) -> tuple[Callable[[Collector], bytes], str]:
        """Return the encoder for `render` and the content type, by an Accept header."""
        return negotiate_format(accept)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[RowFamily]:
        """Yield the families that have samples, within MAX_SERIES."""
        if self.snapshot is not None:
            groups = limit_series(self.groups(self.snapshot, self._process()))
            yield from (one for group in groups for one in group if one.rows)

    def families(self, snapshot: Snapshot) -> Iterator[RowFamily]:
        """Yield all families, including those without samples."""
        yield from chain.from_iterable(self.groups(snapshot, self._process()))

    def groups(self, snapshot: Snapshot, process: ProcessFigures | None = None) -> list[Group]:
        """Return all families, a group for each function that builds some. The last ones are dropped first."""
        between, steady = self._between, self._steady.build
        found = [
            steady(machine_families, snapshot, self._identity, self._labels()),
            tuple(pool_families(snapshot)),
            steady(swap_families, snapshot),
            steady(pinned_families, snapshot),
            tuple(tick_families(snapshot, between)),
            steady(self._build_families, snapshot),
            *[self._build_feature(*one) for one in self._features.overriding("families")],
            tuple(collector_families(snapshot)),
            steady(list_families, snapshot),
            steady(budget_families, snapshot, count_refused(self._budgets)),
            steady(daemon_families, snapshot, *daemon_figures(process)),
            steady(config_families, snapshot, self._config()),
            steady(kernel_families, snapshot, between.kills.scopes if between else {}),
            steady(device_families, snapshot),
            steady(ghost_families, snapshot),
            steady(engine_families, snapshot),
            steady(neighbour_families, snapshot),
            tuple(extreme_families(snapshot, between.recent)) if between else (),
            steady(share_families, snapshot),
            tuple(pressure_families(snapshot, between.levels if between else None)),
        ]
        if most := self._max_owners():
            found.append(steady(holder_families, snapshot, self._max_processes() > 0))
            found.append(steady(owner_families, snapshot, self._owners.choose(snapshot, most)))
        if most := self._max_processes():
            found.append(steady(process_families, snapshot, most))
        return found

    def _build_feature(self, feature: Feature, families: Callable[[], Iterable[Family]]) -> Group:
        """Return the families of a feature: those of the last scrape if they are equal."""
        found = tuple(families())
        last = self._of_features.get(feature)
        if last is not None and last[0] == found:
            return last[1]
        built = tuple(map(build_family, found))
        # Histograms are equal to themselves with other counts.
        if not any(one.kind == "histogram" and one.rows for one in found):
            self._of_features[feature] = found, built
        return built

    def _build_families(self, snapshot: Snapshot) -> Iterator[RowFamily]:
        labels = {**self._build, "simulated": "true" if snapshot.simulated else "false"}
        text = "Version and commit of memwatchd, and whether its data is simulated."
        yield info("build", text, [tuple(labels.values())], tuple(labels))


class SeriesCount:
    """Number of samples of all groups. A group that is the last one of its place is not counted again."""

    def __init__(self) -> None:
        self._last: Sequence[tuple[Group, int]] = ()

    def __call__(self, groups: Sequence[Group]) -> int:
        last = chain(self._last, repeat(((), 0)))
        self._last = [
            known if known[0] is group else (group, sum(map(len, map(ROWS, group))))
            for group, known in zip(groups, last)  # noqa: B905  the last ones have no end
        ]
        return sum([count for _, count in self._last])


def limit_series(groups: Sequence[Group], count: int | None = None) -> Sequence[Group]:
    """Return groups with at most MAX_SERIES samples together, and the number of samples left out.

    A family that does not fit is left out as a whole: a part of it would give wrong sums. `count`: of all samples.
    """
    if (SeriesCount()(groups) if count is None else count) <= MAX_SERIES:
        return (*groups, NONE_DROPPED)
    left, dropped = MAX_SERIES, 0
    fitting: list[RowFamily] = []
    for family in chain.from_iterable(groups):
        size = len(family.rows)
        if size <= left:
            left -= size
            fitting.append(family)
        else:
            dropped += size
    return fitting, count_dropped(dropped)


def count_dropped(dropped: int) -> Group:
    text = f"Number of series left out of this scrape because it is limited to {MAX_SERIES}."
    return (gauge("series_dropped", text, [((), dropped)]),)


NONE_DROPPED = count_dropped(0)


@lru_cache(maxsize=32)
def negotiate_format(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder and the content type for an Accept header."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a non-numeric version with (1, 0, 0)
        return choose_encoder("")
