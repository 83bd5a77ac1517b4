"""Fast path of a scrape: from the request headers to the complete response, without ASGI."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.access import ADMITTED, AccessControl
from memwatch_web.asgi.options import WebOptions
from memwatch_web.asgi.routes import METRICS
from memwatch_web.metrics.endpoint import Field, Fields, MetricsEndpoint

log = logging.getLogger(__name__)

MAX_ANSWERS = 64


class MetricsFastPath:
    """Cache of complete responses to GET /metrics.

    Returns None if the request needs the ASGI path, for example to check a password or to refuse it. `common` are
    the server's default headers; `AccessControl.admit`, which decides on both paths, updates their Date. The fast
    path doubles the scrapes per second: on the ASGI path, uvicorn 0.54 creates a task for each request, checks its
    headers one by one, and writes twice (CPython 3.11, November 2026).

    Requests with equal headers get the same response while tick, options and second are unchanged.
    """

    def __init__(
        self,
        access: AccessControl,
        metrics_endpoint: MetricsEndpoint,
        common: Fields,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._endpoint = metrics_endpoint
        self._common = common
        self._wall = wall
        self._answers: dict[tuple[Field, ...], bytes] = {}
        self._snapshot: Snapshot | None = None
        self._options: WebOptions | None = None
        self._second = 0

    def __call__(self, headers: tuple[Field, ...], peer: object | None) -> bytes | None:
        """Return the response, or None. Never raises: after an error, the ASGI path handles and reports it.

        `peer`: the local process at the other end of a unix socket, as reported by the kernel.
        """
        try:
            return self._known(headers) if peer is None else self._answer(headers, True)
        except Exception:
            log.debug("traceback of the failed request", exc_info=True)
            return None

    def _known(self, headers: tuple[Field, ...]) -> bytes | None:
        snapshot, options, second = self._endpoint.snapshot, self._access.options, int(self._wall())
        if second != self._second or snapshot is not self._snapshot or options is not self._options:
            self._answers.clear()
            self._snapshot, self._options, self._second = snapshot, options, second
        answer = self._answers.get(headers)
        if answer is None:
            answer = self._answer(headers, False)
            if answer is not None and len(self._answers) < MAX_ANSWERS:
                self._answers[headers] = answer
        return answer

    def _answer(self, headers: tuple[Field, ...], is_peer: bool) -> bytes | None:
        if self._access.admit(headers, METRICS, is_peer) not in ADMITTED:
            return None
        return self._endpoint.response_bytes(headers, self._common)
