"""Available and total memory: of System RAM for this process, or of a GPU."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from memwatch.core.backends.devices import Room, build_room, read_system_ram
from memwatch.core.leases import OWN_LEASE, without_lease
from memwatch.core.linux.files import Roots
from memwatch.core.model import RAM, RAM_LABEL, find_system_ram
from memwatch.core.reading.identity import read_identity
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots
from memwatch.library.host import as_used_here
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

    def beside(self, snapshot: Snapshot, device: str | None) -> PlaceHeadroom:
        """Return the headroom beside the leases of others. The lease of this program does not count."""
        leases = without_lease(snapshot.leases, os.environ.get(OWN_LEASE, ""))
        if not leases or self.left_bytes is None:
            return self
        from memwatch.core.accounting.leased import with_leases_used  # needed only while there are leases

        _, certain, left = read_room(with_leases_used(snapshot, leases), device)
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
    here = as_used_here(snapshot) if is_this_machine(snapshot) else snapshot
    limit = read_system_ram(here).limit if place is None else None
    whole, certain, left = read_room(here, place)
    found = PlaceHeadroom(place or RAM_LABEL, left, whole, limit.label.lower() if limit else "", certain)
    return found.beside(here, place)


class Figures(NamedTuple):
    """Total bytes, and those that can be allocated now and after reclaim of page cache. None if unknown."""

    whole_bytes: int | None
    certain_bytes: int | None
    left_bytes: int | None


def read_room(snapshot: Snapshot, place: str | None) -> Figures:
    """Return the memory of a device or MIG instance by its id, or of System RAM within the limits that bind it."""
    rooms = [read_system_ram(snapshot).room] if place is None else []
    rooms += [build_room(one, snapshot) for one in snapshot.devices if one.id == place]
    rooms += [Room(one.limit_bytes, one.left_bytes, one.left_bytes) for one in snapshot.shares if one.id == place]
    found = rooms[0] if rooms else (None, None, None)
    return Figures(*(figure if isinstance(figure, int) else None for figure in found))


def find_ram(snapshot: Snapshot) -> str:
    """Return the id of System RAM."""
    ram = find_system_ram(snapshot.pools)
    return RAM if ram is None else ram.id


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
