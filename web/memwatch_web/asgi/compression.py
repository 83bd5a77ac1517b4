"""Compression of answers that were not compressed before, by Starlette."""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch_web.asgi.render_cache import takes_gzip

# Shorter answers fit one packet anyway. At level 4 the 200 kB of a day of history take 3 ms; from 128 KiB on
# Starlette compresses in a thread. Answers that several clients share were compressed once for all.
MIN_COMPRESSED_BYTES, LEVEL = 1200, 4
ACCEPT_ENCODING = b"accept-encoding"


class Compression:
    """ASGI middleware: gzip for clients that accept it. Starlette itself takes `gzip;q=0` for acceptance."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(app, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = scope.get("headers", ())
        accepted = b",".join(value for name, value in fields if name == ACCEPT_ENCODING)
        if b"gzip" in accepted and not takes_gzip(accepted.decode("latin-1")):
            scope = {**scope, "headers": [one for one in fields if one[0] != ACCEPT_ENCODING]}
        await self._app(scope, receive, send)
