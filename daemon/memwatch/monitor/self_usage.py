"""What watching costs: the daemon's own memory and processor time."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import sys
from pathlib import Path

from memwatch.linux.files import KeptFile
from memwatch.model import Absent, Bytes
from memwatch.snapshot import SelfUsage

log = logging.getLogger(__name__)

# Linux mlockall(2). ONFAULT locks pages as they are touched: 40 thread stacks cost 10 MB instead of 345 MB.
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
RESERVE_BYTES = 1 << 20


class SelfUsageReader:
    """Reads this process's own figures; keeps a spare MiB to give up when memory runs out in a tick."""

    def __init__(self) -> None:
        self.tick_duration_seconds = 0.0
        self.memory_locked = False
        self._page_size = os.sysconf("SC_PAGE_SIZE")
        self._statm = _own_statm()
        self._reserve: bytearray | None = bytearray(RESERVE_BYTES)

    def read(self, lag_seconds: float) -> SelfUsage:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return SelfUsage(
            rss_bytes=self._rss_bytes(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            tick_lag_seconds=max(0.0, lag_seconds),
            tick_duration_seconds=self.tick_duration_seconds,
            memory_locked=self.memory_locked,
        )

    def lock_memory(self) -> str | None:
        """Keep this process's pages in RAM. Returns why not, in a sentence, or None when it worked."""
        if sys.platform != "linux":
            return f"memory is not locked: {sys.platform} has no mlockall with MCL_ONFAULT"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0:
            self.memory_locked = True
            return None
        reason = os.strerror(ctypes.get_errno())
        return f"memory is not locked ({reason}): give CAP_IPC_LOCK or LimitMEMLOCK=infinity to lock it"

    @staticmethod
    def trim_memory() -> None:
        """Once, after starting: return what starting left over (0.4 MiB), and spare the collector what stays."""
        gc.collect()
        gc.freeze()
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
            if trim is not None:
                trim(0)

    def release_reserve(self) -> None:
        self._reserve = None

    def _rss_bytes(self) -> Bytes:
        if self._statm is None:
            return Absent.NOT_SUPPORTED
        return int(self._statm.read().split()[1]) * self._page_size


def _own_statm() -> KeptFile | None:
    try:
        return KeptFile(Path("/proc/self/statm"), 128)
    except OSError:
        return None
