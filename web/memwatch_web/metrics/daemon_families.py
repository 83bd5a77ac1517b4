"""Metrics of the daemon itself: collectors, history, log and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import Metric

from memwatch.core.config_state import ConfigState
from memwatch.core.reading.identity import Identity
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_web.metrics.samples import Row, Value, counter, gauge, histogram, info


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
