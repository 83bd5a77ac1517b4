"""/metrics: the same bytes to every scraper of a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from memwatch.monitor.loop import Monitor
from memwatch.snapshot import Snapshot
from memwatch_web.asgi.health import current
from memwatch_web.asgi.render_cache import RenderCache, takes_gzip
from memwatch_web.metrics.families import Exporter, negotiate_format

MAX_FORMATS = 8

Field = tuple[bytes, bytes]
Fields = list[Field]


class ScrapeFormat(NamedTuple):
    """What decides what a scraper gets: two fields of its request."""

    accept: bytes
    encoding: bytes


class ScrapeResponse(NamedTuple):
    """An answer from its status line to its last byte, and what it was made of."""

    snapshot: Snapshot
    common: Fields
    whole: bytes


class MetricsEndpoint:
    """A bare ASGI answer, or the bytes of one: what stands between it and a scraper costs more than it does."""

    def __init__(self, monitor: Monitor, exporter: Exporter) -> None:
        self._monitor = monitor
        self._exporter = exporter
        self._faces: dict[str, RenderCache] = {}
        self._on_wire: dict[ScrapeFormat, ScrapeResponse] = {}

    @property
    def snapshot(self) -> Snapshot | None:
        """What the next answer is about."""
        return self._monitor.latest

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        fields, body = self._answer(wanted_by(scope["headers"]), current(self._monitor))
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def response(self, headers: Iterable[Field]) -> Response:
        """The same for the application, where a client asks it and not what is in front of it."""
        fields, body = self._answer(wanted_by(headers), current(self._monitor))
        return Response(body, headers={name.decode(): value.decode() for name, value in fields})

    def response_bytes(self, headers: Iterable[Field], common: Fields) -> bytes | None:
        """The whole answer as it goes over the wire, with the `common` fields in front; None before the first tick.

        It is made once for all who want the same of a tick, as long as the `common` fields are the same.
        """
        snapshot, wanted = self.snapshot, wanted_by(headers)
        known = self._on_wire.get(wanted)
        if known is not None and known.snapshot is snapshot and known.common == common:
            return known.whole
        if snapshot is None:
            return None
        fields, body = self._answer(wanted, snapshot)
        lines = b"".join(b"%b: %b\r\n" % field for field in (*common, *fields))
        whole = b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (lines, body)
        if len(self._on_wire) >= MAX_FORMATS:
            self._on_wire.clear()
        self._on_wire[wanted] = ScrapeResponse(snapshot, list(common), whole)
        return whole

    def _answer(self, wanted: ScrapeFormat, snapshot: Snapshot) -> tuple[Fields, bytes]:
        """The fields that are an answer's own, and its body."""
        encode, content_type = negotiate_format(wanted.accept.decode("latin-1"))
        gzipped = takes_gzip(wanted.encoding.decode("latin-1"))
        face = self._renderer(content_type, encode)
        body = face.gzipped(snapshot) if gzipped else face.plain(snapshot)
        fields = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        fields.append((b"vary", b"accept, accept-encoding"))
        if gzipped:
            fields.append((b"content-encoding", b"gzip"))
        return fields, body

    def _renderer(self, content_type: str, encode: Callable[[Any], bytes]) -> RenderCache:
        face = self._faces.get(content_type)
        if face is None:
            if len(self._faces) >= MAX_FORMATS:  # the client names the version: do not keep every invention
                self._faces.clear()
            face = RenderCache(lambda snapshot: self._exporter.render(snapshot, encode))
            self._faces[content_type] = face
        return face


def wanted_by(headers: Iterable[Field]) -> ScrapeFormat:
    named = dict(headers)
    return ScrapeFormat(named.get(b"accept", b""), named.get(b"accept-encoding", b""))
