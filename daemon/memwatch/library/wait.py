"""Waiting for available memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from memwatch.core.backends.devices import Room
from memwatch.core.leases import OWN_LEASE
from memwatch.core.model import MAX_BYTES, Absent, Bytes
from memwatch.library.daemon_client import daemon
from memwatch.library.device_selection import is_cpu
from memwatch.library.host import read_own_share
from memwatch.library.machine import get_device_memory_bytes, machine_cache, memory_info
from memwatch.library.machine_record import decode_leased_machine, decode_machine
from memwatch.library.program_safety import never_raise
from memwatch.planning.arguments import check_flag, check_interval, check_seconds, parse_bytes

# Unknown headroom becomes known when a driver answers again. After this time it is not expected to.
UNKNOWN_SECONDS = 60.0


def wait_for(
    size: str | int,
    timeout: float | None = None,
    device: object = None,
    interval: float = 1.0,
    *,
    certain: bool = False,
) -> bool:
    """Wait until `size` is available, at most `timeout` seconds.

    Checks the headroom of a GPU, named as in `Machine.find`, or System RAM and the limit of this process's
    container, unit or job. Memory that others have leased does not count. With `certain`, only memory that is free
    without reclaim of page cache counts.

    Returns False on timeout, at once if `size` exceeds the total, and after a minute if the headroom stays unknown.
    Raises InvalidInputError, DeviceError without such a GPU, and NoDaemonError as `machine`. Without a daemon, each
    check of a GPU reads its driver; an interval above a minute starts a helper process each time.
    """
    need = parse_bytes(size)
    check_interval(interval, example=1)
    check_flag(certain, "certain", example=True)
    if timeout is not None:
        check_seconds(timeout, "timeout", 60)
    began = time.monotonic()
    machine_cache.any().find(device)
    whole = get_device_memory_bytes(device, default=MAX_BYTES)
    return wait_until_free(need, lambda: _check(device, need, whole, certain), interval, began, timeout)


class Check(NamedTuple):
    """Result of one check. `left_bytes`: available bytes without leases of others. `total_bytes`: the most ever."""

    left_bytes: Bytes
    total_bytes: Bytes


def wait_until_free(
    need: int,
    check: Callable[[], Check],
    interval: float,
    began: float,
    timeout: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Check once in each interval. Return True as soon as `need` bytes are left, False if waiting is in vain.

    `began`, from which the timeout counts, is a time of `clock`.
    """
    known_at = began
    while True:
        found = check()
        now = clock()
        if isinstance(found.left_bytes, int):
            known_at = now
            if found.left_bytes >= need:
                return True
        if (isinstance(found.total_bytes, int) and need > found.total_bytes) or now - known_at > UNKNOWN_SECONDS:
            return False
        if timeout is not None and now + interval > began + timeout:
            return False
        sleep(interval)


def _check(device: object, need: int, whole: int, certain: bool) -> Check:
    room, limit = _read_room(device, whole), read_own_share() if is_cpu(device) else None
    room = room if limit is None else room.within(limit)
    left = room.headroom_bytes if certain else room.headroom_after_reclaim_bytes
    if isinstance(left, int) and left >= need:
        left -= leased_bytes(device)
    return Check(left, room.size_bytes)


def _read_room(device: object, whole: int) -> Room:
    found = memory_info(device)
    if found is None:
        return Room(whole, Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    return Room(whole, found.headroom_bytes, found.headroom_after_reclaim_bytes)


@never_raise(0)
def leased_bytes(device: object) -> int:
    """Return by how much the leases of others lower the headroom. The lease of this program does not count."""
    found = daemon.get("/api/v1/snapshot")
    if found is None or not found.get("leases"):
        return 0
    here, beside = decode_machine(found), decode_leased_machine(found, os.environ.get(OWN_LEASE, ""))
    if is_cpu(device):
        before, after = (one.ram.available_bytes if one.ram else 0 for one in (here, beside))
    else:
        before, after = (
            one.headroom_after_reclaim_bytes if one else 0 for one in (here.device(device), beside.device(device))
        )
    return before - after if isinstance(before, int) and isinstance(after, int) else 0
