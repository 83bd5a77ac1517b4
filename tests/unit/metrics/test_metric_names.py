"""Test the names and labels of all metrics: dashboards and alerts of users rely on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.core.clock import SystemClock
from memwatch.core.engines.records import Engine
from memwatch.core.guardian_report import GuardianReport
from memwatch.core.model import OWN_CGROUP, ShareKind, Vitals
from memwatch.core.options import ConfigState
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import CollectorStatus, Kernel, Snapshot, Swap, Tegrastats, ZfsCache, Zram
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_monitor.feature import Histogram, MonitorRules
from memwatch_monitor.guardian_reports import GuardianReports
from memwatch_monitor.history.writer import FilesStatus
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.notify.channel import Sender
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Outbox
from memwatch_monitor.notify.receiver import Subscription
from memwatch_web.metrics.families import Exporter, ProcessFigures
from memwatch_web.metrics.samples import PREFIX
from support.monitors import create_monitor
from support.sample_snapshots import critical_gb10, left_behind

# Changing a name or a label breaks users' queries: add to the list, and remove nothing.
NAMES = {
    "alert_pushed": {"event", "target"},
    "alerts_firing": {"rule", "severity"},
    "build_info": {"version", "revision", "simulated"},
    "collector_duration_seconds": {"collector"},
    "collector_errors_total": {"collector", "reason"},
    "collector_last_success_timestamp_seconds": {"collector"},
    "collector_run_seconds_bucket": {"collector", "le"},
    "collector_run_seconds_count": {"collector"},
    "collector_run_seconds_sum": {"collector"},
    "collector_up": {"collector"},
    "device_api_free_bytes": {"device", "api"},
    "device_busy_ratio": {"device"},
    "device_clock_hertz": {"device", "clock"},
    "device_headroom_after_reclaim_bytes": {"device"},
    "device_headroom_after_reclaim_bytes_min": {"device", "window"},
    "device_headroom_bytes": {"device"},
    "device_info": {"device", "vendor", "name", "uuid", "pci", "driver", "architecture"},
    "device_memory_busy_ratio": {"device"},
    "device_power_watts": {"device"},
    "device_process_list_complete": {"device"},
    "device_temperature_celsius": {"device"},
    "device_throttled": {"device", "reason"},
    "device_up": {"device"},
    "driver_memory_error_last_seen_timestamp_seconds": {"device", "kind"},
    "driver_memory_errors_total": {"device", "kind"},
    "free_large_blocks_bytes": {"node"},
    "guardian_decisions_total": {"decision", "dry_run"},
    "history_damaged_records": set(),
    "history_dropped_records_total": set(),
    "history_errors_total": set(),
    "history_size_bytes": set(),
    "history_sync_duration_seconds": set(),
    "history_writes_total": set(),
    "history_written_bytes_total": set(),
    "kernel_oom_kills_total": {"scope"},
    "largest_free_block_bytes": {"node"},
    "log_lines_dropped_total": set(),
    "machine_info": {"hostname", "model", "architecture", "kernel", "memory"},
    "memory_locked": set(),
    "memory_not_returned_bytes": {"pool"},
    "mlocked_bytes": set(),
    "notification_latency_seconds_bucket": {"receiver", "le"},
    "notification_latency_seconds_count": {"receiver"},
    "notification_latency_seconds_sum": {"receiver"},
    "notifications_pending": {"receiver"},
    "notifications_total": {"receiver", "outcome"},
    "outbox_durable": set(),
    "outbox_errors_total": set(),
    "outbox_recovered_total": set(),
    "owner_device_bytes": {"kind", "name", "within", "device"},
    "owner_footprint_bytes": {"kind", "name"},
    "owner_resident_bytes": {"kind", "name"},
    "pool_available_bytes": {"pool", "kind", "device"},
    "pool_available_bytes_min": {"pool", "kind", "device", "window"},
    "pool_contents_bytes": {"pool", "content", "device"},
    "pool_free_bytes": {"pool", "kind", "device"},
    "pool_leased_bytes": {"pool", "kind", "device"},
    "pool_size_bytes": {"pool", "kind", "device"},
    "pool_top_holder_info": {"pool", "name", "unit"},
    "pool_unattributed_bytes": {"pool", "kind", "device"},
    "pool_used_bytes": {"pool", "kind", "device"},
    "pool_used_bytes_max": {"pool", "kind", "device", "window"},
    "pressure": {"target", "device", "level"},
    "pressure_changes_total": {"target", "device"},
    "pressure_level": {"target", "device"},
    "pressure_ratio": {"target", "device"},
    "pressure_reason": {"target", "device", "signal"},
    "pressure_seconds_total": {"target", "device", "level"},
    "processes_not_visible_bytes": {"where"},
    "process_device_bytes": {"pid", "name", "unit", "container", "within"},
    "process_resident_bytes": {"pid", "name", "unit", "container"},
    "process_swap_bytes": {"pid", "name", "unit", "container"},
    "psi_stall_ratio": {"kind", "window"},
    "psi_stalled_seconds_total": {"kind"},
    "series_dropped": set(),
    "share_limit_throttles": {"share", "kind", "within", "device"},
    "share_limit_bytes": {"share", "kind", "within", "device"},
    "share_used_bytes": {"share", "kind", "within", "device"},
    "snapshot_timestamp_seconds": set(),
    "swap_size_bytes": set(),
    "swap_used_bytes": set(),
    "tegrastats_largest_free_block_bytes": set(),
    "tegrastats_largest_free_blocks": set(),
    "thread_up": {"thread"},
    "tick_duration_seconds": set(),
    "tick_lag_seconds": set(),
    "tick_run_seconds_bucket": {"le"},
    "tick_run_seconds_count": set(),
    "tick_run_seconds_sum": set(),
    "unevictable_bytes": set(),
    "zfs_cache_bytes": set(),
    "zfs_cache_minimum_bytes": set(),
    "zram_memory_bytes": set(),
    "zram_stored_bytes": set(),
    "zswap_memory_bytes": set(),
    "zswap_stored_bytes": set(),
    "engine_draft_weights_bytes": {"engine"},
    "engine_info": {"engine", "kind", "version", "model"},
    "engine_kv_cache_bytes": {"engine"},
    "engine_kv_cache_mean_ratio": {"engine"},
    "engine_kv_cache_ratio": {"engine"},
    "engine_kv_cache_used_bytes": {"engine"},
    "engine_remainder_bytes": {"engine"},
    "engine_requests": {"engine", "state"},
    "engine_tokens_total": {"engine", "kind"},
    "engine_weights_bytes": {"engine"},
    "engines_not_followed": set(),
    "failed_logins_total": set(),
    "list_left_out": {"list"},
    "config_last_reload_success_timestamp_seconds": set(),
    "config_last_reload_successful": set(),
    "config_problems": set(),
    "time_to_full_seconds": {"target", "device"},
    "web_info": {"url"},
}


WHOLE_ENGINE = Engine(
    "vllm-8000",
    "vllm",
    "vLLM",
    "http://127.0.0.1:8000",
    version="0.11.0",
    model="m",
    draft_weights_bytes=1,
    weights_bytes=1,
    kv_cache_bytes=1,
    kv_cache_used_bytes=1,
    kv_cache_ratio=1.0,
    kv_cache_mean_ratio=1.0,
    remainder_bytes=1,
    requests_running=1,
    requests_waiting=0,
    prompt_tokens_total=1,
    generation_tokens_total=1,
)


class Receiver:
    name = "ops"
    latency = Histogram((1.0,))

    def counts(self) -> Mapping[str, int]:
        return {"delivered": 1}

    def pending(self) -> int:
        return 0

    def in_place_of_prometheus(self) -> Subscription:
        return Subscription()


def with_every_value() -> Snapshot:
    base = critical_gb10()
    gpu = replace(
        base.devices[0], busy_ratio=0.5, memory_busy_ratio=0.5, errors={"xid": 1}, errors_seen_unix={"xid": 1.0}
    )
    gpu = gpu.with_vitals(Vitals(61.0, 287.4, {"sm": 2_715_000_000}, ("power_cap",)))
    limited = replace(base.shares[0], limit_bytes=base.pools[0].size_bytes)
    nvml = CollectorStatus("nvml", "ok", 0.1, 0.001, base.unix, errors={"deadline": 1})
    behind = left_behind()
    ghosts = tuple(process for process in behind.processes if not process.visible)
    swapped = replace(behind.processes[0], swap_bytes=1)
    return replace(
        base,
        devices=(gpu,),
        engines=(WHOLE_ENGINE,),
        left_out={"incidents": 1},
        shares=(limited, replace(limited, id=OWN_CGROUP, kind=ShareKind.CGROUP)),
        collectors=(nvml,),
        tegrastats=Tegrastats(3, 4 << 20),
        processes=(*base.processes, swapped, *ghosts),
        owners=behind.owners,
        not_returned=behind.not_returned,
        swap=Swap(1, 0, 0, 0),
        zram=Zram(0, 0),
        zfs_cache=ZfsCache(1, 1),
        kernel=Kernel(0, mlocked_bytes=0, unevictable_bytes=0),
    )


def test_metrics_keep_their_names_and_labels() -> None:
    """A machine with every value exports exactly these."""
    files = FilesStatus(Path("/"), 0, 0, 0, 0.0, 0, 0, 0, (), "")
    process = ProcessFigures(0, {"outbox": ThreadState.OK}, 0)
    clock = SystemClock()
    monitor = create_monitor(Sampler([], clock), clock, MonitorRules(), Identity("host", "boot"))
    receivers: Any = [Receiver()]
    sender = Sender("https://gpu1.example.org")
    monitor.features.add(NotificationManager(monitor, Outbox(None), receivers, sender))
    monitor.features.get(HistoryRecorder).files_status = lambda: files  # type: ignore[method-assign]
    snapshot = with_every_value()
    monitor.features.get(GuardianReports).take(GuardianReport("1", 1.0, "nothing", True, "because"))
    monitor.publisher.publish(snapshot, monitor.moment())
    monitor.features.get(BetweenScrapes).add(snapshot)
    exporter = Exporter(
        "1",
        monitor.features,
        lambda: 5,
        lambda: process,
        config=lambda: ConfigState(loaded_unix=1.0),
    )

    text = exporter.render(snapshot, generate_latest).decode()

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {s.name.removeprefix(PREFIX): set(s.labels) for s in samples if s.name.startswith(PREFIX)}
    assert found == NAMES
