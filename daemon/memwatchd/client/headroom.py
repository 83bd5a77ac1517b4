"""How much can be had, and how much there is in all: of System RAM by who asks, or by a GPU."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click

from memwatch.library.cgroup_limit import Limit, own_limit
from memwatch.library.daemon_client import roots_of
from memwatch.linux.files import Roots
from memwatch.render import words as wording
from memwatchd import wiring

Json = dict[str, Any]


class Room(NamedTuple):
    """None is what is not known. `within`: the limit of whoever asks, where it is less than the machine has."""

    place: str
    left_bytes: int | None
    whole_bytes: int | None
    within: str = ""

    def limited(self, limit: Limit) -> Room:
        """The same for who lives under a limit: there may be less in all, and less that is left."""
        left, whole = self.left_bytes, self.whole_bytes
        if whole is not None and limit.size_bytes >= whole:
            return self
        left = None if left is None else min(left, limit.left_bytes)
        return Room(self.place, left, limit.size_bytes, limit.name)

    @property
    def left_words(self) -> str:
        if self.left_bytes is None:
            return "how much can be had is not known"
        where = f" within the {self.within}" if self.within else ""
        return f"{wording.size(self.left_bytes)} can be had{where}"

    @property
    def whole_words(self) -> str:
        whole = wording.DASH if self.whole_bytes is None else wording.size(self.whole_bytes)
        return f"the {self.within} is {whole}" if self.within else f"{self.place} has {whole} in all"


def room_of(snapshot: Json, device: str | None) -> Room:
    """On a GPU, or in System RAM. The own limit counts for this machine's RAM and nobody else's; a driver's memory
    is in no cgroup on a unified machine."""
    if device is not None:
        return Room(device, _headroom(snapshot, device), whole_of(snapshot, device))
    ram = next((pool for pool in snapshot["pools"] if pool["kind"] == "system_ram"), None)
    found = Room("System RAM", None if ram is None else ram["available_bytes"], whole_of(snapshot, None))
    limit = own_limit() if _is_of_here(snapshot) else None
    return found if limit is None else found.limited(limit)


def whole_of(snapshot: Json, device: str | None) -> int | None:
    """The most there could ever be; None where that is not known."""
    from memwatch.backends.devices import capacity_of
    from memwatch.library.machine import machine_of

    try:
        here = machine_of(snapshot)
        if device is None:
            return None if here.ram is None else here.ram.size_bytes
        found = here.device(device)
        whole = None if found is None else capacity_of(found, here)
    except (ValueError, TypeError, KeyError, StopIteration):  # older daemons say less
        return None
    return whole if isinstance(whole, int) else None


def _headroom(snapshot: Json, device: str) -> int | None:
    known = {one["id"]: one["headroom_bytes"] for one in snapshot["devices"]}
    if device not in known:
        raise click.UsageError(f'--device is "{device}", which is none of {", ".join(known) or "no device"}')
    headroom: int | None = known[device]
    return headroom


def _is_of_here(snapshot: Json) -> bool:
    """Whether it is of the machine that this program runs on, and not of one at the other end of --url."""
    return bool(snapshot["boot_id"] == wiring.identity_of(Roots(*roots_of(os.environ))).boot_id)
