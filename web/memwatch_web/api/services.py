"""Parts of the daemon that the API handlers use."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from msgspec import Struct, field
from starlette.responses import Response

from memwatch.core.backends.model import Backends
from memwatch.core.events import Event, EventLog
from memwatch.core.model import Absent, Process
from memwatch.core.printable import printable
from memwatch.core.processes.process_folder import Pss
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.answers import Examination
from memwatch.reporting.render.json import JSON_TYPE, answer_bytes
from memwatch.reporting.render.words import duration
from memwatch_monitor.lease_book import LeaseBook
from memwatch_monitor.loop import Monitor
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.neighbours.machines import Machine, list_machines
from memwatch_monitor.neighbours.tick import Tick, build_tick
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_web.asgi.broker import Broker
from memwatch_web.asgi.caller import Caller
from memwatch_web.asgi.latest_snapshot import RenderCaches, current
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.sse import Encoder, EventStream, FindAccount
from memwatch_web.asgi.threads import QueryThread, QueueFullError, SingleFlight


class Inquiries(Struct, frozen=True):
    """The slow queries: backends, doctor, and the PSS of a process."""

    backends: SingleFlight[Snapshot, Backends]
    doctor: SingleFlight[Snapshot, Examination]
    pss: SingleFlight[Process, Pss]

    def close(self) -> None:
        """Cancel all: waiting requests get an error at once."""
        self.backends.close()
        self.doctor.close()
        self.pss.close()


# The kernel needs long to read the PSS of a large process.
PSS_PAUSE_SECONDS = 1.0
TEST_PAUSE_SECONDS = 5.0
# Shorter queries run in the event loop; a longer one would delay every other client.
MAX_INLINE_SECONDS = 0.005
# Among these are those of a compact tick.
RECENT_EVENTS = 20


class RateLimiter:
    """Limiter that admits one request at a time, then pauses."""

    def __init__(self, pause_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause_seconds
        self._clock = clock
        self._next = 0.0
        self._taken = False

    def enter(self) -> bool:
        if self._taken or self._clock() < self._next:
            return False
        self._taken = True
        return True

    def leave(self) -> None:
        self._taken, self._next = False, self._clock() + self._pause


class RecentEvents:
    """The newest events for compact ticks, read again only if there are new ones: copying the log takes 150 µs."""

    def __init__(self) -> None:
        self._seen = -1
        self._events: list[Event] = []

    def read(self, log: EventLog) -> list[Event]:
        if log.last_event_seq != self._seen:
            self._seen, self._events = log.last_event_seq, log.latest(RECENT_EVENTS)
        return self._events


class Services(Struct):
    """Parts of the daemon that handlers use, and state shared by requests.

    `inquiries`: those of the API, which no page needs. `oom_score`: of a process, two small files.
    """

    monitor: Monitor
    broker: Broker
    alerting: NotificationManager
    inquiries: Callable[[], Inquiries]
    oom_score: Callable[[Process], tuple[int, int] | Absent]
    neighbours: NeighbourBook
    find_account: FindAccount
    caches: RenderCaches = field(default_factory=RenderCaches)
    recent_events: RecentEvents = field(default_factory=RecentEvents)
    queries: QueryThread = field(default_factory=QueryThread)
    pss_turnstile: RateLimiter = field(default_factory=lambda: RateLimiter(PSS_PAUSE_SECONDS))
    test_turnstile: RateLimiter = field(default_factory=lambda: RateLimiter(TEST_PAUSE_SECONDS))

    def current(self) -> Snapshot:
        """Return the latest snapshot, without leases that have ended since. Raises Problem before the first."""
        latest = current(self.monitor)
        if latest.leases:
            self.monitor.features.get(LeaseBook).current()
            latest = current(self.monitor)
        return latest

    def own_tick(self, snapshot: Snapshot) -> Tick:
        """Return the compact form of a snapshot of this machine."""
        return build_tick(snapshot, self.neighbours.run, self.recent_events.read(self.monitor.events))

    def machines(self, snapshot: Snapshot) -> list[Machine]:
        """Return this machine and its neighbours at a tick, those that need an operator first."""
        views, found = self.neighbours.views(snapshot.neighbours), self.neighbours.not_joined()
        return list_machines(self.own_tick(snapshot), views, found, self.neighbours.found.count_left_out())

    def machine(self, name: str) -> Machine:
        """Return a neighbour. Raises ProblemError if there is none of that name."""
        neighbours = [one for one in self.machines(self.current()) if not one.is_self and one.state != "found"]
        for one in neighbours:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in neighbours) or "none is configured"
        raise ProblemError(404, f"no neighbour is named {name[:80]!r}; the neighbours are: {names}.")

    def json(self, value: Any) -> Response:  # noqa: ANN401  any JSON value
        return Response(self.json_bytes(value), media_type=JSON_TYPE)

    def respond_with(self, render: Callable[[Snapshot], Any]) -> Response:
        """Return a JSON view of the latest snapshot, rendered once per tick for all clients."""
        return Response(self.caches.get(render, as_bytes).plain(self.current()), media_type=JSON_TYPE)

    async def query(self, key: Hashable, seconds: float, work: Callable[[], bytes]) -> bytes:
        """Return the result of `work`, which takes about `seconds`. Work that is longer runs in a thread.

        Equal keys share a result. Raises ProblemError if too many queries wait.
        """
        if seconds <= MAX_INLINE_SECONDS:
            return work()
        try:
            return await self.queries.run(key, work)
        except QueueFullError:
            raise ProblemError(
                503, "too many queries are waiting; retry later.", headers={"Retry-After": "5"}
            ) from None

    def json_bytes(self, value: Any) -> bytes:  # noqa: ANN401  any JSON value
        return answer_bytes(value, self.monitor.simulated)

    def silence(self, seconds: float, event: str | None, target: str | None, comment: str, caller: Caller) -> None:
        """Add a silence and an event about it. Raises SilenceLimitError."""
        new = self.alerting.silence(seconds, event, target, comment, caller.words)
        reason = f": {comment}" if comment else ""
        self._record("silence", f"silenced for {duration(seconds)}: {scope_of(new)}, by {caller.words}{reason}")

    def end_silence(self, silence_id: str, caller: Caller) -> None:
        """End a silence and add an event about it. Raises ProblemError if there is none with that id."""
        ended = [one for one in self.alerting.silences() if one.id == silence_id]
        if not self.alerting.end_silence(silence_id):
            raise ProblemError(404, f"no silence {silence_id[:80]!r}; /api/v1/silences lists the existing ones.")
        for one in ended:
            self._record("silence", f"silence ended: {scope_of(one)}, by {caller.words}")

    def record_test(self, receivers: Sequence[str], caller: Caller) -> None:
        """Add an event about a test notification."""
        self._record("test", f"test notification to {', '.join(receivers)}, by {caller.words}")

    def _record(self, kind: str, text: str) -> None:
        self.monitor.record(kind, printable(text))

    def stream(self, encoder: Encoder) -> Response:
        """Return a stream with a chunk for each snapshot."""
        return EventStream(self.broker, encoder, self.find_account, self.monitor.simulated)


def scope_of(silence: Silence) -> str:
    """Return the alerts that a silence mutes."""
    target = f" on {silence.target}" if silence.target else ""
    return f"{silence.event or 'all alerts'}{target}"


def as_bytes(render: Callable[[Snapshot], Any], snapshot: Snapshot) -> bytes:
    return answer_bytes(render(snapshot), snapshot.simulated)
