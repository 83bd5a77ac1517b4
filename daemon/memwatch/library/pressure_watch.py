"""Callbacks when the machine's pressure passes a level, from the daemon's event stream or by polling."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from memwatch.core.http import GetError
from memwatch.core.model import OWN_LIMIT, RAM, Absent, Pool
from memwatch.core.printable import printable
from memwatch.core.snapshot import Level
from memwatch.library.daemon_client import Daemon, daemon
from memwatch.library.frameworks import shrink
from memwatch.library.host import CgroupLimit, Host, host, own_limit
from memwatch.library.machine import list_gpu_pools
from memwatch.library.program_safety import log_once, never_raise
from memwatch.planning.arguments import check_choice, check_function

# The stream sends an event at each tick, at most a minute apart.
STREAM_SECONDS = 70.0
RETRY_SECONDS = 1.0
MAX_LINE_BYTES = 1 << 20
# Interval of reading this process's limit, and of checking for one if there is none.
LIMIT_SECONDS, NO_LIMIT_SECONDS = 1.0, 60.0
# The daemon's default thresholds, for use without a daemon: used fractions of System RAM, a GPU or the limit.
THRESHOLDS = ((0.95, Level.CRITICAL), (0.80, Level.HIGH), (0.60, Level.MEDIUM))


class PressureChange(Struct, frozen=True):
    """A change of level. `target`: a pool, a limited share, or `own_limit`. `rising`: worse than before."""

    target: str
    level: str
    previous: str
    ratio: float
    reasons: tuple[str, ...]

    @property
    def rising(self) -> bool:
        return Level[self.level.upper()] > Level[self.previous.upper()]


Callback = Callable[[PressureChange], object]


class PressureWatch:
    """A thread that calls back when a target reaches or leaves `level` or changes above it, until it is stopped.

    `own_limit`: the limit of this process's container, unit or job, which a daemon outside of it does not read.
    """

    def __init__(
        self,
        callback: Callback,
        level: str,
        of: Daemon,
        here: Host,
        limit: Callable[[], CgroupLimit | None] = own_limit,
        gpus: Callable[[], Iterable[Pool]] = list_gpu_pools,
    ) -> None:
        check_function(callback, "callback", "print")
        check_choice(level, "level", [one.word for one in Level], "high")
        self._callback = never_raise(None)(callback)
        self._min_level = Level[level.upper()]
        self._of = of
        self._here = here
        self._limit = limit
        self._gpus = gpus
        self._limit_due = 0.0
        self._levels: dict[str, Level] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memwatch-pressure", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def see(self, target: str, level: Level, ratio: float, reasons: tuple[str, ...]) -> None:
        before = self._levels.get(target, Level.LOW)
        self._levels[target] = level
        if level != before and max(level, before) >= self._min_level and not self._stop.is_set():
            self._callback(PressureChange(target, level.word, before.word, ratio, reasons))

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._follow():
                self._look()
            self._stop.wait(RETRY_SECONDS)

    @never_raise(False)
    def _follow(self) -> bool:
        """Handle the daemon's events until the stream ends. Returns True if there was any event."""
        received = False
        for event, data in self._events():
            received = True
            if event == "pressure":
                for record in json.loads(data):
                    self._see_record(record)
            self._look_at_limit()
            if self._stop.is_set():
                break
        return received

    def _events(self) -> Iterator[tuple[str, str]]:
        if self._of.is_silent:
            return
        try:
            with self._of.stream("/api/v1/stream?events=pressure", STREAM_SECONDS) as response:
                if response.status == 200:
                    yield from parse_events(response)
        except GetError as error:
            log_once(str(error))
            self._of.rest()
        except OSError:
            self._of.rest()

    def _see_record(self, record: Mapping[str, Any]) -> None:
        reasons = tuple(printable(str(reason["text"])) for reason in record["reasons"])
        self.see(
            printable(str(record["target"])), Level[str(record["level"]).upper()], float(record["ratio"]), reasons
        )

    def _look(self) -> None:
        if self._of.is_here:
            self._look_at_machine()
        self._look_at_limit()

    def _look_at_machine(self) -> None:
        ram = self._here.ram()
        if not isinstance(ram, Absent) and ram.total_bytes:
            ratio = 1 - ram.available_bytes / ram.total_bytes
            self.see(RAM, level_of(ratio), ratio, (f"{ratio:.1%} used",))
        for pool in self._gpus():
            if isinstance(pool.used_bytes, int) and pool.size_bytes:
                ratio = pool.used_bytes / pool.size_bytes
                self.see(pool.id, level_of(ratio), ratio, (f"{ratio:.1%} used",))

    def _look_at_limit(self) -> None:
        now = time.monotonic()
        if now < self._limit_due:
            return
        limit = self._limit()
        self._limit_due = now + (LIMIT_SECONDS if limit else NO_LIMIT_SECONDS) * 0.9  # ticks may be slightly early
        if limit is not None and limit.size_bytes:
            ratio = 1 - limit.left_bytes / limit.size_bytes
            self.see(OWN_LIMIT, level_of(ratio), ratio, (f"{ratio:.1%} of the {limit.name} used",))


def level_of(ratio: float) -> Level:
    return next((level for least, level in THRESHOLDS if ratio >= least), Level.LOW)


def parse_events(lines: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  a file of lines
    """Parse server-sent events into (event, data)."""
    event, data = "message", ""
    while line := lines.readline(MAX_LINE_BYTES).decode("utf-8", "replace"):
        name, _, value = line.rstrip("\r\n").partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")
        elif not line.strip():
            yield event, data
            event, data = "message", ""


def on_pressure(callback: Callback, level: str = "high") -> PressureWatch:
    """Call `callback` on changes of level, within a tick of the daemon or within two seconds without one.

    Without a daemon the targets are System RAM, this process's limit and, if a framework uses a GPU, the memory of
    all GPUs. While a daemon of another machine (MEMWATCH_URL) does not answer, it is the limit alone.
    Raises InvalidInputError for an unknown level, and for what is no function.
    """
    return PressureWatch(callback, level, daemon, host)


def shrink_on_pressure(level: str = "high") -> PressureWatch:
    """Shrink every pool of this process when the machine's pressure rises to a level. Raises InvalidInputError."""
    return on_pressure(lambda change: change.rising and shrink(), level)
