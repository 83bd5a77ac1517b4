"""Self usage: memory and CPU time of the daemon."""

from __future__ import annotations

import math
import os
import resource
import sys
from pathlib import Path

from memwatch.core.linux.files import KeptFile
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import SelfUsage

# Linux mlockall(2). ONFAULT locks pages as they are touched: 40 thread stacks cost 10 MB instead of 345 MB.
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
RESERVE_BYTES = 1 << 20
# Ticks come some milliseconds early: one each second reads again.
MAX_AGE_SECONDS = 0.9


class SelfUsageReader:
    """Reader of the self usage. It holds a reserve of 1 MiB to release when a tick runs out of memory."""

    def __init__(self) -> None:
        self.tick_duration_seconds: float = 0.0
        self.memory_locked: bool = False
        # The reason why `lock_memory` failed. None if it was not called, or succeeded.
        self.lock_error: str | None = None
        self._page_size = os.sysconf("SC_PAGE_SIZE")
        self._statm = _own_statm()
        # Zeros of calloc(3): address space, which is what an allocation lacks when it fails, without pages of RAM.
        self._reserve: bytes | None = bytes(RESERVE_BYTES)
        self._read_at = -math.inf
        self._rss: Bytes = Absent.NOT_AVAILABLE
        # Address space at the latest reading.
        self.virtual_bytes: Bytes = Absent.NOT_AVAILABLE
        self._cpu_seconds = 0.0

    def read(self, now: float, lag_seconds: float) -> SelfUsage:
        """Return the self usage at `now` (monotonic). On fast ticks memory and CPU time are up to a second old."""
        if not 0.0 <= now - self._read_at < MAX_AGE_SECONDS:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._read_at, self._rss, self._cpu_seconds = now, self._rss_bytes(), usage.ru_utime + usage.ru_stime
        return SelfUsage(
            rss_bytes=self._rss,
            cpu_seconds=self._cpu_seconds,
            tick_lag_seconds=max(0.0, lag_seconds),
            tick_duration_seconds=self.tick_duration_seconds,
            memory_locked=self.memory_locked,
        )

    def close(self) -> None:
        if self._statm is not None:
            self._statm.close()

    def lock_memory(self) -> str | None:
        """Lock the pages of this process in RAM. Return None, or a message if that failed."""
        if sys.platform != "linux":
            return f"memory is not locked: {sys.platform} has no mlockall with MCL_ONFAULT"
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0:
            self.memory_locked = True
            return None
        self.lock_error = f"memory is not locked ({os.strerror(ctypes.get_errno())})"
        return f"{self.lock_error}: give CAP_IPC_LOCK or LimitMEMLOCK=infinity to lock it"

    @staticmethod
    def trim_memory() -> None:
        """Return memory left over from startup (0.4 MiB), and exclude the rest from garbage collection.

        Call once after startup.
        """
        import gc

        from memwatch.core.runtime.own_process import trim_heap  # with ctypes, which a reading does without

        gc.collect()
        gc.freeze()
        trim_heap()

    def release_reserve(self) -> None:
        self._reserve = None

    def _rss_bytes(self) -> Bytes:
        if self._statm is None:
            return Absent.NOT_SUPPORTED
        virtual, resident, _ = self._statm.read().split(b" ", 2)
        self.virtual_bytes = int(virtual) * self._page_size
        return int(resident) * self._page_size


def _own_statm() -> KeptFile | None:
    try:
        return KeptFile(Path("/proc/self/statm"), 128)
    except OSError:
        return None
