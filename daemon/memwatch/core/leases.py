"""Leases: bytes of memory that are reserved for one process for a bounded time. Records and bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc

# Smaller ones are not worth a place in the budget.
MIN_BYTES = 16 << 20
MIN_SECONDS, MAX_SECONDS = 1.0, 3600.0
MAX_NAME_LENGTH = 80
# Environment variable with the id of the lease that a program was started with.
OWN_LEASE = "MEMWATCH_LEASE"
# Programs rarely use a planned size to the byte: a lease has arrived when this part of it has.
ARRIVED_RATIO = 0.98


class Lease(Struct, frozen=True):
    """Memory reserved for a process. Pools count it as available; `fit` and `wait` of others do not."""

    id: str
    name: str
    target: Annotated[str, Doc("Pool or device of the request.")]
    pid: int
    bytes: int
    held: Annotated[
        Mapping[str, int], Doc("Bytes still reserved, by pool or share.", examples=({"gpu0": 17179869184},))
    ]
    created_unix: float
    until_unix: float
    made_by: Annotated[str, Doc("User of this machine, user or token of the login, or client certificate.")] = ""

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())

    @property
    def arrived_bytes(
        self,
    ) -> Annotated[int, Doc("Bytes that the process and its descendants have allocated since.")]:
        return self.bytes - self.held_bytes


def without_lease(leases: Iterable[Lease], lease_id: str) -> tuple[Lease, ...]:
    """Return the leases of others than the holder of `lease_id`."""
    return tuple(lease for lease in leases if lease.id != lease_id)


def still_held(places: Mapping[str, int], arrived: int) -> dict[str, int]:
    """Return the bytes of each place that have not arrived. Places fill up in their order."""
    return dict(_rests(places, arrived))


def _rests(places: Mapping[str, int], arrived: int) -> Iterator[tuple[str, int]]:
    for place, count in places.items():
        filled = min(count, max(0, arrived))
        arrived -= filled
        yield place, count - filled
