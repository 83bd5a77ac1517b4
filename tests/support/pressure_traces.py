"""Machines that fill up, thrash or only look full, as functions of time, each with the expected verdict.

The traces use values measured or reported in practice: a 1 GiB machine thrashing (kernel 6.1: some 25 %, full 24 %
stalled at 8.7 of 735 MiB available), one cgroup held back by memory.high on a calm host (some and full 25 to 36 %),
KVM hosts with huge page pools, ZFS caches, a model loaded at 200 MiB/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

MIB, GIB = 1 << 20, 1 << 30
LEAD_IN_SECONDS = 30.0


class Sample(Struct, frozen=True):
    """Values of /proc at one time. `huge` is the huge page pool, `arc` the reclaimable part of ZFS's cache."""

    total: int
    available: int
    free: int
    huge: int = 0
    arc: int = 0
    swap_total: int = 0
    swap_free: int = 0
    some_seconds: float = 0.0
    full_seconds: float = 0.0


class Trace(Struct, frozen=True):
    """Machine over `seconds`. `critical`: an alert must be sent, must never be sent, or either is defensible.

    `ends_at`: the time when no memory is left. `gap`: start and end of a suspend. The machine is also read during
    `LEAD_IN_SECONDS` before 0, in which `at` gets negative times.
    """

    name: str
    seconds: float
    at: Callable[[float], Sample]
    critical: Literal["must", "never", "either"]
    ends_at: float | None = None
    gap: tuple[float, float] | None = None


def falling(total: int, start: float, per_second: float, floor: float = 0.0) -> Callable[[float], int]:
    """Return available bytes that fall from one fraction of the total at a rate, down to another fraction."""
    return lambda seconds: int(max(floor * total, start * total - per_second * max(0.0, seconds)))


def plain(total: int, available: Callable[[float], int]) -> Callable[[float], Sample]:
    return lambda seconds: Sample(total, available(seconds), available(seconds) // 2)


def loading(name: str, total: int, start: float, per_second: int, stops: float, critical: str) -> Trace:
    """Return a trace of a model read into memory at a steady rate."""
    ends = None if stops < 1 else (1 - start) * total / per_second
    available = falling(total, 1 - start, per_second, 1 - stops)
    # A machine without memory left is not read any longer.
    seconds = 120.0 if ends is None else ends
    return Trace(name, seconds, plain(total, available), critical, ends)  # type: ignore[arg-type]


def leaking(name: str, start: float, per_minute: int) -> Trace:
    """Return a trace of 16 GiB with a leaking program, until no memory is left."""
    ends = (1 - start) * 16 * GIB / (per_minute / 60)
    return Trace(name, ends, plain(16 * GIB, falling(16 * GIB, 1 - start, per_minute / 60)), "must", ends)


def sawtooth(seconds: float) -> Sample:
    """Garbage collection: 78 to 82 % every four seconds."""
    phase = seconds % 4.0
    used = 0.78 + 0.02 * (phase if phase <= 2 else 4 - phase)
    available = int((1 - used) * 16 * GIB)
    return Sample(16 * GIB, available, available // 2)


def cache_flood(seconds: float) -> Sample:
    """A file of 60 GB is written on a 120 GiB machine: free falls, available does not."""
    return Sample(120 * GIB, 115 * GIB, int(max(2 * GIB, 103 * GIB - max(0.0, seconds) * GIB)))


def thrash(seconds: float) -> Sample:
    """Almost no memory available, swap left: rules that wait for swap to run out stay silent."""
    available = int(max(8.7 * MIB, 300 * MIB - max(0.0, seconds) * 30 * MIB))
    stalled = max(0.0, seconds - 8)
    return Sample(735 * MIB, available, 8 * MIB, 0, 0, GIB, 300 * MIB, stalled * 0.25, stalled * 0.24)


def localised(seconds: float) -> Sample:
    """memory.high holds one cgroup back on a host that is 20 % full."""
    stalled = max(0.0, seconds) * 0.30
    return Sample(GIB, int(0.8 * GIB), GIB // 2, some_seconds=stalled, full_seconds=stalled)


def huge_pages(seconds: float) -> Sample:
    """48 GiB of huge pages set aside on a 62.5 GiB machine, 9.9 GiB available."""
    return Sample(int(62.5 * GIB), int(9.9 * GIB) - int(seconds), 2 * GIB, huge=48 * GIB)


def zfs(seconds: float) -> Sample:
    """A file server: 3 % available, 40 of 64 GiB in a reclaimable cache."""
    return Sample(64 * GIB, int(0.03 * 64 * GIB) + int(seconds), GIB, arc=38 * GIB)


def suspended(seconds: float) -> Sample:
    """A laptop suspends for one hour and has more programs open afterwards: this gives no rate."""
    available = 9 * GIB if seconds < 60 else 5 * GIB
    return Sample(16 * GIB, available, GIB)


def leak(seconds: float) -> Sample:
    """1 GiB an hour on 16 GiB, from 76 %."""
    available = int(16 * GIB * 0.24 - seconds / 3600 * GIB)
    return Sample(16 * GIB, available, available // 2)


def resident(seconds: float) -> Sample:
    """A machine that serves one model: constantly 92 % by design, with small variations."""
    available = int((0.08 + 0.005 * (seconds % 20 < 10)) * 122 * GIB)
    return Sample(122 * GIB, available, GIB)


# MemTotal of boards and machines of 8, 1 and 64 GB, without the memory of firmware and kernel.
BOARD, SMALL, LARGE = 7508 * MIB, 977 * MIB, 62 * GIB
TRACES = (
    loading("8 GB board, model until the end", BOARD, 0.35, 200 * MIB, 1.0, "must"),
    loading("8 GB board, model that stops at 78 %", BOARD, 0.35, 200 * MIB, 0.78, "never"),
    loading("8 GB board, model that stops at 90 %", BOARD, 0.35, 200 * MIB, 0.90, "either"),
    loading("1 GB machine, hog at 300 MiB/s", SMALL, 0.14, 300 * MIB, 1.0, "must"),
    loading("64 GB machine, hog at 2 GiB/s", LARGE, 0.20, 2 * GIB, 1.0, "must"),
    Trace("thrash with swap left", 60.0, thrash, "must", 60.0),
    Trace("page cache flood", 120.0, cache_flood, "never"),
    Trace("sawtooth for 10 minutes", 600.0, sawtooth, "never"),
    Trace("one cgroup under pressure", 120.0, localised, "never"),
    Trace("huge page pool", 120.0, huge_pages, "never"),
    Trace("ZFS cache", 120.0, zfs, "never"),
    Trace("suspend", 120.0, suspended, "never", gap=(60.0, 3660.0)),
    Trace("resident model at 92 %", 1200.0, resident, "never"),
    Trace("leak of 1 GiB an hour, first 20 minutes", 1200.0, leak, "never"),
    leaking("leak of 1 GiB a minute", 0.76, 1024 * MIB),
    leaking("leak of 256 MiB a minute", 0.86, 256 * MIB),
)
