"""All followed machines: their states at a tick, and when this machine notifies about a silent one. Thread-safe."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.budget import Budget
from memwatch.core.clock import Clock, SystemClock
from memwatch.core.model import Absent
from memwatch.core.reading.machine import Additions
from memwatch.core.snapshot import NeighbourState, NeighbourStatus
from memwatch_monitor.feature import Feature
from memwatch_monitor.neighbours.found import FoundMachine, FoundMachines, Peers

if TYPE_CHECKING:
    from memwatch_monitor.neighbours.neighbour import Failure, Neighbour
    from memwatch_monitor.neighbours.tick import LastWords, Tick
    from memwatch_monitor.neighbours.trend import HolderGrowth, TrendPoint

# The word of another machine, true or not, delays the notification about a silent one by this time at most.
HOLD_SECONDS = 30.0
# Longer without a pass of the reading thread, and silence says nothing about the neighbours.
STALE_READER_SECONDS = 3.0


class MachineView(Struct, frozen=True):
    """A neighbour for pages and the API. `tick`: its last, None before the first. `growth`: as of that tick."""

    status: NeighbourStatus
    url: str
    tick: Tick | None
    clock_offset_seconds: float | Absent
    words: LastWords | None
    trend: Sequence[TrendPoint] = ()
    growth: HolderGrowth | None = None


class MachinePast(Struct, frozen=True):
    """The past of a neighbour in its own time, the oldest first: each of the last 120 s, and an hour at 10 s."""

    recent: Sequence[Tick]
    hour: Sequence[Tick]


class NeighbourBook(Feature):
    """The neighbours, in the order of the settings. Written by the reading thread, read by all others.

    `run` identifies this process to machines that compare whom they receive.
    """

    name = "book of neighbours"

    @classmethod
    def of(cls, monitor: Any) -> NeighbourBook:  # noqa: ANN401  as in Feature
        return cls(monitor.identity.host, SystemClock(), monitor.budgets["machines_found"])

    def __init__(self, host: str, clock: Clock, budget: Budget | None = None) -> None:
        self.run: str = secrets.token_hex(4)
        self.host: str = host
        self._clock = clock
        self._neighbours: dict[str, Neighbour] = {}
        self.found: FoundMachines = FoundMachines(budget=budget, account_of=Peers().account)
        self._read_at = float("-inf")
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._neighbours)

    def on_additions(self, additions: Additions) -> Additions:
        left_out = {**additions.left_out, "machines_found": self.found.count_left_out()}
        return replace(additions, left_out=left_out)

    def use(self, followed: Iterable[tuple[str, str]]) -> None:
        """Follow these names and URLs. A neighbour with an unchanged URL keeps its past."""
        wanted, now = dict(followed), self._clock.monotonic()
        if wanted:
            # With maps and sentences of a machine, 0.5 MiB, which a daemon without neighbours loads for its pages.
            from memwatch_monitor.neighbours.neighbour import Neighbour

        with self._lock:
            known = self._neighbours
            self._neighbours = {
                name: known[name] if name in known and known[name].url == url else Neighbour(name, url, now)
                for name, url in wanted.items()
            }

    def on_read(self) -> None:
        """Note that the reading thread runs."""
        self._read_at = self._clock.monotonic()

    def take_tick(self, name: str, data: bytes) -> None:
        """Take a tick of a neighbour. Raises TickError."""
        now, unix = self._clock.monotonic(), self._clock.wall()
        with self._lock:
            self._read_at = now
            if name in self._neighbours:
                self._neighbours[name].on_tick(data, now, unix)

    def on_failure(self, name: str, failure: Failure) -> None:
        with self._lock:
            if name in self._neighbours:
                self._neighbours[name].on_failure(failure)

    def is_late(self, name: str) -> bool:
        """Return True if the next tick of a neighbour is overdue."""
        one = self._neighbours.get(name)
        return one is not None and self._clock.monotonic() - one.last_at > one.late_after_seconds

    def statuses(self, notified: Collection[str] = ()) -> tuple[NeighbourStatus, ...]:
        """Return the state of every neighbour. `notified`: those whose alert of this machine is firing."""
        if not self._neighbours:
            return ()
        with self._lock:
            now = self._now()
            states = {one.name: one.state(now) for one in self._neighbours.values()}
            alive = [one for one in self._neighbours.values() if states[one.name] == "up" and one.last]
            return tuple(
                self._status(one, states[one.name], now, alive, one.name in notified)
                for one in self._neighbours.values()
            )

    def views(self, statuses: Iterable[NeighbourStatus]) -> list[MachineView]:
        """Return the neighbours of a tick with what they sent last."""
        with self._lock:
            return [self._view(one, self._neighbours[one.name]) for one in statuses if one.name in self._neighbours]

    def not_joined(self) -> Sequence[FoundMachine]:
        """Return machines that mDNS has found and that are neither this one nor a neighbour."""
        if not self.found:
            return ()
        with self._lock:
            known = list(self._neighbours.values())
        return self.found.others(
            {self.run, *(one.last.run for one in known if one.last)}, {one.url for one in known}
        )

    def past(self, name: str) -> MachinePast | None:
        """Return the past of a neighbour, None if there is none of that name."""
        with self._lock:
            one = self._neighbours.get(name)
            return None if one is None else MachinePast(one.recent(), one.hour())

    @property
    def size_bytes(self) -> int:
        """Size of all kept ticks."""
        return sum(one.size_bytes for one in list(self._neighbours.values()))

    def _now(self) -> float:
        """Return the time up to which silence counts: while the reading thread did not run, it does not."""
        now = self._clock.monotonic()
        return now if now - self._read_at <= STALE_READER_SECONDS else max(self._read_at, 0.0)

    def _status(
        self, one: Neighbour, state: NeighbourState, now: float, alive: Sequence[Neighbour], notified: bool
    ) -> NeighbourStatus:
        text = one.text(state, now)
        age = max(0.0, now - one.last_at)
        run = one.last.run if one.last else ""
        others = [
            (other.name, tick, tick.sees[run]) for other in alive if (tick := other.last) and run in tick.sees
        ]
        receiver = next((name for name, _, seen in others if seen == "up"), None)
        is_held_out = age - one.silent_after_seconds >= HOLD_SECONDS
        is_first = receiver is None and self._is_first(others)
        notifies = state == "silent" and (notified or is_held_out or is_first)
        if state == "silent" and receiver is not None:
            state = "unreachable"
            network = f"check the network between this machine and {one.name}"
            text = f"{receiver} reports that it still receives it: {network}; {text}"
        last_unix = one.last.unix if one.last else Absent.NOT_AVAILABLE
        late = age > one.late_after_seconds
        return NeighbourStatus(one.name, state, text, age, last_unix, run, notifies, late)

    def _is_first(self, others: Sequence[tuple[str, Tick, str]]) -> bool:
        """Return True if no machine that follows the neighbour as well comes before this one by name."""
        first = min([(tick.host, tick.run) for _, tick, _ in others], default=None)
        return first is None or (self.host, self.run) < first

    def _view(self, status: NeighbourStatus, one: Neighbour) -> MachineView:
        words = None if status.state == "up" else one.last_words()
        return MachineView(
            status,
            one.url,
            one.last,
            one.known_clock_offset_seconds,
            words,
            one.trend.points(),
            one.trend.growth(one.last) if one.last else None,
        )
