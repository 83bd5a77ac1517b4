"""How much can be had, and how much there is in all: of System RAM by who asks, or by a GPU."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click

from memwatch.library.cgroup_limit import CgroupLimit, own_limit
from memwatch.library.daemon_client import read_roots
from memwatch.linux.files import Roots
from memwatch.render import words as wording
from memwatchd import wiring

Json = dict[str, Any]


class PlaceHeadroom(NamedTuple):
    """None is what is not known. `within`: the limit of whoever asks, where it is less than the machine has."""

    place: str
    left_bytes: int | None
    whole_bytes: int | None
    within: str = ""

    def limit_to(self, limit: CgroupLimit) -> PlaceHeadroom:
        """The same for who lives under a limit: there may be less in all, and less that is left."""
        left, whole = self.left_bytes, self.whole_bytes
        if whole is not None and limit.size_bytes >= whole:
            return self
        left = None if left is None else min(left, limit.left_bytes)
        return PlaceHeadroom(self.place, left, limit.size_bytes, limit.name)

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


def find_headroom(snapshot: Json, device: str | None) -> PlaceHeadroom:
    """On a GPU, or in System RAM. The own limit counts for this machine's RAM and nobody else's; a driver's memory
    is in no cgroup on a unified machine."""
    if device is not None:
        return PlaceHeadroom(device, _headroom(snapshot, device), find_capacity(snapshot, device))
    ram = next((pool for pool in snapshot["pools"] if pool["kind"] == "system_ram"), None)
    found = PlaceHeadroom(
        "System RAM", None if ram is None else ram["available_bytes"], find_capacity(snapshot, None)
    )
    limit = own_limit() if _is_this_machine(snapshot) else None
    return found if limit is None else found.limit_to(limit)


def find_capacity(snapshot: Json, device: str | None) -> int | None:
    """The most there could ever be; None where that is not known."""
    from memwatch.backends.devices import compute_capacity
    from memwatch.library.machine import decode_machine

    try:
        here = decode_machine(snapshot)
        if device is None:
            return None if here.ram is None else here.ram.size_bytes
        found = here.device(device)
        whole = None if found is None else compute_capacity(found, here)
    except (ValueError, TypeError, KeyError, StopIteration):  # older daemons say less
        return None
    return whole if isinstance(whole, int) else None


def _headroom(snapshot: Json, device: str) -> int | None:
    known = {one["id"]: one["headroom_bytes"] for one in snapshot["devices"]}
    if device not in known:
        raise click.UsageError(f'--device is "{device}", which is none of {", ".join(known) or "no device"}')
    headroom: int | None = known[device]
    return headroom


def _is_this_machine(snapshot: Json) -> bool:
    """Whether it is of the machine that this program runs on, and not of one at the other end of --url."""
    return bool(snapshot["boot_id"] == wiring.read_identity(Roots(*read_roots(os.environ))).boot_id)
