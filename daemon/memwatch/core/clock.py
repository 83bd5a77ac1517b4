"""The three clocks of a machine, as one object that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol

from msgspec import Struct

# Wall clock and boot time are read one after the other. A larger difference means that the wall clock was set.
CLOCK_SET_SECONDS = 1.0
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Clocks in seconds. `monotonic` stops during suspend, `boottime` does not, and `wall` can jump."""

    def monotonic(self) -> float: ...

    def boottime(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """Clocks of the operating system. Without CLOCK_BOOTTIME (macOS), `boottime` is `monotonic`."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOT)

    def wall(self) -> float:
        return time.time()


class Moment(Struct, frozen=True):
    """One reading of all clocks, in seconds."""

    monotonic: float
    boottime: float
    wall: float

    @classmethod
    def of(cls, clock: Clock) -> Moment:
        """Return the current time of all clocks."""
        return cls(clock.monotonic(), clock.boottime(), clock.wall())

    @property
    def asleep_seconds(self) -> float:
        """Time in suspend since boot, to a tenth of a second; monotonic times do not include it."""
        return round(self.boottime - self.monotonic, 1)
