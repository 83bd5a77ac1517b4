"""Metrics of the daemon itself: collectors, history, log and threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from prometheus_client.core import Metric

from memwatch.core.config_state import ConfigState
from memwatch.core.reading.identity import Identity
from memwatch.core.runtime.histogram import Histogram
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch.monitor.alerts.rules import CRITICAL, SEVERITY
from memwatch.monitor.alerts.state import AlertState, Key
from memwatch.monitor.between_scrapes import BetweenScrapes
from memwatch.monitor.history.disk.files import FilesStatus
from memwatch.monitor.incidents.records import Incident
from memwatch.monitor.notify.outbox.outbox import OutboxFigures
from memwatch.monitor.notify.receiver import Subscription
from memwatch_web.metrics.samples import Row, Value, counter, gauge, histogram, info


class Notifier(Protocol):
    """Exported statistics of a notification receiver. `latency`: from the alert to its delivery."""

    name: str

    @property
    def latency(self) -> Histogram: ...

    def counts(self) -> Mapping[str, int]: ...

    def pending(self) -> int: ...

    def in_place_of_prometheus(self) -> Subscription | None: ...


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


def alert_families(alert_states: Mapping[Key, AlertState]) -> Iterator[Metric]:
    firing = Counter({CRITICAL: 0})
    firing.update(rule for (rule, _), state in alert_states.items() if state.firing)
    rows: list[Row] = [((rule, SEVERITY[rule]), count) for rule, count in firing.items()]
    yield gauge("alerts_firing", "Number of firing alerts.", rows, ("rule", "severity"))


def incident_families(incidents: Sequence[Incident]) -> Iterator[Metric]:
    """Yield the incidents of now: a handful of series at a time, as their ids are labels."""
    text = "Incidents that last, and the last one for five minutes. The page /incidents/ with the id explains it."
    rows = [(one.id, one.kind, one.target) for one in incidents]
    yield info("incident", text, rows, ("id", "kind", "target"))


def notification_families(notifiers: Sequence[Notifier], outbox: OutboxFigures | None) -> Iterator[Metric]:
    yield counter(
        "notifications",
        "Total notifications by outcome.",
        [((n.name, outcome), count) for n in notifiers for outcome, count in n.counts().items()],
        ("receiver", "outcome"),
    )
    pending = [((n.name,), n.pending()) for n in notifiers]
    yield gauge("notifications_pending", "Number of undelivered notifications.", pending, ("receiver",))
    text = "Time from an alert to the delivery of its notification in seconds."
    latencies = [((n.name,), n.latency) for n in notifiers]
    yield histogram("notification_latency_seconds", text, latencies, ("receiver",))
    durable = [((), int(outbox.durable))] if outbox else []
    yield gauge("outbox_durable", "1 if undelivered notifications survive a restart, 0 if not.", durable)
    errors = [((), outbox.errors)] if outbox else []
    yield counter("outbox_errors", "Total failed writes of undelivered notifications to disk.", errors)
    recovered = [((), outbox.recovered)] if outbox else []
    text = "Total unusable outbox files replaced, or loaded without their damaged rows."
    yield counter("outbox_recovered", text, recovered)
