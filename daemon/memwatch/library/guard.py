"""A memory limit with callbacks when usage nears or passes it. For shared machines and GPUs that swap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from msgspec import Struct

from memwatch.core.model import Absent, Bytes
from memwatch.core.units import size
from memwatch.library.frameworks import total_stats
from memwatch.library.host import rss_bytes
from memwatch.library.memory_release import clear
from memwatch.library.program_safety import log, never_raise
from memwatch.planning.arguments import check_function, check_interval, parse_bytes, refuse

# A callback is called again only after usage fell this far below its threshold.
REARM_RATIO = 0.05


class Usage(Struct, frozen=True):
    """Usage of a limit. `ratio` may be above 1."""

    used_bytes: int
    limit_bytes: int

    @property
    def ratio(self) -> float:
        return self.used_bytes / self.limit_bytes


Callback = Callable[[Usage], object]


def used_bytes() -> Bytes:
    """Return the bytes reserved by this process's allocators, or its resident set without allocators."""
    stats = total_stats()
    return rss_bytes() if stats is None else stats.reserved_bytes


class Guard:
    """A thread that checks usage at intervals until it is stopped. It calls back, and enforces nothing.

    `clear_at`: fraction of the limit above which unused memory of the allocators is released, with `clear`.
    """

    def __init__(
        self,
        limit: str | int,
        warn_at: float = 0.9,
        on_warn: Callback | None = None,
        on_limit: Callback | None = None,
        interval: float = 0.5,
        measure: Callable[[], Bytes] = used_bytes,
        clear_at: float | None = None,
    ) -> None:
        self.limit_bytes: int = parse_bytes(limit, "limit")
        _check_ratio("warn_at", warn_at)
        if clear_at is not None:
            _check_ratio("clear_at", clear_at)
        check_interval(interval)
        for name, callback in (("on_warn", on_warn), ("on_limit", on_limit)):
            if callback is not None:
                check_function(callback, name, "print")
        self._callback = {warn_at: on_warn, 1.0: on_limit}
        self._armed = dict.fromkeys(self._callback, True)
        self._clear_at, self._may_clear = clear_at, True
        self._interval = interval
        self._measure = measure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memwatch-guard", daemon=True)
        _active.append(self)
        self._thread.start()

    def check(self) -> Usage | None:
        """Check now and return the usage, None if it is not known. After a clear it is the remaining usage."""
        used = self._clear_near_limit(self._measure())
        if isinstance(used, Absent):
            return None
        usage = Usage(used, self.limit_bytes)
        for threshold in self._callback:
            self._judge(usage, threshold)
        return usage

    def stop(self) -> None:
        self._stop.set()
        if self in _active:
            _active.remove(self)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _clear_near_limit(self, used: Bytes) -> Bytes:
        """Return the usage after a clear. If much is in use, the next clear comes after usage fell."""
        if self._clear_at is None or isinstance(used, Absent):
            return used
        if self._may_clear and used >= self._clear_at * self.limit_bytes:
            clear()
            before, used = used, self._measure()
            released = size(max(0, before - used)) if isinstance(used, int) else "an unknown size"
            limit = f"{before / self.limit_bytes:.0%} of the limit of {size(self.limit_bytes)}"
            log.warning("usage is %s: cleared %s", limit, released)
            self._may_clear = False
        if isinstance(used, int) and used < (self._clear_at - REARM_RATIO) * self.limit_bytes:
            self._may_clear = True
        return used

    def _judge(self, usage: Usage, threshold: float) -> None:
        callback = self._callback[threshold]
        if usage.ratio >= threshold and self._armed[threshold]:
            self._armed[threshold] = False
            if callback is not None:
                callback(usage)
        elif usage.ratio < threshold - REARM_RATIO:
            self._armed[threshold] = True

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._check_or_log()

    @never_raise(None)
    def _check_or_log(self) -> None:
        self.check()


_active: list[Guard] = []


def guard(
    limit: str | int,
    warn_at: float = 0.9,
    on_warn: Callback | None = None,
    on_limit: Callback | None = None,
    interval: float = 0.5,
    *,
    clear_at: float | None = None,
) -> Guard:
    """Watch a limit such as "20GiB" until `stop()` or the end of a `with` block. Raises InvalidInputError.

    With `clear_at` (0.95), unused memory of all allocators is released once when usage rises above that fraction,
    before `on_limit` is called. A thread does it, which no step waits for. Do not use it while a CUDA graph is
    captured: freeing memory ends the capture.
    """
    return Guard(limit, warn_at, on_warn, on_limit, interval, clear_at=clear_at)


def _check_ratio(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise refuse(value, name, "between 0 and 1", "0.9")


def limit_bytes() -> int | None:
    """Return the limit in force, the newest of several."""
    return _active[-1].limit_bytes if _active else None
