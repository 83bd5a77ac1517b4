"""Series of the history: the values of a snapshot that are stored, and their names."""

from __future__ import annotations

from collections.abc import Mapping

from memwatch.core.model import Absent, Architecture, Pool
from memwatch.core.snapshot import MemoryPsi, Snapshot

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
        _add(figures, f"device.{device.id}.headroom_bytes", device.headroom_bytes)
        if device.architecture is not Architecture.DISCRETE:  # equal to the headroom there
            _add(figures, f"device.{device.id}.headroom_certain_bytes", device.headroom_certain_bytes)
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
