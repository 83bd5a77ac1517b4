"""Waiting for available memory."""

from __future__ import annotations

import os
import time

from memwatch.leases import OWN_LEASE
from memwatch.library.cgroup_limit import own_limit
from memwatch.library.daemon_client import daemon
from memwatch.library.machine import decode_leased_machine, decode_machine, memory_info
from memwatch.library.never_raise import never_raise
from memwatch.model import Absent
from memwatch.planning.sizes import InvalidInputError, parse_bytes


def wait_for(
    size: str | int,
    timeout: float | None = None,
    device: object = None,
    interval: float = 1.0,
    *,
    certain: bool = False,
) -> bool:
    """Wait until `size` is available, at most `timeout` seconds. Returns False on timeout. Raises
    InvalidInputError.

    Checks the headroom of a GPU, or System RAM and the limit of this process's container, unit or job. Unknown
    headroom counts as not enough, and so does memory that others have leased. With `certain`, only memory that is
    free without reclaim of page cache counts.
    """
    need = parse_bytes(size)
    if not 0.01 <= interval <= 3600:
        raise InvalidInputError(f"interval is {interval!r}, which is not from 0.01 to 3600 seconds; for example 1")
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        if has_room(need, device, certain):
            return True
        if until is not None and time.monotonic() + interval > until:
            return False
        time.sleep(interval)


def has_room(need: int, device: object, certain: bool = False) -> bool:
    found = memory_info(device)
    if found is None:
        return False
    left = found.headroom_certain_bytes if certain else found.headroom_bytes
    if isinstance(left, Absent) or left < need or left - leased_bytes(device) < need:
        return False
    limit = own_limit() if device is None else None
    return limit is None or limit.left_bytes >= need


@never_raise(0)
def leased_bytes(device: object) -> int:
    """Return by how much the leases of others lower the headroom. The lease of this program does not count."""
    found = daemon.get("/api/v1/snapshot")
    if found is None or not found.get("leases"):
        return 0
    here, beside = decode_machine(found), decode_leased_machine(found, os.environ.get(OWN_LEASE, ""))
    if device is None:
        before, after = (one.ram.available_bytes if one.ram else 0 for one in (here, beside))
    else:
        before, after = (one.headroom_bytes if one else 0 for one in (here.device(device), beside.device(device)))
    return before - after if isinstance(before, int) and isinstance(after, int) else 0
