"""Parts of the daemon that the API handlers use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.monitor.loop import Monitor
from memwatch.notify.manager import NotificationManager
from memwatch.render.json import JSON_TYPE, answer_bytes
from memwatch.snapshot import Snapshot
from memwatch_web.api.inquiries import Inquiries
from memwatch_web.asgi.health import current
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.render_cache import RenderCaches
from memwatch_web.asgi.sse import CLIENT, Broker, EventStream

PSS_PAUSE_SECONDS = 1.0


class RateLimiter:
    """Limiter that admits one request at a time, then pauses: the kernel needs long for a large process."""

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


class Services(Struct):
    """Parts of the daemon that handlers use, and state shared by requests."""

    monitor: Monitor
    broker: Broker
    alerting: NotificationManager
    inquiries: Inquiries
    caches: RenderCaches = field(default_factory=RenderCaches)
    pss_turnstile: RateLimiter = field(default_factory=lambda: RateLimiter(PSS_PAUSE_SECONDS))

    def current(self) -> Snapshot:
        """Return the latest snapshot. Raises Problem before the first."""
        return current(self.monitor)

    def json(self, value: Any) -> Response:  # noqa: ANN401  any JSON value
        return Response(answer_bytes(value, self.monitor.simulated), media_type=JSON_TYPE)

    def respond_with(self, render: Callable[[Snapshot], Any]) -> Response:
        """Return a JSON view of the latest snapshot, rendered once per tick for all clients."""
        return Response(self.caches.get(render, as_bytes).plain(self.current()), media_type=JSON_TYPE)

    def stream(self, request: Request, chunk_of: Callable[[Snapshot], bytes]) -> Response:
        """Return a stream of `chunk_of` each snapshot. Raise ProblemError if this client may open none."""
        client = request.scope.get(CLIENT, "")
        if not self.broker.has_room(client):
            raise ProblemError(503, self._full(client), headers={"Retry-After": "30"})
        return EventStream(self.broker, chunk_of)

    def _full(self, client: str) -> str:
        most, own = self.broker.max_streams, self.broker.max_of_client
        if self.broker.count(client) >= own < most:
            return f"this client has {own} of {most} streams, its share: close some, or raise max_streams."
        return f"all {most} streams are in use; retry later or raise max_streams."


def as_bytes(render: Callable[[Snapshot], Any], snapshot: Snapshot) -> bytes:
    return answer_bytes(render(snapshot), snapshot.simulated)
