"""One time line for the records of several boots: this boot's boot time, negative before it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from memwatch.monitor.history.disk.ring_file import Stamp

UNKNOWN_BOOT = b"\0" * 16


def boot_bytes(boot_id: str) -> bytes:
    """Convert a boot id to 16 bytes, all 0 on a machine without one."""
    try:
        return bytes.fromhex(boot_id.replace("-", ""))[:16].ljust(16, b"\0")
    except ValueError:
        return UNKNOWN_BOOT


class _Boot(Struct, frozen=True):
    """The newest record of one boot: the daemon's run number, and the clocks."""

    run: int
    end: float
    wall_offset: float


def compute_shifts(stamps: Iterable[Stamp], now: Stamp) -> Mapping[bytes, float]:
    """Return the offset to add to the boot times of each boot.

    Runs are numbered, so their order does not depend on the wall clock; only the time the machine was off does. If
    by the clock a boot ended after the next one began, the clock was wrong, and the boot is moved before the next.
    """
    boots: dict[bytes, _Boot] = {}
    for stamp in stamps:
        known = boots.get(stamp.boot)
        if known is None or (stamp.run, stamp.boottime) >= (known.run, known.end):
            boots[stamp.boot] = _Boot(stamp.run, stamp.boottime, stamp.wall - stamp.boottime)
    shifts = {}
    bound, offset_now = 0.0, now.wall - now.boottime
    for name, boot in sorted(boots.items(), key=lambda item: item[1].run, reverse=True):
        if name == now.boot != UNKNOWN_BOOT and boot.end <= now.boottime:
            shifts[name] = 0.0
            continue
        shift = min(boot.wall_offset - offset_now, bound - boot.end)
        shifts[name] = bound = shift
    return shifts
