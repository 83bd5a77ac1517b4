"""Series of the history: the stored values of a snapshot, those of one interval, and queries by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from memwatch.core.model import Absent, Architecture, Device, Pool
from memwatch.core.snapshot import MemoryPsi, Snapshot
from memwatch.reporting.history.tier import Aggregate, Row, build_aggregate
from memwatch_monitor.history.holders import HolderHistory, parse_name
from memwatch_monitor.history.tiers import Bucket, History

OOM_KILLS = "kernel.oom_kills_total"
RAM_RATIO = "pressure.ram.ratio"
UNITS = {"bytes": "bytes", "ratio": "ratio", "seconds": "seconds", "level": "level"}


def unit_of(name: str) -> str:
    """Return the unit of a series, which is part of its name."""
    last = name.rsplit(".", 1)[-1]
    return next((unit for word, unit in UNITS.items() if word in last), "count")


def collect_figures(snapshot: Snapshot) -> Mapping[str, float]:
    """Return the known values of one tick by series name, such as `pool.ram.used_bytes`."""
    figures: dict[str, float] = {}
    for pool in snapshot.pools:
        _add_pool(figures, pool)
    for share in snapshot.shares:
        _add(figures, f"share.{share.id}.used_bytes", share.used_bytes)
    for pressure in snapshot.pressure:
        figures[f"pressure.{pressure.target}.ratio"] = pressure.ratio
        figures[f"pressure.{pressure.target}.level"] = pressure.level
        _add(figures, f"pressure.{pressure.target}.seconds_to_full", pressure.seconds_to_full)
    for device in snapshot.devices:
        for end in headroom_ends(device):
            _add(figures, f"device.{device.id}.{end}", getattr(device, end))
    for node in snapshot.nodes:
        _add(figures, f"node.{node.id}.largest_free_block_bytes", node.largest_free_block_bytes)
    for engine in snapshot.engines:
        _add(figures, f"engine.{engine.id}.kv_cache_used_bytes", engine.kv_cache_used_bytes)
        _add(figures, f"engine.{engine.id}.kv_cache_ratio", engine.kv_cache_ratio)
    if not isinstance(snapshot.swap, Absent):
        figures["swap.used_bytes"] = snapshot.swap.used_bytes
    if not isinstance(snapshot.psi, Absent):
        _add_psi(figures, snapshot.psi)
    _add(figures, OOM_KILLS, snapshot.kernel.oom_kills_total)
    _add(figures, "self.rss_bytes", snapshot.self_usage.rss_bytes)
    figures["self.cpu_seconds"] = snapshot.self_usage.cpu_seconds
    figures["self.tick_lag_seconds"] = snapshot.self_usage.tick_lag_seconds
    return figures


def headroom_ends(device: Device) -> tuple[str, ...]:
    """Return the ends of a headroom that are stored, the larger one last. Those of VRAM are equal."""
    if device.architecture is Architecture.DISCRETE:
        return ("headroom_bytes",)
    return "headroom_bytes", "headroom_after_reclaim_bytes"


def _add(figures: dict[str, float], name: str, value: float | Absent) -> None:
    if not isinstance(value, Absent):
        figures[name] = value


def _add_pool(figures: dict[str, float], pool: Pool) -> None:
    prefix = f"pool.{pool.id}."
    _add(figures, prefix + "used_bytes", pool.used_bytes)
    _add(figures, prefix + "available_bytes", pool.available_bytes)
    _add(figures, prefix + "free_bytes", pool.free_bytes)
    _add(figures, prefix + "unattributed_bytes", pool.unattributed_bytes)


def _add_psi(figures: dict[str, float], psi: MemoryPsi) -> None:
    figures["psi.some.ratio_10s"] = psi.some.ratio_10s
    if not isinstance(psi.full, Absent):
        figures["psi.full.ratio_10s"] = psi.full.ratio_10s


class Interval:
    """The ticks since `began` (monotonic seconds). Under pressure there are ten ticks per stored row."""

    def __init__(self, began: float = -math.inf) -> None:
        self.began = began
        self.worst: Snapshot | None = None
        self._ticks: list[Mapping[str, float]] = []

    def add(self, snapshot: Snapshot, figures: Mapping[str, float]) -> None:
        self._ticks.append(figures)
        if self.worst is None or fullness(snapshot) >= fullness(self.worst):
            self.worst = snapshot

    def row(self) -> Row:
        """Return a cell for every series with a value in any of the ticks."""
        if len(self._ticks) == 1:
            return self._ticks[0]
        names = dict.fromkeys(name for figures in self._ticks for name in figures)
        return {name: self._aggregate(name) for name in names}

    def _aggregate(self, name: str) -> Aggregate:
        return build_aggregate([figures[name] for figures in self._ticks if name in figures])


def fullness(snapshot: Snapshot) -> float:
    """Return the highest pressure ratio of any target, 0 to 1. The worst tick has the maximum."""
    return max((pressure.ratio for pressure in snapshot.pressure), default=0.0)


class AllSeries(Struct, frozen=True):
    """Queries of both histories. Thread-safe."""

    machine: History
    holders: HolderHistory

    def __len__(self) -> int:
        return len(self.machine)

    @property
    def start(self) -> float:
        """Return the boot time of the oldest row; 0 before the first."""
        return self.machine.start

    @property
    def end(self) -> float:
        """Return the boot time of the newest reading; 0 before the first."""
        return self.machine.end

    def names(self) -> list[str]:
        return [*self.machine.names(), *self.holders.names()]

    def current_names(self) -> list[str]:
        """Return the names of all series but those of holders that are no longer among the largest."""
        return [*self.machine.names(), *self.holders.current_names()]

    def titles(self) -> Mapping[str, str]:
        """Return the titles of holders by kind and id: see `HolderHistory.titles`."""
        return self.holders.titles()

    def find(self, name: str) -> str:
        """Return the full name of a series."""
        return self.holders.find(name)

    def step_seconds(self, name: str) -> float:
        """Return the time between the newest readings of a series."""
        return self._of(name).tiers[0].spec.step_seconds

    def query(self, name: str, start: float, end: float, points: int) -> list[Bucket]:
        """Query one series: see `History.query`. Raises KeyError for an unknown series."""
        return self._of(name).query(name, start, end, points)

    def _of(self, name: str) -> History:
        return self.holders.history if parse_name(name) else self.machine

    def estimate_seconds(self, series: int, start: float, end: float, points: int) -> float:
        """Return at least how long a query of this many series takes: holders have fewer rows."""
        return self.machine.estimate_seconds(series, start, end, points)
