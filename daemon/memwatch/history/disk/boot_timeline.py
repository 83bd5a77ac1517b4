"""What several boots wrote, on one time line: the boot time of now, and what was before it below 0. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from memwatch.history.disk.ring_file import Stamp

UNKNOWN_BOOT = b"\0" * 16


def boot_bytes(boot_id: str) -> bytes:
    """A boot id as 16 bytes; those of a machine that has none are all 0."""
    try:
        return bytes.fromhex(boot_id.replace("-", ""))[:16].ljust(16, b"\0")
    except ValueError:
        return UNKNOWN_BOOT


class _Boot(Struct, frozen=True):
    """The newest that was written in one boot: which run of the daemon it was, and what the clocks said."""

    run: int
    end: float
    wall_offset: float


def shifts_of(stamps: Iterable[Stamp], now: Stamp) -> Mapping[bytes, float]:
    """What to add to the boot times of each boot.

    Runs are numbered, so their order never depends on a wall clock; how long the machine was off does. A clock that
    says that a boot ended after the next one began was wrong, and that boot is put right before the next.
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
