"""Data of the processes page: growth, suspected leaks, unattributed memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from memwatch.core.accounting.holders import HELD_BY_PROCESSES, describe_causes, unattributed_bytes
from memwatch.core.model import Bytes
from memwatch.core.processes.growth import GrowthTracker, LeakSuspect, ProcessGrowth
from memwatch.core.snapshot import Snapshot

GROWTH_SECONDS = 600.0
MAX_GROWN_PROCESSES = 10


class WindowedGrowth(Struct, frozen=True):
    """A process that grew, with its growth in each window."""

    grown: ProcessGrowth
    windows: Mapping[str, Bytes]


class UnattributedRow(Struct, frozen=True):
    """Unattributed memory of a pool or device share, and its usual causes."""

    id: str
    label: str
    used_bytes: Bytes
    unattributed_bytes: Bytes
    causes: str = ""


class MemoryHolders(Struct, frozen=True):
    """Growing processes, suspected leaks and unattributed memory. `more_grown`: growing ones that are left out."""

    grown: tuple[WindowedGrowth, ...]
    more_grown: int
    suspects: tuple[LeakSuspect, ...]
    rests: tuple[UnattributedRow, ...]


def find_memory_holders(snapshot: Snapshot, growth: GrowthTracker) -> MemoryHolders:
    start = growth.boottime - GROWTH_SECONDS
    grown = [one for one in growth.since(start, snapshot.unix - GROWTH_SECONDS) if one.grown_bytes > 0]
    return MemoryHolders(
        tuple(WindowedGrowth(one, growth.growth_by_window(one.process)) for one in grown[:MAX_GROWN_PROCESSES]),
        len(grown[MAX_GROWN_PROCESSES:]),
        tuple(growth.suspects()),
        tuple(_list_unattributed(snapshot)),
    )


def _list_unattributed(snapshot: Snapshot) -> Iterator[UnattributedRow]:
    for pool in snapshot.pools:
        yield UnattributedRow(
            pool.id, pool.label, pool.used_bytes, pool.unattributed_bytes, describe_causes(pool, snapshot)
        )
    for share in snapshot.shares:
        if share.kind in HELD_BY_PROCESSES:
            yield UnattributedRow(
                share.id, snapshot.relation(share), share.used_bytes, unattributed_bytes(share, snapshot)
            )
