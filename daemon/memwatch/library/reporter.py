"""Sender of marks and allocator reports to the daemon, in its own thread. Callers never wait."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue

from memwatch.core.events import MAX_MARK_LENGTH
from memwatch.core.linux.process_files import read_start_ticks
from memwatch.core.model import Absent
from memwatch.library.daemon_client import Daemon, Json, read_url
from memwatch.library.frameworks import pools, read_stats
from memwatch.library.machine_record import Machine
from memwatch.library.memory_pool import MemoryPool
from memwatch.library.program_safety import importing, never_raise
from memwatch.library.visible_gpus import DeviceError

MAX_WAITING = 256
RENEW_SECONDS = 10.0
# At exit, if marks are still queued.
FLUSH_SECONDS = 5.0
MAX_NAMES = 64


class Reporter:
    """Queue of marks with a sending thread. Drops marks if the queue is full or no daemon is reachable."""

    def __init__(self, to: Daemon) -> None:
        self._to = to
        # Neither has a lock, unlike queue.Queue: a signal handler may set a mark within a call.
        self._waiting: deque[str] = deque()
        self._sent = 0
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._reported_at = float("-inf")
        self._identities: dict[str, str | None] = {}

    def mark(self, text: str) -> None:
        if self._to.is_silent or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(text[:MAX_MARK_LENGTH])
        self._wake.put(None)
        if self._thread is None:
            self._start()

    def renew(self) -> None:
        """Start reporting the pools of this process every ten seconds."""
        if self._thread is None and not self._to.is_silent:
            self._start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait up to `seconds` until the marks set so far are sent. Other threads may set more meanwhile."""
        until = time.monotonic() + seconds
        last = len(self._waiting) + self._sent
        while self._thread is not None and self._waiting and self._sent < last and time.monotonic() < until:
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
                self._wake.get(timeout=RENEW_SECONDS)
            except Empty:
                self._report(pools())
                continue
            self._to.post("/api/v1/marks", {"text": self._waiting[0], "pid": os.getpid()})
            self._waiting.popleft()
            self._sent += 1
            if time.monotonic() - self._reported_at > 1.0:
                self._report(pools())

    @never_raise(None)
    def _report(self, found: list[MemoryPool]) -> None:
        self._reported_at = time.monotonic()
        start = read_start_ticks(Path("/proc/self"))
        if found and start is not None:
            claims = [build_report(pool, self._find_identity(pool.device)) for pool in found]
            self._to.post("/api/v1/reports", {"pid": os.getpid(), "start_ticks": start, "claims": claims})

    @never_raise(None)
    def _find_identity(self, name: str) -> str | None:
        """Return the UUID or PCI address of the GPU that this program means by a name, None if it is no GPU's."""
        with importing:
            from memwatch.library.machine import from_daemon  # 20 ms, spent in this thread

        if name not in self._identities and len(self._identities) < MAX_NAMES:
            found = from_daemon(self._to)
            if found is not None:
                self._identities[name] = identify(found, name)
        return self._identities.get(name)


def identify(machine: Machine, name: str) -> str | None:
    try:
        target = machine.find(name)
    except DeviceError:
        return None  # a registered pool may have any name
    return None if target is None else target.identity


def build_report(pool: MemoryPool, identity: str | None = None) -> Json:
    stats = read_stats(pool)
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "retries", "ooms")
    known = {name: getattr(stats, name) for name in names if not isinstance(getattr(stats, name), Absent)}
    known |= {} if identity is None else {"gpu": identity}
    return {"name": pool.backend_name[:80], "device": pool.device[:80], **known}


# Has its own Daemon: one that was too slow for a waiting caller may be fast enough for a thread.
reporter: Reporter = Reporter(Daemon(read_url(os.environ)))
atexit.register(reporter.flush)
os.register_at_fork(after_in_child=reporter.after_fork)
