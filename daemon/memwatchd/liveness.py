"""Liveness of the threads: the tick thread checks event loop and delivery, the event loop checks the tick thread.

A change is logged once. The watchdog is fed after a tick, if the event loop has answered the last ping and delivery
works. So each of the three ends the feeding, and no thread exists only to feed it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from memwatch.core.runtime.worker import ThreadState
from memwatch_monitor.loop import Monitor

log = logging.getLogger(__name__)

TICK, EVENT_LOOP = "tick", "event loop"
# A loop that has not run for this time is stuck. A request of the API takes up to a second on a busy machine, and a
# machine that thrashes stops a thread for several seconds.
STUCK_SECONDS = 10.0
# The event loop is woken this often for the check. Once a tick, it would cost 0.2 ms of CPU time a second.
PING_SECONDS = 5.0
# A ping postpones the check: this is longer than the time between two pings of ticks that are one second apart, so
# the event loop wakes for the pings only.
TICK_CHECK_SECONDS = PING_SECONDS + 1.5
STUCK_INTERVALS = 3.0
# A check that is later than this says nothing: the process was stopped.
LATE_SECONDS = 1.0


# While the disk hangs, alerts are delivered from memory. A new process would wait for the same disk at its start.
HARMLESS = (ThreadState.OK, ThreadState.DISK_HANGS)


def find_ill(states: Mapping[str, ThreadState]) -> list[str]:
    """Return the threads that do not work and may work after a restart of the daemon."""
    return [name for name, state in states.items() if state not in HARMLESS]


class ThreadLog:
    """Log of threads that stop working, and of those that work again: one line for each change."""

    def __init__(self) -> None:
        self._bad: dict[str, ThreadState] = {}

    def update(self, states: Mapping[str, ThreadState]) -> None:
        """Compare with the previous states. A thread that cannot be started yet is logged by its Worker."""
        bad: dict[str, ThreadState] = {
            name: state for name, state in states.items() if state not in (ThreadState.OK, ThreadState.NOT_STARTED)
        }
        for name in bad.keys() - self._bad.keys():
            log.error("thread %s does not work: %s", name, bad[name].value)
        for name in (self._bad.keys() - bad.keys()) & states.keys():
            log.warning("thread %s works again", name)
        self._bad = bad


class LoopPing:
    """Calls of the tick thread into the event loop, one at a time, and the time that the loop takes for them.

    `on_answer` is called in the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_answer: Callable[[], None]) -> None:
        self.is_answered = True
        self._loop, self._on_answer = loop, on_answer
        self._last = 0.0

    def send(self) -> None:
        """Send a ping, PING_SECONDS after the last at the earliest. Call it after every tick."""
        now = time.monotonic()
        if self.is_answered and now - self._last >= PING_SECONDS and not self._loop.is_closed():
            self._last, self.is_answered = now, False
            self._loop.call_soon_threadsafe(self._answer)

    def state(self) -> ThreadState:
        is_stuck = not self.is_answered and time.monotonic() - self._last > STUCK_SECONDS
        return ThreadState.STUCK if is_stuck else ThreadState.OK

    def _answer(self) -> None:
        self.is_answered = True
        self._on_answer()


class TickCheck:
    """Check of the tick thread, in the event loop. If that thread has ended, `leave` is called.

    A daemon without it would serve old values for ever. It exits with an error instead, so that systemd, Docker or
    Kubernetes start another one. Without these, clients notice a missing daemon earlier than old values.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        monitor: Monitor,
        is_alive: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        self._loop, self._monitor = loop, monitor
        self._is_alive, self._leave = is_alive, leave
        self._log = ThreadLog()
        self._timer: asyncio.TimerHandle | None = None
        self.has_ended = False

    def schedule(self) -> None:
        """Check after TICK_CHECK_SECONDS, in place of a check that is scheduled already."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(TICK_CHECK_SECONDS, self._check)

    def on_ping(self) -> None:
        """Postpone the check: the tick thread has just called. Call it in the event loop."""
        self._log.update({TICK: self._state()})
        self.schedule()

    def _check(self) -> None:
        if not self._is_alive():
            self.has_ended = True
            log.critical("the sampling thread has ended: memwatchd exits; restart it")
            self._leave()
            return
        if self._timer is None or self._loop.time() - self._timer.when() < LATE_SECONDS:
            self._log.update({TICK: self._state()})
        self.schedule()

    def _state(self) -> ThreadState:
        age, interval = self._monitor.age_seconds(), self._monitor.rules.interval_seconds
        allowed = max(STUCK_INTERVALS * interval, STUCK_SECONDS)
        return ThreadState.STUCK if age is not None and age > allowed else ThreadState.OK
