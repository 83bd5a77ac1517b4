"""Available and total memory: of System RAM for this process, or of a GPU."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click

from memwatch.core.accounting.relations import left_of
from memwatch.core.backends.devices import certain_part
from memwatch.core.leases import OWN_LEASE
from memwatch.core.linux.files import Roots
from memwatch.core.model import Device, Pool, Share
from memwatch.core.reading.identity import read_identity
from memwatch.library.cgroup_limit import CgroupLimit, own_limit
from memwatch.library.daemon_client import read_roots
from memwatch.monitor.render import words as wording

Json = dict[str, Any]


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

    def beside(self, snapshot: Json, device: str | None) -> PlaceHeadroom:
        """Return the headroom beside the leases of others. The lease of this program does not count."""
        if not snapshot.get("leases"):  # older daemons have none
            return self
        from memwatch.library.machine_record import decode_leased_machine

        here = decode_leased_machine(snapshot, os.environ.get(OWN_LEASE, ""))
        places: list[Device | Share] = [*here.devices, *here.shares]
        found = here.ram if device is None else next((one for one in places if one.id == device), None)
        left, certain = (None, None) if found is None else free_bytes(found)
        if left is None or self.left_bytes is None:
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


def find_headroom(snapshot: Json, device: str | None) -> PlaceHeadroom:
    """Return the headroom of a GPU or of System RAM, without memory that is leased to others.

    `device`: an id, or a name as a program started here would use it: cuda:0, a UUID, cpu. The cgroup limit applies
    only to System RAM of this machine. On a unified machine, no cgroup contains the memory of a driver.
    """
    place = None if device is None else find_place(snapshot, device)
    if place is not None:
        left, certain = _headroom(snapshot, place)
        found = PlaceHeadroom(place, left, find_capacity(snapshot, place), "", certain)
        return found.beside(snapshot, place)
    ram = next((pool for pool in snapshot["pools"] if pool["kind"] == "system_ram"), None)
    left = None if ram is None else ram["available_bytes"]
    certain = None if ram is None or left is None or ram["free_bytes"] is None else min(left, ram["free_bytes"])
    found = PlaceHeadroom("System RAM", left, find_capacity(snapshot, None), "", certain)
    found = found.beside(snapshot, None)
    limit = own_limit() if is_this_machine(snapshot) else None
    return found if limit is None else found.limit_to(limit)


def free_bytes(place: Pool | Device | Share) -> tuple[int | None, int | None]:
    """Return what can be allocated there, and the part of it that needs no reclaim."""
    if isinstance(place, Device):
        left, certain = place.headroom_bytes, place.headroom_certain_bytes
    elif isinstance(place, Share):
        left = certain = left_of(place)
    else:
        left, certain = place.available_bytes, certain_part(place.available_bytes, place.free_bytes)
    return (left if isinstance(left, int) else None), (certain if isinstance(certain, int) else None)


def find_ram(snapshot: Json) -> str:
    """Return the id of System RAM."""
    return next((pool["id"] for pool in snapshot["pools"] if pool["kind"] == "system_ram"), "ram")


def find_capacity(snapshot: Json, device: str | None) -> int | None:
    """Return the total capacity, None if unknown."""
    from memwatch.core.backends.devices import compute_capacity
    from memwatch.library.machine_record import decode_machine

    try:
        here = decode_machine(snapshot)
        if device is None:
            return None if here.ram is None else here.ram.size_bytes
        share = next((one.limit_bytes for one in here.shares if one.id == device), None)
        found = next((one for one in here.devices if one.id == device), None)
        whole = share if found is None else compute_capacity(found, here)
    except (ValueError, TypeError, KeyError, StopIteration):  # older daemons send fewer fields
        return None
    return whole if isinstance(whole, int) else None


def find_place(snapshot: Json, device: str) -> str | None:
    """Return the id of a GPU or of a MIG instance, None for the CPU."""
    if any(one["id"] == device for one in snapshot["devices"]):
        return device
    from memwatch.library.device_names import DeviceError
    from memwatch.library.device_selection import find_target
    from memwatch.library.machine_record import ROOTS, decode_machine
    from memwatch.library.visible_gpus import Program

    environ = os.environ if is_this_machine(snapshot) else {}
    try:
        target = find_target(device, decode_machine(snapshot).devices, Program(environ, {}, ROOTS, True))
    except DeviceError as error:
        raise click.UsageError(f"--{error}") from None
    return None if target is None else target.id


def _headroom(snapshot: Json, place: str) -> tuple[int | None, int | None]:
    """Return the headroom of a place, and the part that needs no reclaim. Older daemons do not report that."""
    for one in snapshot["devices"]:
        if one["id"] == place:
            return one["headroom_bytes"], one.get("headroom_certain_bytes")
    share = next(one for one in snapshot["shares"] if one["id"] == place)
    known = isinstance(share["limit_bytes"], int) and isinstance(share["used_bytes"], int)
    left = max(0, share["limit_bytes"] - share["used_bytes"]) if known else None
    return left, left


def is_this_machine(snapshot: Json) -> bool:
    """Return True if the snapshot is of the machine that this program runs on."""
    return bool(snapshot["boot_id"] == read_identity(Roots(*read_roots(os.environ))).boot_id)
