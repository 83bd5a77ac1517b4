"""Cells of the grid of many GPUs, worst first. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from memwatch.accounting.relations import left_of
from memwatch.model import Absent, Device, PoolKind
from memwatch.render import words
from memwatch.render.memory_map import MemoryMap
from memwatch.render.status_line import MANY_GPUS
from memwatch.snapshot import Level, Pressure


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


def build_cells(
    maps: Iterable[MemoryMap], pressure: Mapping[str, Pressure], devices: Sequence[Device]
) -> tuple[GpuCell, ...]:
    """Return the cells, the worst level first. Cells of one level keep their order, so that few of them move."""
    cells = [(_levels(one, pressure), _build(one, pressure, devices)) for one in maps]
    cells.sort(key=lambda one: -max(one[0], default=-1))
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
    left = [size for piece in one.slices if not isinstance(size := left_of(piece.share), Absent)]
    levels = [pressure[piece.share.id].level for piece in one.slices if piece.share.id in pressure]
    worst = max(levels, default=Level.LOW)
    alike = [f"{levels.count(worst)} {worst.word}"] if worst > Level.LOW else []
    return " · ".join([*alike, *([f"largest free slice {words.size(max(left))}"] if left else [])])
