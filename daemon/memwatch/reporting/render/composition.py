"""The composition of a pool over time: its layers, from the ground up, and the history series that have it.

The same layers as in every display of the past. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from memwatch.core.model import Absent, Pool, Share
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render import past
from memwatch.reporting.render.memory_map import GPU_MEMORY, HELD_BY_DEVICES

# Kinds of boxes of the layers that the history keeps, as in the map of now.
LAYER_KINDS = {
    "gpu": "devices",
    "processes": "anonymous",
    "unattributed": "unattributed",
    "reclaimable": "page_cache",
}


GPU_AND_DEVICES = "GPU and devices"


class Sources(Struct, frozen=True):
    """Names of the history series from which the composition of one pool follows."""

    used: str
    available: str
    free: str
    unattributed: str
    devices: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.used, self.available, self.free, self.unattributed, *self.devices


class Layer(Struct, frozen=True):
    """One layer of the stack, from the bottom: its kind of holder, as in the memory map, and its label."""

    holder: str
    label: str


def find_sources(pool: Pool, shares: Sequence[Share]) -> Sources:
    """Return the series of a pool. Shares of devices count where they are contents of it."""
    held = tuple(
        f"share.{share.id}.used_bytes"
        for share in shares
        if share.within == pool.id and share.kind in HELD_BY_DEVICES and pool.kind not in GPU_MEMORY
    )
    prefix = f"pool.{pool.id}."
    used, available, free, unattributed = (
        f"{prefix}{name}_bytes" for name in ("used", "available", "free", "unattributed")
    )
    return Sources(used, available, free, unattributed, held)


def build_layers(
    pool: Pool, sources: Sources, labels: Mapping[str, str] = MappingProxyType({})
) -> tuple[Layer, ...]:
    """Return the layers that `split` fills. Reclaimable memory is the last one, above used memory.

    `labels`: those of shares by id. A single share has its own name, as in the landscape: "CUDA Pool".
    """
    if pool.kind in GPU_MEMORY:
        return Layer("gpu", "held on the GPU"), Layer("unattributed", "unattributed"), Layer("reclaimable", "cache")
    rest = Layer("processes", "processes and kernel" if pool.contents else "used")
    layers = rest, Layer("unattributed", "unattributed"), Layer("reclaimable", "page cache")
    ids = [name.removeprefix("share.").removesuffix(".used_bytes") for name in sources.devices]
    label = labels.get(ids[0], GPU_AND_DEVICES) if len(ids) == 1 else GPU_AND_DEVICES
    return (Layer("gpu", label), *layers) if ids else layers


def list_past_layers(
    pool: Pool, shares: Sequence[Share], columns: Sequence[Sequence[float | None]]
) -> tuple[past.Layer, ...]:
    """Return the layers of a pool's past. `columns`: what `split` returns, at each time."""
    layers = build_layers(pool, find_sources(pool, shares))
    return past.list_layers([LAYER_KINDS[one.holder] for one in layers], columns)


def split(
    pool: Pool,
    used: float | None,
    available: float | None,
    free: float | None,
    unattributed: float | None,
    devices: Sequence[float | None],
) -> tuple[float | None, ...]:
    """Return the sizes of the layers at one moment, None without data. Layers below the last add up to `used`."""
    count = 3 if pool.kind in GPU_MEMORY or not devices else 4
    if used is None:
        return (None,) * count
    rest = min(unattributed or 0.0, used)
    held = min(sum(one or 0.0 for one in devices), used - rest)
    cache = max(0.0, available - free) if available is not None and free is not None else 0.0
    if count == 3:
        return used - rest, rest, cache
    return held, used - rest - held, rest, cache


def split_now(pool: Pool, snapshot: Snapshot) -> tuple[float | None, ...]:
    """Return the sizes of the layers in a snapshot."""
    names = find_sources(pool, snapshot.shares).devices
    held = {f"share.{share.id}.used_bytes": _known(share.used_bytes) for share in snapshot.shares}
    figures = (pool.used_bytes, pool.available_bytes, pool.free_bytes, pool.unattributed_bytes)
    used, available, free, unattributed = map(_known, figures)
    return split(pool, used, available, free, unattributed, [held[name] for name in names])


def _known(figure: int | Absent) -> float | None:
    return None if isinstance(figure, Absent) else float(figure)
