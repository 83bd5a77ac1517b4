"""docs/reference/rules.md: pressure signals and alert rules with their default thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from memwatch.core import units
from memwatch.core.model import Thresholds
from memwatch.core.pressure import oom_kills, signals
from memwatch.core.pressure.forecast import LASTS_RATIO
from memwatch.core.pressure.judge import (
    AUTO_RESIDENT_SECONDS,
    CRITICAL_BYTES,
    CRITICAL_SECONDS,
    CRITICAL_USED,
    LONG_SECONDS,
    LONG_USED,
    LOST_NOTHING_BYTES,
    LOST_RATIO,
)
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import SHORT_USED, Level
from memwatch_monitor.alerts.rules import (
    FAILED_SECONDS,
    KV_FULL_RATIO,
    KV_PENDING_SECONDS,
    RULES,
    URGENT,
    URGENT_SECONDS,
    AlertRules,
)
from memwatch_monitor.notify.channel import Sender
from memwatch_monitor.notify.webhook import TEXT_LENGTHS, body_json
from scripts.reference.markdown import code, codes, page, table
from support.sample_snapshots import critical_gb10
from support.webhook_samples import notice

PROMETHEUS = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules" / "alerts.yml"

INTRO = """
memwatchd judges every pool, and every share that has a limit. Each signal names a level, and the highest level
counts. [Pressure](../explanation/pressure.md) explains why. `reasons` of `/api/v1/pressure`, the metric
`memwatch_pressure_reason`, pages, events and notifications name the signals by these words.
"""

ALERTS_INTRO = """
memwatchd evaluates these rules itself and notifies the receivers that subscribe to them; see
[Alerts](../howto/alerts.md). The key `events` of a receiver lists rules by name. The times are keys of
[`[alerts]`](configuration.md#alerts).
"""

BODY_INTRO = """
A webhook posts one JSON object per notification. A field whose value is not known is null, and `absent` beside a
figure says why. [A receiver](../howto/alerts.md#write-a-webhook-receiver) checks the signature.
"""
BODY_FIELDS = {
    "schema": "1",
    "id": "`webhook-id`: the same in every attempt to deliver it",
    "event": "the rule that fired, or `pressure.resolved` and the like",
    "time": "time of the notification",
    "unix": "the same in Unix seconds",
    "host": "host name of the machine",
    "target": "id of the pool, share, device, collector, engine or neighbour",
    "rule": "the alert rule, also of a resolved alert",
    "severity": "`critical`, `warning` or `info`",
    "started": "time when the alert began to fire",
    "repeated": "true for a reminder of an alert that is still firing",
    "level": "`low`, `medium`, `high` or `critical`. Of a firing alert its own level: at least that of its rule, "
    "also while it only still fires. Of a resolved one the level that is left. Null for rules without levels",
    "level_now": "the level of the target now, which may be lower than that of the alert",
    "previous": "the level before: of the target before the alert fired, of the alert before it resolved",
    "reasons": "`signal` and `text` of each reason for `level`",
    "new_reasons": "those of them that no earlier notification of a firing alert had",
    "values": "figures of the target now, in bytes; `ratio` is the fraction that is judged",
    "top": "the five processes with the largest footprints, with `unit` and `container`",
    "left_out": "number of entries that `reasons`, `new_reasons` and `top` lack",
    "labels": "`labels` of the [configuration](configuration.md#labels)",
    "dashboard_url": "the overview; null if other machines cannot reach it and `url` under `[web]` is not set",
    "runbook_url": "the section of the runbooks, likewise",
    "incident_url": "the [incident](../howto/incidents.md) of the target, likewise",
}

PROMETHEUS_INTRO = """
For Prometheus, [`alerts.yml`](../../deploy/prometheus/rules/alerts.yml) has these rules; each has a
[runbook](../howto/runbooks.md).
"""


def percent(part: float) -> str:
    """Return a part of a whole, 0 to 1, as a percentage."""
    return f"{part * 100:g} %"


def span(seconds: float) -> str:
    """Return a time, in whole seconds if it is short."""
    return f"{seconds:g} s" if seconds < 60 else units.duration(seconds)


def size(count: int) -> str:
    """Return a size without a decimal that is zero."""
    return units.size(count).replace(".0 ", " ")


def signal_rows() -> Iterator[tuple[str, str, str]]:
    """Yield name, condition and level of each signal, in the words of its thresholds."""
    use = Thresholds()
    (_, critical_bytes, critical_part), (_, high_bytes, high_part) = signals.FLOORS
    window = span(signals.PSI_WINDOW_SECONDS)
    yield (
        "util",
        f"use of {percent(use.medium)}; {percent(use.high)}; above {percent(use.critical)}. Page cache, ZFS's "
        "cache and unused huge pages are not use",
        "medium; high; critical",
    )
    yield (
        "floor",
        f"System RAM or a cgroup's limit has less than {size(high_bytes)} and {percent(high_part)} left; less than "
        f"{size(critical_bytes)} and {percent(critical_part)}",
        "high; critical",
    )
    yield (
        "psi",
        f"some task waited for memory {percent(signals.SOME_MEDIUM)} of the last {window}; all tasks waited "
        f"{percent(signals.FULL_HIGH)}, or some {percent(signals.SOME_HIGH)}, with {percent(SHORT_USED)} used. For "
        "the stalls of all tasks direct reclaim of the machine is enough",
        "medium; high",
    )
    yield (
        "psi_full",
        f"all tasks waited {percent(signals.FULL_CRITICAL)} of the last {window}, and "
        f"{percent(signals.FULL_USED)} is used: {percent(SHORT_USED)} without direct reclaim of the machine",
        "critical",
    )
    yield (
        "livelock",
        f"all tasks waited {percent(signals.FULL_CRITICAL)} of the last {window}, {signals.LIVELOCK_ALLOCSTALLS:g} "
        f"allocations per second had to free memory, and {signals.LIVELOCK_REFAULTS:g} pages of files per second "
        "were read again, at any use; without PSI: as many allocations had to free memory, and of "
        f"{signals.VAIN_PAGES:,.0f} pages per second that they looked at {percent(signals.VAIN_FREED)} or less "
        "were freed",
        "critical; high",
    )
    yield (
        "evicted",
        f"amdgpu evicted compute queues for {percent(signals.EVICTED_HIGH)} of the last {window}; while "
        "allocations had to free memory",
        "high; critical",
    )
    yield (
        "ttf",
        f"the forecast says full within {span(signals.TTF_MEDIUM_SECONDS)}; within {span(CRITICAL_SECONDS)} "
        f"of {percent(LOST_RATIO)} left (of what exceeds {LOST_NOTHING_BYTES >> 30} GiB), and "
        f"{LASTS_RATIO:g} times as long as memory has been falling, with {percent(CRITICAL_USED)} used, "
        f"{percent(LONG_USED)} after {span(LONG_SECONDS)}, or less than {CRITICAL_BYTES >> 20} MiB of System RAM "
        "left. Never critical for a GPU's own memory",
        "medium; critical",
    )
    yield (
        "swap",
        f"less than {percent(signals.SWAP_LEFT)} of swap is left, more than {percent(signals.SWAP_USED)} of "
        f"System RAM is used, and {signals.MIN_SWAPPED_PAGES:g} pages per second are read from swap or written",
        "critical",
    )
    yield (
        "oom_kill",
        "the kernel killed a process for lack of System RAM, or at the limit that memwatchd is in. A kill of "
        f"unknown scope counts if {percent(SHORT_USED)} of System RAM were used in the "
        f"{oom_kills.SHORT_SECONDS:g} s before, or {percent(oom_kills.RECLAIM_USED)} while tasks freed memory",
        "critical",
    )
    yield (
        "fragmentation",
        "a NUMA node that a GPU allocates from has no free block of 4 MiB, "
        f"{signals.MIN_COMPACT_FAILS:g} compactions per second fail, tasks wait, and device memory grows",
        "high",
    )
    yield (
        "driver",
        "a GPU's driver reported an error about memory, for the memory that GPU uses; an allocation failed, and "
        "allocations have to free memory, free memory falls below "
        f"{percent(signals.MAX_FREE)}, or a program reports a failed allocation",
        "medium; high",
    )


def signals_part() -> str:
    """Return the table of signals, and when levels fall."""
    rules = PressureRules()
    falls = (
        "A level rises at once. It falls after use has been "
        f"{rules.clear_margin * 100:g} points below its threshold, and no signal has named it, for "
        f"{span(rules.clear_after_seconds)}. A kill or a driver's error counts for "
        f"{span(signals.EVENT_HOLD_SECONDS)}. Thresholds of use, and these times, are keys of "
        '[`[pressure]`](configuration.md#pressure). `resident = "auto"` takes the lowest use of the last '
        f"{span(AUTO_RESIDENT_SECONDS)} as resident."
    )
    rows = [(code(name), condition, level) for name, condition, level in signal_rows()]
    return "## Signals\n\n" + table(("signal", "condition", "level"), rows) + "\n\n" + falls


def alert_conditions() -> dict[str, tuple[str, str]]:
    """Return what each alert rule is about, and when it fires."""
    times = AlertRules()
    pending = span(times.pending_seconds)
    levels = f"after {pending} (`pending_for`); GPU memory after {span(times.gpu_pending_seconds)}"
    forecast = f"full within {span(times.forecast_seconds)} (`forecast_within`), for {pending}"
    collector = f"after {span(times.collector_pending_seconds)} (`collector_pending_for`)"
    target = "pool or share with a limit"
    return {
        "pressure.critical": (target, f"level {Level.CRITICAL.word}, {levels}"),
        "pressure.high": (target, f"level {Level.HIGH.word} or worse, {levels}"),
        "pressure.medium": (target, f"level {Level.MEDIUM.word} or worse, {levels}"),
        "pressure.forecast": (target, forecast),
        "collector.failed": (
            "collector",
            f"by default: memory that it reads was {Level.HIGH.word} or worse, and it has not answered for "
            f"{span(FAILED_SECONDS)}",
        ),
        "collector.failing": ("collector", f"it fails or is stalled, {collector}"),
        "device.lost": ("device", f"it is lost, missing or needs a reset, after {pending}"),
        "engine.kv_full": (
            "model server",
            f"requests wait and its KV cache is {KV_FULL_RATIO:.0%} full, for {span(KV_PENDING_SECONDS)}",
        ),
        "kernel.oom_kill": ("`kernel`; `ram` for lack of System RAM", "at once, as a one-off event"),
        "driver.error": ("`driver`", "at once, as a one-off event"),
        "daemon.unclean_restart": ("`memwatchd`", "at the next start, as a one-off event"),
        "guardian.acted": ("`guardian`", "by default: at once, as a one-off event"),
        "guardian.would_have_acted": ("`guardian`", "at once, as a one-off event"),
        "neighbour.silent": (
            "neighbour",
            "no tick for 10 s or 5 of its intervals; up to 30 s later if another machine reports on it",
        ),
    }


def alerts_part() -> str:
    """Return the table of memwatchd's own alert rules, and what all of them have in common."""
    times = AlertRules()
    conditions = alert_conditions()
    rows = [(code(rule.name), rule.severity, *conditions[rule.name]) for rule in RULES]
    urgent = (
        f"An alert is sent without delay if {codes(sorted(URGENT), ' or ')} is among its reasons, or if memory is "
        f"full within {span(URGENT_SECONDS)}. It resolves {span(times.resolve_seconds)} after the "
        f"condition ended (`resolve_after`), and fires for {span(times.keep_firing_seconds)} at least "
        f"(`keep_firing_for`). While it fires, it is sent again every {span(times.repeat_seconds)} "
        f"(`repeat_every`); one that returns is sent at most every {span(times.again_seconds)} (`again_after`). "
        "[Laws of alerts](../explanation/alerts.md) has what else holds."
    )
    body = table(("rule", "severity", "target", "fires"), rows)
    return "## Alert rules\n\n" + ALERTS_INTRO.strip() + "\n\n" + body + "\n\n" + urgent


def body_part() -> str:
    """Return the table of the fields of a webhook."""
    fields = body_json(notice(), critical_gb10(), Sender(), TEXT_LENGTHS[0])
    rows = [(code(name), BODY_FIELDS[name]) for name in fields]
    return "## Body of a webhook\n\n" + BODY_INTRO.strip() + "\n\n" + table(("field", "content"), rows)


def prometheus_part() -> str:
    """Return the table of the alert rules for Prometheus."""
    groups = yaml.safe_load(PROMETHEUS.read_text())["groups"]
    alerts: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = [
        (
            f"[{one['alert']}](../howto/runbooks.md#{one['alert'].lower()})",
            one["labels"]["severity"],
            str(one.get("for", "at once")),
            code(" ".join(one["expr"].split())),
        )
        for one in alerts
    ]
    body = table(("alert", "severity", "for", "expression"), rows)
    return "## Alert rules for Prometheus\n\n" + PROMETHEUS_INTRO.strip() + "\n\n" + body


def render() -> str:
    """Return the page."""
    return page("Signals and alert rules", INTRO, signals_part(), alerts_part(), body_part(), prometheus_part())
