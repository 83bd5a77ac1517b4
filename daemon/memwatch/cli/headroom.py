"""Available and total memory: of System RAM for this process, or of a GPU."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from memwatch.core.backends.devices import certain_part, compute_capacity
from memwatch.core.leases import OWN_LEASE, without_lease
from memwatch.core.linux.files import Roots
from memwatch.core.model import Device, Pool, Share, find_system_ram
from memwatch.core.reading.identity import read_identity
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots
from memwatch.library.host import CgroupLimit, own_limit
from memwatch.reporting.render import words as wording


class PlaceHeadroom(NamedTuple):
    """Available and total bytes, None if unknown. `within`: name of the limit, if it is below the machine's RAM.

    `certain_bytes` of the available bytes are free without reclaim of page cache. `leased_bytes`, which others have
    leased, are not part of either.
    """

    place: str
    left_bytes: int | None
    whole_bytes: int | None
    within: str = ""
    certain_bytes: int | None = None
    leased_bytes: int = 0

    def limit_to(self, limit: CgroupLimit) -> PlaceHeadroom:
        """Return the headroom within a limit, which may lower both the total and the available bytes."""
        left, whole = self.left_bytes, self.whole_bytes
        if whole is not None and limit.size_bytes >= whole:
            return self
        left = None if left is None else min(left, limit.left_bytes)
        certain = None if self.certain_bytes is None else min(self.certain_bytes, limit.left_bytes)
        return PlaceHeadroom(self.place, left, limit.size_bytes, limit.name, certain, self.leased_bytes)

    def beside(self, snapshot: Snapshot, device: str | None) -> PlaceHeadroom:
        """Return the headroom beside the leases of others. The lease of this program does not count."""
        leases = without_lease(snapshot.leases, os.environ.get(OWN_LEASE, ""))
        if not leases or self.left_bytes is None:
            return self
        from memwatch.core.accounting.leased import with_leases_used  # needed only while there are leases

        left, certain = free_bytes(find_target_record(with_leases_used(snapshot, leases), device))
        if left is None:
            return self
        leased = max(0, self.left_bytes - left)
        return self._replace(left_bytes=left, certain_bytes=certain, leased_bytes=leased)

    def decisive_bytes(self, certain: bool) -> int | None:
        """Return the figure that decides: what is free at once, or also what the kernel could reclaim."""
        return self.certain_bytes if certain else self.left_bytes

    def left_words(self, certain: bool) -> str:
        """Describe what is available, the decisive figure first."""
        decisive = self.decisive_bytes(certain)
        if decisive is None:
            return "memory that is free without reclaim is unknown" if certain else "available memory is unknown"
        where = f" within the {self.within}" if self.within else ""
        leased = f", beside {wording.size(self.leased_bytes)} leased to others" if self.leased_bytes else ""
        return f"{wording.size(decisive)} available{where}{self._bounds(certain)}{leased}"

    def _bounds(self, certain: bool) -> str:
        left, least = self.left_bytes, self.certain_bytes
        if left is None or least is None or not wording.needs_reclaim(least, left):
            return " at once" if certain else ""
        if certain:
            return f" at once, {wording.size(left)} after reclaim"
        return f" after reclaim, {wording.size(least)} at once"

    @property
    def whole_words(self) -> str:
        whole = wording.DASH if self.whole_bytes is None else wording.size(self.whole_bytes)
        return f"the {self.within} is {whole}" if self.within else f"{self.place} has {whole} in total"


def find_headroom(snapshot: Snapshot, device: str | None) -> PlaceHeadroom:
    """Return the headroom of a GPU or of System RAM, without memory that is leased to others.

    `device`: an id, or a name as a program started here would use it: cuda:0, a UUID, cpu. The cgroup limit applies
    only to System RAM of this machine. On a unified machine, no cgroup contains the memory of a driver.
    """
    place = None if device is None else find_place(snapshot, device)
    left, certain = free_bytes(find_target_record(snapshot, place))
    found = PlaceHeadroom(place or "System RAM", left, find_capacity(snapshot, place), "", certain)
    found = found.beside(snapshot, place)
    limit = own_limit() if place is None and is_this_machine(snapshot) else None
    return found if limit is None else found.limit_to(limit)


def find_target_record(snapshot: Snapshot, place: str | None) -> Pool | Device | Share | None:
    """Return a device or MIG instance by its id, or System RAM."""
    if place is None:
        return find_system_ram(snapshot.pools)
    places: list[Device | Share] = [*snapshot.devices, *snapshot.shares]
    return next((one for one in places if one.id == place), None)


def free_bytes(place: Pool | Device | Share | None) -> tuple[int | None, int | None]:
    """Return what can be allocated there, and the part of it that needs no reclaim."""
    if place is None:
        return None, None
    if isinstance(place, Device):
        left, certain = place.headroom_after_reclaim_bytes, place.headroom_bytes
    elif isinstance(place, Share):
        left = certain = place.left_bytes
    else:
        left, certain = place.available_bytes, certain_part(place.available_bytes, place.free_bytes)
    return (left if isinstance(left, int) else None), (certain if isinstance(certain, int) else None)


def find_ram(snapshot: Snapshot) -> str:
    """Return the id of System RAM."""
    ram = find_system_ram(snapshot.pools)
    return "ram" if ram is None else ram.id


def find_capacity(snapshot: Snapshot, device: str | None) -> int | None:
    """Return the total capacity, None if unknown."""
    place = find_target_record(snapshot, device)
    if place is None:
        return None
    if isinstance(place, Device):
        whole = compute_capacity(place, snapshot)
    else:
        whole = place.limit_bytes if isinstance(place, Share) else place.size_bytes
    return whole if isinstance(whole, int) else None


def find_place(snapshot: Snapshot, device: str) -> str | None:
    """Return the id of a GPU or of a MIG instance, None for the CPU."""
    if any(one.id == device for one in snapshot.devices):
        return device
    from memwatch.library.device_selection import find_target
    from memwatch.library.machine_record import ROOTS
    from memwatch.library.visible_gpus import DeviceError, Program

    environ = os.environ if is_this_machine(snapshot) else {}
    try:
        target = find_target(device, snapshot.devices, Program(environ, {}, ROOTS, True))
    except DeviceError as error:
        raise click.UsageError(f"--{error}") from None
    return None if target is None else target.id


def is_this_machine(snapshot: Snapshot) -> bool:
    """Return True if the snapshot is of the machine that this program runs on."""
    return snapshot.boot_id == read_identity(Roots(*read_roots(os.environ))).boot_id
