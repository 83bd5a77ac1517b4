"""Tells a program when the machine's pressure passes a level: by the daemon's stream, else by looking itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from memwatch.library.cgroup_limit import Limit, own_limit
from memwatch.library.daemon_client import Daemon, daemon
from memwatch.library.frameworks import shrink_all
from memwatch.library.host import Host, host
from memwatch.library.never_raise import harmless
from memwatch.model import Absent
from memwatch.planning.sizes import BadInput
from memwatch.snapshot import Level

# The stream says something at each tick, at most a minute apart.
STREAM_SECONDS = 70.0
RETRY_SECONDS = 1.0
LONGEST_LINE = 1 << 20
# Not "cgroup": that is the limit that the daemon lives under, which may be another container's.
OWN_LIMIT = "own_limit"
# Between two looks at the own limit; and where there is none, whether there is one now.
LIMIT_SECONDS, NO_LIMIT_SECONDS = 1.0, 60.0
# The daemon's own defaults, for use without one: levels by the used part of System RAM, or of the own limit.
THRESHOLDS = ((0.95, Level.CRITICAL), (0.80, Level.HIGH), (0.60, Level.MEDIUM))


class PressureChange(Struct, frozen=True):
    """`target` is a pool, a limited share, or `own_limit`. `rising`: whether it is worse than before."""

    target: str
    level: str
    previous: str
    ratio: float
    reasons: tuple[str, ...]

    @property
    def rising(self) -> bool:
        return Level[self.level.upper()] > Level[self.previous.upper()]


Told = Callable[[PressureChange], object]


class PressureWatch:
    """Calls back, in its own thread, when a target reaches or leaves `level` or changes above it, until stopped.

    `own_limit` is that of the container, unit or job that this program is in; no daemon outside of it knows that.
    """

    def __init__(
        self, callback: Told, level: str, of: Daemon, here: Host, limit: Callable[[], Limit | None] = own_limit
    ) -> None:
        words = [one.word for one in Level]
        if level not in words:
            raise BadInput(f'level is "{level}", which is none of {", ".join(words)}; for example high')
        self._told = harmless(None)(callback)
        self._least = Level[level.upper()]
        self._of = of
        self._here = here
        self._limit = limit
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
        if level != before and max(level, before) >= self._least and not self._stop.is_set():
            self._told(PressureChange(target, level.word, before.word, ratio, reasons))

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._follow():
                self._look()
            self._stop.wait(RETRY_SECONDS)

    @harmless(False)
    def _follow(self) -> bool:
        """Listen for as long as the daemon speaks; whether it spoke at all."""
        spoke = False
        for event, data in self._events():
            spoke = True
            if event == "pressure":
                for record in json.loads(data):
                    self._see_record(record)
            self._look_at_limit()
            if self._stop.is_set():
                break
        return spoke

    def _events(self) -> Iterator[tuple[str, str]]:
        if self._of.is_silent:
            return
        connection, prefix = self._of.connection(STREAM_SECONDS)
        try:
            connection.request("GET", f"{prefix}/api/v1/stream?events=pressure")
            response = connection.getresponse()
            if response.status == 200:
                yield from parse_events(response)
        except OSError:
            self._of.rest()
        finally:
            connection.close()

    def _see_record(self, record: Mapping[str, Any]) -> None:
        reasons = tuple(str(reason["text"]) for reason in record["reasons"])
        self.see(str(record["target"]), Level[str(record["level"]).upper()], float(record["ratio"]), reasons)

    def _look(self) -> None:
        ram = self._here.ram()
        if not isinstance(ram, Absent) and ram.total_bytes:
            ratio = 1 - ram.available_bytes / ram.total_bytes
            self.see("ram", level_of(ratio), ratio, (f"{ratio:.1%} used",))
        self._look_at_limit()

    def _look_at_limit(self) -> None:
        now = time.monotonic()
        if now < self._limit_due:
            return
        limit = self._limit()
        self._limit_due = now + (LIMIT_SECONDS if limit else NO_LIMIT_SECONDS) * 0.9  # ticks come a little early
        if limit is not None and limit.size_bytes:
            ratio = 1 - limit.left_bytes / limit.size_bytes
            self.see(OWN_LIMIT, level_of(ratio), ratio, (f"{ratio:.1%} of the {limit.name} used",))


def level_of(ratio: float) -> Level:
    return next((level for least, level in THRESHOLDS if ratio >= least), Level.LOW)


def parse_events(lines: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  a file of lines
    """Server-sent events as (event, data)."""
    event, data = "message", ""
    while line := lines.readline(LONGEST_LINE).decode("utf-8", "replace"):
        name, _, value = line.rstrip("\r\n").partition(":")
        if name == "event":
            event = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")
        elif not line.strip():
            yield event, data
            event, data = "message", ""


def on_pressure(callback: Told, level: str = "high") -> PressureWatch:
    """Call back within a tick of the daemon, or of a second without one. Raises BadInput for an unknown level."""
    return PressureWatch(callback, level, daemon, host)


def shrink_on_pressure(level: str = "high") -> PressureWatch:
    """Ask every pool of this process to shrink when the machine's pressure rises to a level."""
    return on_pressure(lambda change: change.rising and shrink_all(), level)
