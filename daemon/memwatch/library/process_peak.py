"""Peak of this process's resident set, as the kernel counts it. A read takes 1 µs in most cases."""

from __future__ import annotations

import os
import re
import sys

from memwatch.core.model import Absent, Bytes

if sys.platform != "win32":
    import resource

# `memwatch run` sets it: a reset would also lower the peak that it reports for this process.
KEEP_PEAK = "MEMWATCH_KEEP_PEAK"
HIGH_WATER = re.compile(rb"^VmHWM:\s+(\d{1,15}) kB$", re.MULTILINE)
# Both sum pages of several CPUs, ru_maxrss without those that a CPU has not handed in yet.
SLACK_BYTES = 1 << 20
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class ProcessPeak:
    """Reader of the kernel's high-water mark (VmHWM).

    ru_maxrss is the greater of VmHWM and the peak of the program that this process ran before its last exec. At
    `_clean` or above it is VmHWM. Only below, /proc/self/status, 15 µs, is read as well.
    """

    name = "process"

    def __init__(self) -> None:
        self._clean: int | None = None
        self.can_reset: bool = True

    def read(self) -> tuple[Bytes, ...]:
        peak = read_maxrss()
        if isinstance(peak, Absent) or (self._clean is not None and peak >= self._clean):
            return (peak,)
        high_water = read_high_water()
        if isinstance(high_water, Absent):
            return (peak,)
        self._clean = peak - SLACK_BYTES if high_water >= peak - SLACK_BYTES else peak + 1
        return (high_water,)

    def reset(self) -> bool:
        """Set the high-water mark to the current resident set. False where that is not permitted."""
        self.can_reset = KEEP_PEAK not in os.environ and _clear_refs()
        return self.can_reset


def _clear_refs() -> bool:
    try:
        file = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(file, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(file)


def read_maxrss() -> Bytes:
    if sys.platform == "win32":
        return Absent.NOT_SUPPORTED
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def read_high_water() -> Bytes:
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:
            found = HIGH_WATER.search(file.read(4096))
    except OSError:
        return Absent.NOT_AVAILABLE
    return int(found[1]) << 10 if found else Absent.NOT_SUPPORTED
