"""docs/reference/metrics.md: every metric, from the exporter itself."""

from __future__ import annotations

from prometheus_client.core import Metric

from memwatch.core.kernel_log import ABOUT_MEMORY, OTHERS
from memwatch.core.model import Architecture, PoolKind, ShareKind
from memwatch.core.owners import OWNER_KINDS
from memwatch.core.snapshot import Level
from memwatch.reporting.render.words import CONTENT_WORDS
from memwatch_monitor.alerts.rules import RULES
from memwatch_monitor.notify.queue import Outcome
from memwatch_web.metrics.families import MAX_SERIES
from memwatch_web.metrics.machine_families import DEFAULT_OWNERS, KEEP_SECONDS
from memwatch_web.metrics.samples import PREFIX, RowFamily
from scripts.reference.markdown import code, codes, page, prose, table
from support.exported_metrics import exported_families, name_of
from support.machine_kinds import KINDS

INTRO = """
`/metrics` serves these in the Prometheus text format, or in OpenMetrics if the `Accept` header asks for it,
gzipped if the client accepts that. Units are base units: bytes, seconds, ratios from 0 to 1. A figure that is
not known has no sample; it is never exported as 0. Only the `memwatch_pool_*` metrics may be summed over a machine,
without `_max` and `_min`: shares lie inside pools.

- The samples of `memwatch_pool_contents_bytes` add up to `memwatch_pool_size_bytes`, to the byte.
- Samples of `memwatch_owner_*_bytes` may be summed over one `kind`. The {owners} largest owners of a kind have
  separate series, and keep them for {minutes} minutes after they are overtaken. The others are `(others)`,
  processes without an owner of the kind `(none)`, and processes that only a driver lists `(not visible)`. Pods and
  containers of Kubernetes also have `namespace`, `pod` and `container`.
- Resident and device memory may be the same bytes. Each of the two can be summed over processes or owners, but not
  both together. The footprint counts no byte twice; it is exported if the machine has devices.
- `…_max` and `…_min` are extremes of all ticks of the last minute, and `memwatch_pressure_seconds_total` includes
  every tick, so that a short peak between two scrapes is not lost. Counters start at 0 with the daemon.
- `device` is empty for System RAM, which belongs to no device. It adds the name of a GPU to a series:
  `… * on (job, instance, device) group_left (name) memwatch_device_info`.

`process_*` metrics of the daemon itself come with them. [Prometheus and Grafana](../howto/prometheus.md) shows
how to scrape, and [Signals and alert rules](rules.md) what `signal` and `rule` mean.
"""

# A metric belongs to the first subject whose list has the beginning of its name.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "The machine": ("machine_",),
    "Pools and shares": ("pool_", "share_", "swap_", "zswap_", "zram_", "zfs_", "mlocked_", "unevictable_"),
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
    "Owners and processes": ("owner_", "process_", "processes_", "memory_not_returned"),
    "Other machines": ("neighbour_",),
    "Collectors": ("collector_",),
    "History": ("history_",),
    "Model servers": (
        "engine_",
        "engines_",
    ),
    "Alerts": ("alert_", "alerts_", "guardian_", "incident_", "notification", "outbox_", "web_"),
    "The daemon": (
        "config_",
        "snapshot_",
        "tick_",
        "memory_locked",
        "failed_logins",
        "build_",
        "log_",
        "thread_",
        "series_",
        "list_",
        "budget_",
    ),
}
# Errors of collectors, as `memwatch.core.reading.collector_runner` counts them.
REASONS = ("permission", "missing", "io", "unreadable", "deadline", "inconsistent", "defect")
# Errors of drivers in the kernel's log.
LOGGED = [kind for kind in (*ABOUT_MEMORY, *OTHERS) if not kind.startswith("xid_")]


def labels_of(family: Metric) -> tuple[str, ...]:
    """Return the labels of a family, those that a sample already has included."""
    declared = family.labels if isinstance(family, RowFamily) else getattr(family, "_labelnames", ())
    return tuple(declared) or tuple(dict.fromkeys(label for sample in family.samples for label in sample.labels))


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
        (
            "architecture",
            f"of a device: {codes(kind.value for kind in Architecture)}; of the machine: `aarch64`, …",
        ),
        ("level", codes(level.word for level in Level)),
        ("signal", "see [Signals](rules.md#signals)"),
        ("rule", codes(rule.name for rule in RULES)),
        ("severity", codes(dict.fromkeys(rule.severity for rule in RULES))),
        ("api", "`cuda`: what CUDA calls free; it counts page cache as used"),
        ("kind, of a driver's error", f"ECC errors and remapped rows by NVML's names, `xid_N`, {codes(LOGGED)}"),
        ("kind, of PSI", "`some`: at least one task waited; `full`: all tasks waited"),
        ("kind, of an owner", codes(OWNER_KINDS)),
        ("content", codes(kind for kind in CONTENT_WORDS if kind not in ("used", "reserved", "available"))),
        ("window", codes(("10s", "60s", "300s", "1m"))),
        ("within, where", "the id of a share or of a device's pool"),
        ("memory", f"{codes(kind.value for kind in Architecture)}, `mixed`, `cpu_only`"),
        ("collector", "see [Configuration](configuration.md#collectors)"),
        ("reason", codes(REASONS)),
        ("outcome", codes(outcome.value for outcome in Outcome)),
    )
    return "## Labels\n\n" + table(("label", "values"), rows)


