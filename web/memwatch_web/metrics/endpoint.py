"""/metrics: rendered once per tick and format, shared by all scrapers.

prometheus-client, which imports Python's HTTP server and clients (2.2 MiB), is loaded by the first scrape.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.access import ADMITTED, AccessControl, WebOptions
from memwatch_web.asgi.latest_snapshot import RenderCache, current, takes_gzip
from memwatch_web.asgi.problems import BytesResponse
from memwatch_web.asgi.routes import METRICS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from memwatch_web.metrics.families import Exporter

MAX_FORMATS = 8

Field = tuple[bytes, bytes]
Fields = list[Field]


class ScrapeFormat(NamedTuple):
    """The two request headers that determine the response: Accept and Accept-Encoding."""

    accept: bytes
    encoding: bytes


class ScrapeResponse(NamedTuple):
    """A complete HTTP response with the snapshot and the common headers it was built from."""

    snapshot: Snapshot
    common: Fields
    whole: bytes


# Prometheus, its agent and vmagent send it with each scrape.
SCRAPE_HEADER = b"x-prometheus-scrape-timeout-seconds"
# A name of 253 characters and a port.
MAX_HOST_LENGTH = 260


class LatestScrape:
    """The Host of the latest scrape that was answered: the label `instance`, unless the scrape relabels it."""

    host: str | None = None

    def note(self, headers: Iterable[Field]) -> None:
        named = dict(headers)
        if SCRAPE_HEADER in named:
            self.host = printable(named.get(b"host", b"").decode("latin-1")[:MAX_HOST_LENGTH]) or None


class MetricsEndpoint:
    """Endpoint without a framework, as an ASGI app or as raw bytes: routing and middleware would cost more than the
    cached response itself.
    """

    def __init__(
        self, monitor: Monitor, make_exporter: Callable[[], Exporter], scrape: LatestScrape | None = None
    ) -> None:
        self._monitor = monitor
        self._make_exporter = make_exporter
        self._exporter: Exporter | None = None
        self._scrape = scrape or LatestScrape()
        self._caches: dict[str, RenderCache] = {}
        self._on_wire: dict[ScrapeFormat, ScrapeResponse] = {}

    @property
    def snapshot(self) -> Snapshot | None:
        """Return the snapshot of the next response."""
        return self._monitor.latest

    def prepare(self) -> MetricsEndpoint:
        """Load the exporter, and return this endpoint. Before, `response_bytes` returns None."""
        self._load()
        return self

    def _load(self) -> Exporter:
        if self._exporter is None:
            self._exporter = self._make_exporter()
        return self._exporter

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self._scrape.note(scope["headers"])
        fields, body = self._answer(self._load(), wanted_by(scope["headers"]), current(self._monitor))
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def response(self, headers: Iterable[Field]) -> BytesResponse:
        """Return the response for a request that is routed through FastAPI."""
        self._scrape.note(headers)
        fields, body = self._answer(self._load(), wanted_by(headers), current(self._monitor))
        named = {name.decode(): value.decode() for name, value in fields}
        return BytesResponse(body, named.pop("content-type"), headers=named)

    def response_bytes(self, headers: Iterable[Field], common: Fields) -> bytes | None:
        """Return the complete HTTP response, starting with the `common` headers; None before the first tick, and
        until the exporter is loaded.

        The response is cached by format until the snapshot or the `common` headers change.
        """
        self._scrape.note(headers)
        snapshot, wanted = self.snapshot, wanted_by(headers)
        known = self._on_wire.get(wanted)
        if known is not None and known.snapshot is snapshot and known.common == common:
            return known.whole
        if snapshot is None or self._exporter is None:
            return None
        fields, body = self._answer(self._exporter, wanted, snapshot)
        lines = b"".join(b"%b: %b\r\n" % field for field in (*common, *fields))
        whole = b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (lines, body)
        if len(self._on_wire) >= MAX_FORMATS:
            self._on_wire.clear()
        self._on_wire[wanted] = ScrapeResponse(snapshot, list(common), whole)
        return whole

    def _answer(self, exporter: Exporter, wanted: ScrapeFormat, snapshot: Snapshot) -> tuple[Fields, bytes]:
        """Return the headers of this response, without the common ones, and its body."""
        encode, content_type = exporter.negotiate_format(wanted.accept.decode("latin-1"))
        gzipped = takes_gzip(wanted.encoding.decode("latin-1"))
        cache = self._renderer(exporter, content_type, encode)
        body = cache.gzipped(snapshot) if gzipped else cache.plain(snapshot)
        fields = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        fields.append((b"vary", b"accept, accept-encoding"))
        if gzipped:
            fields.append((b"content-encoding", b"gzip"))
        return fields, body

    def _renderer(self, exporter: Exporter, content_type: str, encode: Callable[[Any], bytes]) -> RenderCache:
        cache = self._caches.get(content_type)
        if cache is None:
            if len(self._caches) >= MAX_FORMATS:  # clients choose the version: bound the cache
                self._caches.clear()
            cache = RenderCache(exporter.renderer(encode))
            self._caches[content_type] = cache
        return cache


def wanted_by(headers: Iterable[Field]) -> ScrapeFormat:
    named = dict(headers)
    return ScrapeFormat(named.get(b"accept", b""), named.get(b"accept-encoding", b""))


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
