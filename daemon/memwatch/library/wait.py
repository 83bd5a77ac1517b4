"""Waiting for available memory."""

from __future__ import annotations

import time

from memwatch.library.cgroup_limit import own_limit
from memwatch.library.machine import memory_info
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
    headroom counts as not enough. With `certain`, only memory that is free without reclaim of page cache counts.
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
    if isinstance(left, Absent) or left < need:
        return False
    limit = own_limit() if device is None else None
    return limit is None or limit.left_bytes >= need
