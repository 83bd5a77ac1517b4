"""Sender of marks and allocator reports to the daemon, in its own thread. Callers never wait."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time

from memwatch.library.daemon_client import Daemon, Json, read_url
from memwatch.library.frameworks import pools, read_stats
from memwatch.library.host import own_start_ticks
from memwatch.library.memory_pool import MemoryPool
from memwatch.library.never_raise import never_raise
from memwatch.model import Absent

MAX_WAITING = 256
RENEW_SECONDS = 10.0
# At exit, if marks are still queued.
FLUSH_SECONDS = 5.0
MAX_MARK_LENGTH = 300


class Reporter:
    """Queue of marks with a sending thread. Drops marks if the queue is full or no daemon is reachable."""

    def __init__(self, to: Daemon) -> None:
        self._to = to
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._reported_at = float("-inf")

    def mark(self, text: str) -> None:
        if self._to.is_silent:
            return
        try:
            self._waiting.put_nowait(text[:MAX_MARK_LENGTH])
        except queue.Full:
            return
        if self._thread is None:
            self._start()

    def renew(self) -> None:
        """Start reporting the pools of this process every ten seconds."""
        if self._thread is None and not self._to.is_silent:
            self._start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait up to `seconds` until all marks are sent."""
        until = time.monotonic() + seconds
        while self._thread is not None and self._waiting.unfinished_tasks and time.monotonic() < until:
            if self._to.is_silent:
                return
            time.sleep(0.005)

    def after_fork(self) -> None:
        """Reset in the child, which has no thread. The parent sends its own marks."""
        self.__init__(self._to)  # type: ignore[misc]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="memwatch-courier", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                text = self._waiting.get(timeout=RENEW_SECONDS)
            except queue.Empty:
                self._report(pools())
                continue
            self._to.post("/api/v1/marks", {"text": text, "pid": os.getpid()})
            self._waiting.task_done()
            if time.monotonic() - self._reported_at > 1.0:
                self._report(pools())

    @never_raise(None)
    def _report(self, found: list[MemoryPool]) -> None:
        self._reported_at = time.monotonic()
        start = own_start_ticks()
        if found and start is not None:
            claims = [build_report(pool) for pool in found]
            self._to.post("/api/v1/reports", {"pid": os.getpid(), "start_ticks": start, "claims": claims})


def build_report(pool: MemoryPool) -> Json:
    stats = read_stats(pool)
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "retries", "ooms")
    known = {name: getattr(stats, name) for name in names if not isinstance(getattr(stats, name), Absent)}
    return {"name": pool.backend_name[:80], "device": pool.device[:80], **known}


# Has its own Daemon: one that was too slow for a waiting caller may be fast enough for a thread.
reporter: Reporter = Reporter(Daemon(read_url(os.environ)))
atexit.register(reporter.flush)
os.register_at_fork(after_in_child=reporter.after_fork)
