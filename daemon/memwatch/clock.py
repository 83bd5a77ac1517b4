"""The three clocks of a machine, as one argument: tests bring their own."""

from __future__ import annotations

import time
from typing import Protocol

from msgspec import Struct

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Seconds. `monotonic` stands still in suspend, `boottime` does not, `wall` can jump anywhere."""

    def monotonic(self) -> float: ...

    def boottime(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's own. Where there is no CLOCK_BOOTTIME (macOS), `boottime` is `monotonic`."""

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

    @property
    def asleep_seconds(self) -> float:
        """How long the machine was suspended since its boot, to a tenth; monotonic times lack it."""
        return round(self.boottime - self.monotonic, 1)
