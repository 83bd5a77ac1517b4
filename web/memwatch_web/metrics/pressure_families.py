"""Metrics of pressure, and of the kernel's own signs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from memwatch.core.model import Absent
from memwatch.core.pressure.oom_kills import SCOPES
from memwatch.core.snapshot import Level, Pressure, PsiLine, Snapshot
from memwatch.monitor.between_scrapes import KillCounts, LevelTimes, TargetTimes
from memwatch_web.metrics.samples import Row, Value, counter, find_devices, gauge

TARGET = ("target", "device")


def pressure_families(snapshot: Snapshot, levels: LevelTimes | None) -> Iterator[Metric]:
    devices, judged = find_devices(snapshot), snapshot.pressure

    def rows(figure: Callable[[Pressure], Value]) -> list[Row]:
        return [((one.target, devices.get(one.target, "")), figure(one)) for one in judged]

    text = "Pressure level of a target: 0 OK (low), 1 medium, 2 high, 3 critical."
    yield gauge("pressure_level", text, rows(lambda one: int(one.level)), TARGET)
    yield gauge(
        "pressure",
        "1 for the current level of a target, 0 for the other levels.",
        [((*key, level.word), int(word == level)) for key, word in rows(lambda one: one.level) for level in Level],
        (*TARGET, "level"),
    )
    text = "Used fraction of the judged memory of a target, without resident memory; above 1 if over budget."
    yield gauge("pressure_ratio", text, rows(lambda one: one.ratio), TARGET)
    yield gauge(
        "pressure_reason",
        "1 for each signal that supports the current level of a target.",
        [((one.target, devices.get(one.target, ""), reason.signal), 1) for one in judged for reason in one.reasons],
        (*TARGET, "signal"),
    )
    text = "Forecast of the time until a target is full, in seconds."
    yield gauge("time_to_full_seconds", text, rows(lambda one: one.seconds_to_full), TARGET)
    if levels is not None:
        yield from level_families(levels.times(snapshot.monotonic), devices)


def level_families(times: Mapping[str, TargetTimes], devices: Mapping[str, str]) -> Iterator[Metric]:
    """Yield counters that include levels between two scrapes."""
    keys = {target: (target, devices.get(target, "")) for target in times}
    seconds = [
        ((*keys[target], level.word), one.seconds[level]) for target, one in times.items() for level in Level
    ]
    text = "Total time of a target at each level since the daemon started, in seconds."
    yield counter("pressure_seconds", text, seconds, (*TARGET, "level"))
    changes = [(keys[target], one.changes) for target, one in times.items()]
    yield counter("pressure_changes", "Total changes of the level of a target.", changes, TARGET)


def kernel_families(snapshot: Snapshot, counts: KillCounts | None) -> Iterator[Metric]:
    yield from psi_families(snapshot)
    nodes = [((str(node.id),), node.largest_free_block_bytes) for node in snapshot.nodes]
    text = "Largest free block of physical memory on a NUMA node in bytes; falls with fragmentation."
    yield gauge("largest_free_block_bytes", text, nodes, ("node",))
    large = [((str(node.id),), node.free_large_blocks_bytes) for node in snapshot.nodes]
    text = "Free memory of a NUMA node in blocks of at least 4 MiB, in bytes."
    yield gauge("free_large_blocks_bytes", text, large, ("node",))
    yield from tegrastats_families(snapshot)
    scopes = counts.scopes if counts and counts.scopes else {"unknown": snapshot.kernel.oom_kills_total}
    text = (
        "Total processes killed by the kernel OOM killer since boot: for lack of System RAM (machine), at the "
        "limit of a cgroup, or unknown."
    )
    kills = [((scope,), scopes.get(scope, 0)) for scope in SCOPES]
    is_known = not isinstance(snapshot.kernel.oom_kills_total, Absent)
    yield counter("kernel_oom_kills", text, kills if is_known else [], ("scope",))


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