# Our name, then those of node_exporter, dcgm-exporter and OpenTelemetry's semantic conventions.
OTHER_NAMES = (
    ('pool_size_bytes{kind="system_ram"}', "node_memory_MemTotal_bytes", "", "system.memory.limit"),
    (
        'pool_available_bytes{kind="system_ram"}',
        "node_memory_MemAvailable_bytes",
        "",
        "system.memory.linux.available",
    ),
    ('pool_free_bytes{kind="system_ram"}', "node_memory_MemFree_bytes", "", 'system.memory.usage{state="free"}'),
    ('pool_contents_bytes{content="anonymous"}', "node_memory_AnonPages_bytes", "", ""),
    ('pool_contents_bytes{content="shared_memory"}', "node_memory_Shmem_bytes", "", ""),
    ("mlocked_bytes", "node_memory_Mlocked_bytes", "", ""),
    ("unevictable_bytes", "node_memory_Unevictable_bytes", "", ""),
    ("zswap_memory_bytes", "node_memory_Zswap_bytes", "", ""),
    ("zfs_cache_bytes", "node_zfs_arc_size", "", ""),
    ("swap_used_bytes", "node_memory_SwapTotal_bytes - node_memory_SwapFree_bytes", "", "system.paging.usage"),
    ("kernel_oom_kills_total", "node_vmstat_oom_kill", "", ""),
    ('psi_stalled_seconds_total{kind="some"}', "node_pressure_memory_waiting_seconds_total", "", ""),
    ('psi_stalled_seconds_total{kind="full"}', "node_pressure_memory_stalled_seconds_total", "", ""),
    ("machine_info", "node_uname_info, node_dmi_info", "", "host.name, host.arch, os.version"),
    (
        'pool_used_bytes{kind="vram"}',
        "node_drm_memory_vram_used_bytes (AMD)",
        "DCGM_FI_DEV_FB_USED",
        "hw.gpu.memory.usage",
    ),
    ('pool_available_bytes{kind="vram"}', "", "DCGM_FI_DEV_FB_FREE", ""),
    (
        'pool_size_bytes{kind="vram"}',
        "node_drm_memory_vram_size_bytes (AMD)",
        "DCGM_FI_DEV_FB_TOTAL",
        "hw.gpu.memory.limit",
    ),
    ("device_busy_ratio", "node_drm_gpu_busy_percent (AMD)", "DCGM_FI_DEV_GPU_UTIL", "hw.gpu.utilization"),
    ("device_memory_busy_ratio", "", "DCGM_FI_DEV_MEM_COPY_UTIL", ""),
    ("device_temperature_celsius", "node_hwmon_temp_celsius", "DCGM_FI_DEV_GPU_TEMP", "hw.temperature"),
    ("device_power_watts", "node_hwmon_power_average_watt", "DCGM_FI_DEV_POWER_USAGE", "hw.power"),
    ('driver_memory_errors_total{kind="xid_…"}', "", "DCGM_FI_DEV_XID_ERRORS (the last one)", ""),
    ('driver_memory_errors_total{kind="ecc_corrected"}', "", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "hw.errors"),
    ("process_resident_bytes", "", "", "process.memory.usage"),
)
WHY = """
`some` and `full` are the words of the kernel (`/proc/pressure/memory`) and of systemd, and those of our settings,
signals and JSON. node_exporter writes `waiting` and `stalled`. We keep the kernel's words: `kind="stalled"` beside
a name such as `psi_stalled_seconds_total`, which has both kinds, would be misread. `content="devices"` is
`devices_bytes` in JSON.

`FB_USED`, `FB_FREE` and `FB_TOTAL` are in MiB, `GPU_UTIL` and `gpu_busy_percent` in percent; ours are bytes and
fractions. `memwatch_pool_used_bytes` includes what the driver reserves (`FB_RESERVED`), `FB_USED` does not.
`node_drm_*` needs node_exporter's drm collector, which is off by default and reads AMD cards only.
"""


def series_part() -> str:
    """Return the number of series by kind of machine."""
    rows = [(kind, f"{machine.count_series():,}") for kind, machine in KINDS.items()]
    return "## Series\n\n" + table(("machine", "series"), rows) + SERIES.format(limit=f"{MAX_SERIES:,}")


SERIES = """

With default settings, without `process_*` of the daemon itself. A receiver adds 13, the first one 18, a state
folder seven. With `metrics = true` under `[processes]`, each of the `top` processes has two, and one for each GPU
that it uses.

A scrape has at most {limit} series. A family that does not fit is left out, single processes first, and
`memwatch_series_dropped` counts its series.
"""


def other_names() -> str:
    """Return the table of the names that other exporters use for the same figures."""
    rows = [
        (code(PREFIX + ours), *(code(name) if name else "" for name in others)) for ours, *others in OTHER_NAMES
    ]
    head = ("memwatchd", "node_exporter", "dcgm-exporter", "OpenTelemetry")
    return "## Names elsewhere\n\n" + table(head, rows) + "\n\n" + WHY.strip()


def render() -> str:
    """Return the page."""
    intro = INTRO.format(owners=DEFAULT_OWNERS, minutes=f"{KEEP_SECONDS / 60:.0f}")
    rows: dict[str, list[tuple[str, ...]]] = {subject: [] for subject in SUBJECTS}
    for family in exported_families():
        name = name_of(family)
        labels = codes(labels_of(family))
        rows[subject_of(name)].append((code(name), family.type, labels, prose(family.documentation)))
    parts = [
        f"## {subject}\n\n" + table(("metric", "type", "labels", "meaning"), found)
        for subject, found in rows.items()
    ]
    return page("Metrics", intro, *parts, labels_part(), series_part(), other_names())
