"""/metrics: the same bytes to every scraper of a tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from memwatch.monitor import Monitor
from memwatch_web.health import current
from memwatch_web.metrics import Exporter, negotiated
from memwatch_web.once import OncePerTick

MOST_FACES = 8


class Scrapes:
    """A bare ASGI answer: what stands between it and a scraper costs more than it does."""

    def __init__(self, monitor: Monitor, exporter: Exporter) -> None:
        self._monitor = monitor
        self._exporter = exporter
        self._faces: dict[str, OncePerTick] = {}

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        encode, content_type = negotiated(headers.get(b"accept", b"").decode("latin-1"))
        gzipped = b"gzip" in headers.get(b"accept-encoding", b"")
        face = self._face(content_type, encode)
        snapshot = current(self._monitor)
        body = face.gzipped(snapshot) if gzipped else face.plain(snapshot)
        fields = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        fields.append((b"vary", b"accept, accept-encoding"))
        if gzipped:
            fields.append((b"content-encoding", b"gzip"))
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def _face(self, content_type: str, encode: Callable[[Any], bytes]) -> OncePerTick:
        face = self._faces.get(content_type)
        if face is None:
            if len(self._faces) >= MOST_FACES:  # the client names the version: do not keep every invention
                self._faces.clear()
            face = OncePerTick(lambda snapshot: self._exporter.render(snapshot, encode))
            self._faces[content_type] = face
        return face
