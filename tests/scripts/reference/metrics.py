"""docs/reference/metrics.md: every metric, from the exporter itself."""

from __future__ import annotations

from prometheus_client.core import Metric

from memwatch.alerts.rules import RULES
from memwatch.kernel_log import ABOUT_MEMORY, OTHERS
from memwatch.model import Architecture, PoolKind, ShareKind
from memwatch.notify.outbox.queue import Outcome
from memwatch.snapshot import Level
from memwatch_web.metrics.samples import PREFIX
from scripts.reference.markdown import code, codes, page, prose, table
from support.exported_metrics import exported_families, name_of

INTRO = """
`/metrics` serves these in the Prometheus text format, or in OpenMetrics if the `Accept` header asks for it,
gzipped if the client accepts that. Units are base units: bytes, seconds, ratios from 0 to 1. A figure that is
not known has no sample; it is never exported as 0. Only the `memwatch_pool_*` metrics may be summed: shares lie
inside pools.

`process_*` metrics of the daemon itself come with them. [Prometheus and Grafana](../howto/prometheus.md) shows
how to scrape, and [Signals and alert rules](rules.md) what `signal` and `rule` mean.
"""

# A metric belongs to the first subject whose list has the beginning of its name.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Pools and shares": ("pool_", "share_", "swap_"),
    "Devices": ("device_", "driver_"),
    "Pressure": (
        "pressure",
        "time_to_full",
        "psi_",
        "kernel_",
        "largest_free_block",
        "free_",
        "tegrastats_",
    ),
    "Processes": ("process_", "processes_", "memory_not_returned"),
    "Collectors": ("collector_",),
    "History": ("history_",),
    "Alerts": ("alert_", "alerts_", "notifications", "outbox_"),
    "The daemon": (
        "snapshot_",
        "tick_",
        "memory_locked",
        "failed_logins",
        "build_",
        "log_",
        "thread_",
    ),
}
# Errors of collectors, as `memwatch.monitor.sampler` counts them.
REASONS = ("permission", "missing", "io", "unreadable", "deadline", "inconsistent", "defect")
# Errors of drivers in the kernel's log.
LOGGED = [kind for kind in (*ABOUT_MEMORY, *OTHERS) if not kind.startswith("xid_")]


def labels_of(family: Metric) -> tuple[str, ...]:
    """Return the labels of a family, those that a sample already has included."""
    declared = tuple(getattr(family, "_labelnames", ()))
    return declared or tuple(dict.fromkeys(label for sample in family.samples for label in sample.labels))


def subject_of(name: str) -> str:
    """Return the heading under which a metric stands. One that has none raises KeyError."""
    short = name.removeprefix(PREFIX)
    for subject, beginnings in SUBJECTS.items():
        if short.startswith(beginnings):
            return subject
    raise KeyError(f"{name} has no subject in {__name__}.SUBJECTS; add the beginning of its name to one")


def labels_part() -> str:
    """Return the labels with a fixed set of values."""
    rows = (
        ("pool, share, device, target", "ids, as in `/api/v1/snapshot`"),
        ("kind, of a pool", codes(kind.value for kind in PoolKind)),
        ("kind, of a share", codes(kind.value for kind in ShareKind)),
        ("architecture", codes(kind.value for kind in Architecture)),
        ("level", codes(level.word for level in Level)),
        ("signal", "see [Signals](rules.md#signals)"),
        ("rule", codes(rule.name for rule in RULES)),
        ("severity", codes(dict.fromkeys(rule.severity for rule in RULES))),
        ("api", "`cuda`: what CUDA calls free; it counts page cache as used"),
        ("kind, of a driver's error", f"ECC errors and remapped rows by NVML's names, `xid_N`, {codes(LOGGED)}"),
        ("kind, of PSI", "`some`: at least one task waited; `full`: all tasks waited"),
        ("window", codes(("10s", "60s", "300s"))),
        ("where", "`rss`, or the id of a share or a pool of a device"),
        ("collector", "see [Configuration](configuration.md#collectors)"),
        ("reason", codes(REASONS)),
        ("outcome", codes(outcome.value for outcome in Outcome)),
    )
    return "## Labels\n\n" + table(("label", "values"), rows)


def render() -> str:
    """Return the page."""
    rows: dict[str, list[tuple[str, ...]]] = {subject: [] for subject in SUBJECTS}
    for family in exported_families():
        name = name_of(family)
        labels = codes(labels_of(family))
        rows[subject_of(name)].append((code(name), family.type, labels, prose(family.documentation)))
    parts = [
        f"## {subject}\n\n" + table(("metric", "type", "labels", "meaning"), found)
        for subject, found in rows.items()
    ]
    return page("Metrics", INTRO, *parts, labels_part())
