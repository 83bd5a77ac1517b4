"""Cells of the grid of many GPUs, worst first. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from memwatch.core.model import Absent, Device, PoolKind
from memwatch.core.snapshot import Level, Pressure
from memwatch.monitor.render import words
from memwatch.monitor.render.memory_map import MemoryMap
from memwatch.monitor.render.status_line import MANY_GPUS

# Heights in pixels at 1280 × 800: of a map, its brackets, the line of a share, and all maps above the processes.
MAP_HEIGHT, BRACKETS_HEIGHT, ROW_HEIGHT, LEADING_HEIGHT = 212, 26, 26, 460


class GpuCell(Struct, frozen=True):
    """One GPU: its map, the worst level of it and its MIG instances, and what is left."""

    map: MemoryMap
    level: str
    note: str
    devices: tuple[Device, ...]


def split_gpus(maps: Sequence[MemoryMap]) -> tuple[tuple[MemoryMap, ...], tuple[MemoryMap, ...]]:
    """Return the maps of GPUs that are many, and the other maps."""
    gpus = tuple(one for one in maps if one.pool and one.pool.kind in (PoolKind.VRAM, PoolKind.HBM))
    if len(gpus) < MANY_GPUS:
        return (), tuple(maps)
    return gpus, tuple(one for one in maps if one not in gpus)


def arrange(maps: Sequence[MemoryMap]) -> tuple[tuple[MemoryMap, ...], tuple[MemoryMap, ...]]:
    """Return the maps above the processes, and those below: the first screen names the largest holder.

    GPUs come first and carve-outs last. A map at least is above, and as many as fit.
    """
    ordered = sorted(maps, key=_rank)
    heights = list(accumulate(_height(one) for one in ordered))
    fit = max(1, sum(height <= LEADING_HEIGHT for height in heights))
    return tuple(ordered[:fit]), tuple(ordered[fit:])


def _height(one: MemoryMap) -> int:
    bracketed = [bracket.share for bracket in one.brackets if bracket.share]
    listed = [row for row in one.rows if row.share not in bracketed or not isinstance(row.used, Absent)]
    return MAP_HEIGHT + BRACKETS_HEIGHT * bool(bracketed) + ROW_HEIGHT * len(listed)


def _rank(one: MemoryMap) -> int:
    if one.pool is None:
        return 1
    return {PoolKind.VRAM: 0, PoolKind.HBM: 0, PoolKind.SYSTEM_RAM: 1, PoolKind.CARVEOUT: 2}[one.pool.kind]


def build_cells(
    maps: Iterable[MemoryMap], pressure: Mapping[str, Pressure], devices: Sequence[Device]
) -> tuple[GpuCell, ...]:
    """Return the cells, critical and high ones first. All others keep their order, so that few of them move."""
    cells = [(_levels(one, pressure), _build(one, pressure, devices)) for one in maps]
    cells.sort(key=lambda one: -max(Level.MEDIUM, *one[0], Level.MEDIUM))
    return tuple(cell for _, cell in cells)


def _levels(one: MemoryMap, pressure: Mapping[str, Pressure]) -> list[Level]:
    targets = (one.whole.id, *(piece.share.id for piece in one.slices))
    return [pressure[target].level for target in targets if target in pressure]


def _build(one: MemoryMap, pressure: Mapping[str, Pressure], devices: Sequence[Device]) -> GpuCell:
    levels = _levels(one, pressure)
    places = {one.whole.id, *(piece.share.id for piece in one.slices)}
    mine = tuple(device for device in devices if places.intersection(device.allocates_from))
    return GpuCell(one, max(levels).word if levels else "unknown", _note(one, pressure), mine)


def _note(one: MemoryMap, pressure: Mapping[str, Pressure]) -> str:
    """Say what is left: "3 critical · largest free slice 8.6 GiB", or "13.2 GiB available"."""
    if not one.slices:
        return f"{words.size(one.whole.available_bytes)} available"
    left = [size for piece in one.slices if not isinstance(size := piece.share.left_bytes, Absent)]
    levels = [pressure[piece.share.id].level for piece in one.slices if piece.share.id in pressure]
    worst = max(levels, default=Level.LOW)
    alike = [f"{levels.count(worst)} {worst.word}"] if worst > Level.LOW else []
    return " · ".join([*alike, *([f"largest free slice {words.size(max(left))}"] if left else [])])
