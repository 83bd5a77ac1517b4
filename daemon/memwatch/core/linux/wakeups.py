"""Sleep until the next tick is due, or until the kernel reports an event."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

# A watch is not polled for this time after an event: the next lines of one report are read together, and a flood
# of events takes at most twenty ticks a second.
MIN_REST_SECONDS, MAX_REST_SECONDS = 0.005, 0.05
# Time between news and the tick: collectors with a thread read them, and a report becomes complete.
HURRY_SECONDS = 0.01
# Interval of looking for new watches: a collector may become available.
LOOK_SECONDS = 1.0
# Maximum fraction of one CPU for reading the events of one watch.
MAX_CPU_RATIO = 0.05


class Wake(IntEnum):
    """Reason why a wait ended: it was over, the kernel reported an event, or tasks stall on memory."""

    DUE = 0
    NEWS = 1
    STALL = 2


@runtime_checkable
class Watch(Protocol):
    """A file of the kernel that reports events. `event_file` is -1 if it cannot or can no longer be watched."""

    event_mask: int

    @property
    def event_file(self) -> int: ...

    def read_event(self, happened: int) -> Wake:
        """Read all that is new. Return `DUE` if no sample is needed. `happened`: events from poll(2)."""
        ...


class Sleep(Protocol):
    """Wait for the next tick. After `NEWS` or `STALL` a sample should be taken at once; `wake` ends the wait."""

    def wait(self, seconds: float, stop: threading.Event) -> Wake: ...

    def wake(self) -> None: ...


class Source(Struct):
    """A watch with its file, and the pause after its last event."""

    watch: Watch
    file: int
    rest_seconds: float = MIN_REST_SECONDS
    rests_until: float = 0.0

    def read_event(self, happened: int) -> Wake:
        started = time.monotonic()
        wake = self.watch.read_event(happened)
        ended = time.monotonic()
        is_busy = started - self.rests_until < self.rest_seconds
        self.rest_seconds = min(MAX_REST_SECONDS, 2 * self.rest_seconds) if is_busy else MIN_REST_SECONDS
        if wake:
            self.rest_seconds = MAX_REST_SECONDS
        self.rests_until = ended + max(self.rest_seconds, (ended - started) / MAX_CPU_RATIO)
        return wake


class Wakeups:
    """All watches. Call `wait` from one thread; `wake` is thread-safe.

    `more` returns watches that may appear later. `on_news` is called shortly before `wait` returns because of news.
    """

    def __init__(
        self,
        watches: Sequence[Watch] = (),
        more: Callable[[], Sequence[Watch]] = lambda: (),
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self._watches, self._more, self._on_news = watches, more, on_news
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._polled: dict[int, Source] = {}
        self._resting: list[Source] = []
        self._is_woken = False
        self._look_at = -math.inf

    def wait(self, seconds: float, stop: threading.Event) -> Wake:
        """Sleep for up to `seconds`. Return early after an event, and `DUE` early after `stop` and `wake`."""
        wake = self._wait(seconds, stop)
        if wake is Wake.NEWS:
            self._on_news()
            wake = max(wake, self._wait(HURRY_SECONDS, stop))
        return wake

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._waker, b"!")

    def close(self) -> None:
        """Close the pipe of `wake`, which may still be called. No thread may wait."""
        woken, self._woken, waker, self._waker = self._woken, -1, self._waker, -1
        os.close(woken)
        os.close(waker)

    def _wait(self, seconds: float, stop: threading.Event) -> Wake:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._add_new()
        until = now + seconds
        while not stop.is_set():
            wait_until = self._end_rests(now, until) if self._resting else until
            happened = self._poll.poll(max(0.0, (wait_until - now) * 1000))
            if happened:
                wake = max([self._read(file, events) for file, events in happened])
                if wake or self._is_woken:
                    return wake
            elif wait_until == until:
                break
            now = time.monotonic()
        return Wake.DUE

    def _add_new(self) -> None:
        for watch in (*self._watches, *self._more()):
            file = watch.event_file
            if file >= 0 and file not in self._polled and all(file != source.file for source in self._resting):
                self._start(Source(watch, file))

    def _start(self, source: Source) -> None:
        self._polled[source.file] = source
        self._poll.register(source.file, source.watch.event_mask)

    def _end_rests(self, now: float, until: float) -> float:
        """Poll the sources again whose rest is over. Return `until`, or the earlier end of another rest."""
        resting, self._resting = self._resting, []
        for source in resting:
            if source.rests_until <= now:
                self._start(source)
            else:
                self._resting.append(source)
                until = min(until, source.rests_until)
        return until

    def _read(self, file: int, happened: int) -> Wake:
        if file == self._woken:
            self._is_woken = True
            return Wake.DUE
        source = self._polled.pop(file)
        self._poll.unregister(file)
        wake = source.read_event(happened)
        if source.watch.event_file == file:
            self._resting.append(source)
        return wake
