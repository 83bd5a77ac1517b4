"""Data of the processes page: growth, suspected leaks, unattributed memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from memwatch.accounting.unattributed import HELD_BY_PROCESSES, causes_of, rest_of
from memwatch.model import Bytes
from memwatch.processes.growth import Grown, Growth
from memwatch.processes.leaks import Suspect
from memwatch.snapshot import Snapshot

GROWTH_SECONDS = 600.0
MOST_GROWN = 10


class Risen(Struct, frozen=True):
    """A process that grew, with its growth in each window."""

    grown: Grown
    windows: Mapping[str, Bytes]


class Rest(Struct, frozen=True):
    """Unattributed memory of a pool or device share, and its usual causes."""

    id: str
    label: str
    used_bytes: Bytes
    unattributed_bytes: Bytes
    causes: str = ""


class Who(Struct, frozen=True):
    """Growing processes, suspected leaks and unattributed memory."""

    risen: tuple[Risen, ...]
    suspects: tuple[Suspect, ...]
    rests: tuple[Rest, ...]


def who_of(snapshot: Snapshot, growth: Growth) -> Who:
    start = growth.boottime - GROWTH_SECONDS
    grown = [one for one in growth.since(start, snapshot.unix - GROWTH_SECONDS) if one.grown_bytes > 0]
    return Who(
        tuple(Risen(one, growth.of(one.process)) for one in grown[:MOST_GROWN]),
        tuple(growth.suspects()),
        tuple(_rests(snapshot)),
    )


def _rests(snapshot: Snapshot) -> Iterator[Rest]:
    for pool in snapshot.pools:
        yield Rest(pool.id, pool.label, pool.used_bytes, pool.unattributed_bytes, causes_of(pool, snapshot))
    for share in snapshot.shares:
        if share.kind in HELD_BY_PROCESSES:
            yield Rest(share.id, snapshot.relation(share), share.used_bytes, rest_of(share, snapshot))
