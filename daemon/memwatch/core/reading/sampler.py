"""Runs the collectors. Failure, duration and age of each are reported, and a slow one does not delay a tick."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Protocol

from memwatch.core.accounting.compose import Composer
from memwatch.core.clock import Clock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, look_for
from memwatch.core.linux.wakeups import Watch
from memwatch.core.model import Absent
from memwatch.core.reading.collector_runner import SIGNS_SECONDS, CollectorRunner
from memwatch.core.snapshot import CollectorStatus

log: logging.Logger = logging.getLogger(__name__)

# Ticks come some milliseconds early or late: a collector due within this time runs now. Fast ticks are 0.1 s
# apart.
EARLY_SECONDS = 0.05
# Deadline of the first runs of collectors that may block. NVML opens in 0.1 to 1 s, or hangs.
FIRST_SECONDS = 2.0
# They count what the kernel reports by an event: OOM kills and errors of drivers.
EVENT_COLLECTORS = frozenset({"kmsg", "vmstat", "cgroup"})
# It finds the cgroup of a kill that was counted.
KILL_COLLECTOR = "cgroup_kills"

# A run that takes longer may be stuck in the kernel for ever: another thread with a new collector takes its place.
STUCK_SECONDS = 60.0
# Stuck threads of one collector. Each is a task of the unit, and may hold a file.
MAX_STUCK_THREADS = 2

# The two parts of a collector's current result.
FINDINGS, STATUS = itemgetter(0), itemgetter(1)


class Gatherer(Protocol):
    """Interface of the data: the collectors of this machine, or a recording."""

    def start(self) -> None: ...

    def gather(self) -> tuple[Findings, tuple[CollectorStatus, ...]]: ...

    def moved_bytes(self) -> float: ...

    def set_fast(self, is_fast: bool) -> None: ...

    def wait_for_first(self, seconds: float) -> None: ...

    def release(self, seconds: float) -> list[str]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Sampler:
    """All collectors. Ticks run the fast ones; each one that may block has its own thread.

    The threads call `wait` with their event and the seconds until their next run.
    """

    def __init__(
        self,
        entry: Sequence[CollectorEntry],
        clock: Clock,
        wait: Callable[[threading.Event, float | None], object] = threading.Event.wait,
    ) -> None:
        self.runners: list[CollectorRunner] = [CollectorRunner(entry, clock) for entry in entry]
        self._composer = Composer()
        self._wait_for = wait
        self._clock = clock
        self._quick = [runner for runner in self.runners if not runner.entry.may_block]
        self._slow = [runner for runner in self.runners if runner.entry.may_block]
        self._stop = threading.Event()
        self._spacing, self._gathered_at = math.inf, -math.inf  # seconds between the last two ticks
        self._signs_at = -math.inf
        self._is_fast = False
        self._kills: int | Absent = Absent.NOT_AVAILABLE
        # One for each thread: a kill would wake 15 threads otherwise, of which one has something to do.
        self._changed = {runner: threading.Event() for runner in self._slow}
        self._threads = {runner: self._create_thread(runner) for runner in self._slow}
        self._stuck: dict[str, list[threading.Thread]] = {}

    def start(self) -> None:
        """Start all threads. Later ones replace those that are stuck."""
        for thread in self._threads.values():
            thread.start()

    def _create_thread(self, runner: CollectorRunner) -> threading.Thread:
        name = f"collect-{runner.entry.name}"
        return threading.Thread(target=self._serve, args=(runner,), name=name, daemon=True)

    def gather(self) -> tuple[Findings, tuple[CollectorStatus, ...]]:
        """Return the findings and status of every collector.

        Runs the fast collectors while helper processes prepare responses. Uses the latest results of the others.
        """
        now = self._clock.monotonic()
        soon, self._spacing, self._gathered_at = now + EARLY_SECONDS, now - self._gathered_at, now
        self._replace_stuck(now)
        on_tick = [runner for runner in self._slow if runner.on_tick]
        try:
            # First, so that the responses are there when the tick needs them: a wait for one is another wake-up.
            requested = [runner for runner in on_tick if runner.send_request(soon, self._spacing)]
            self._check_signs(now)
            self._wake([one for one in self._slow if one.has_news is not None and one.hurry_for_news(now)])
            for runner in self._quick:
                if runner.due <= soon:
                    runner.run()
            for runner in requested:
                runner.run_if_answered()
        finally:  # also if the tick ran out of memory: wake the threads that are responsible again
            self._wake(runner for runner in on_tick if not runner.on_tick)
        now = self._clock.monotonic()
        # Most collectors do not apply to a machine: no call for them.
        results = [one.known if one.known_of is one.result else one.current(now) for one in self.runners]
        found = self._composer.compose(tuple(map(FINDINGS, results)))
        self._explain_kills(found)
        return found, tuple(map(STATUS, results))

    def _replace_stuck(self, now: float) -> None:
        for place, runner in enumerate(self._slow):
            since = runner.running_since  # which its thread changes
            if since is not None and now - since >= STUCK_SECONDS:
                self._replace(place, runner)

    def _replace(self, place: int, runner: CollectorRunner) -> None:
        """Give a collector whose run does not end another thread. If none can be started, the next tick retries."""
        name = runner.entry.name
        stuck = [thread for thread in self._stuck.get(name, []) if thread.is_alive()]
        if len(stuck) >= MAX_STUCK_THREADS:
            return
        attempt = f"{len(stuck) + 1} of {MAX_STUCK_THREADS}"
        fresh = runner.create_replacement(attempt)
        self._changed[fresh], thread = threading.Event(), self._create_thread(fresh)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            del self._changed[fresh]
            return
        self.runners[self.runners.index(runner)] = self._slow[place] = fresh
        self._stuck[name] = [*stuck, self._threads.pop(runner)]
        self._threads[fresh] = thread
        runner.is_abandoned = True
        self._wake([runner])
        log.warning(
            "collector %s has not responded for %g s, trying another thread, %s", name, STUCK_SECONDS, attempt
        )

    def _explain_kills(self, found: Findings) -> None:
        """Run the collector that finds the cgroups of kills now if a kill was counted."""
        before, self._kills = self._kills, found.kernel.oom_kills_total if found.kernel else self._kills
        if self._kills != before and not isinstance(before, Absent):
            explaining = [runner for runner in self._slow if runner.entry.name == KILL_COLLECTOR]
            for runner in explaining:
                runner.hurry()
            self._wake(explaining)

    def _check_signs(self, now: float) -> None:
        if now - self._signs_at < SIGNS_SECONDS:
            return
        self._signs_at = now
        without = [(runner, runner.missing_signs()) for runner in self.runners]
        seen = {path: look_for(path) for path in {path for _, paths in without for path in paths}}
        self._wake([runner for runner, paths in without if paths and runner.check_signs(seen)])

    def _wake(self, runners: Iterable[CollectorRunner]) -> None:
        """Let the threads of these collectors look again when they are due. Those without a thread have none."""
        for runner in runners:
            changed = self._changed.get(runner)
            if changed is not None:
                changed.set()

    def moved_bytes(self) -> float:
        """Return how far available memory fell since the last `gather`, in bytes, at low cost; infinity if unknown.

        Negative after a rise. Integrated GPUs and containers change the available system RAM like all other
        processes. A limit that a thread reads counts as soon as the thread has read it.
        """
        watchers = [runner.movement_probe for runner in self._quick if runner.movement_probe is not None]
        if not watchers:
            return math.inf
        try:
            moved: list[float] = [watcher.moved_bytes() for watcher in watchers]
            moved += [runner.moved_bytes() for runner in self._slow if runner.result is not runner.last_read]
            return max(moved, key=abs)
        except (OSError, ParseError, MemoryError):  # the next tick reports the cause
            return math.inf

    def set_fast(self, is_fast: bool) -> None:
        """Run collectors that support it more often, starting now and not after their current pause."""
        if is_fast == self._is_fast:
            return
        self._is_fast = is_fast
        for runner in self.runners:
            runner.is_fast = is_fast
        # The others wait for the same time at any pace. After fast mode, each waits once more for the old one.
        self._wake([runner for runner in self._slow if is_fast and runner.is_sooner_if_fast])

    def hurry(self) -> None:
        """Run the collectors of the kernel's events at the next tick, and those with a thread now."""
        hurried = [runner for runner in self.runners if runner.entry.name in EVENT_COLLECTORS]
        for runner in hurried:
            runner.hurry()
        self._wake(hurried)

    def watches(self) -> list[Watch]:
        """Return the collectors whose files report events. Call from the thread that ticks."""
        return [runner.watch for runner in self._quick if runner.watch is not None]

    def wait_for_first(self, seconds: float) -> None:
        """Wait until every collector that may block has run once, at most `seconds`.

        Before the drivers have reported their GPUs, MemTotal may contain memory that is not System RAM, and device
        ids may still change. So no client may get an earlier snapshot.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(runner.result.state == "starting" for runner in self._slow):
            time.sleep(0.005)

    def release(self, seconds: float) -> list[str]:
        """Release all devices for `seconds`. Return the names of the collectors that will, within one period."""
        return [runner.entry.name for runner in self.runners if runner.release(seconds)]

    def stop(self) -> None:
        self._stop.set()
        self._wake(self._slow)
        for thread in self._threads.values():
            if thread.is_alive():
                thread.join(timeout=0.5)

    def close(self) -> None:
        """Stop, and close the files of the collectors without a thread. Call from the thread that ticks."""
        self.stop()
        for runner in self._quick:
            runner.close()

    def _is_served(self, runner: CollectorRunner) -> bool:
        return not self._stop.is_set() and not runner.is_abandoned

    def _serve(self, runner: CollectorRunner) -> None:
        while self._is_served(runner):
            try:
                runner.run()
            except MemoryError:  # not even the result could be stored
                runner.postpone()
            self._wait(runner)
        del self._changed[runner]
        runner.close()

    def _wait(self, runner: CollectorRunner) -> None:
        """Wait until the run is due, 10 ms at least. While ticks run the collector, wait until one returns it."""
        least, changed = 0.01, self._changed[runner]
        changed.clear()
        runner.on_tick = runner.is_prompt(self._spacing)
        while self._is_served(runner):
            if runner.on_tick:
                self._wait_for(changed, None)
            elif (left := max(runner.seconds_until_due(), least)) > 0:
                self._wait_for(changed, left)
                least = 0.0
            else:
                return
            changed.clear()  # before the next look: a change after it is seen there, or ends the next wait
