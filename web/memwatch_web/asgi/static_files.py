"""Static files: a fixed list, small files compressed once, when they are first requested, and
compression of answers that were not compressed before, by Starlette.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch_web.asgi.latest_snapshot import takes_gzip
from memwatch_web.asgi.routes import STATIC

# Shorter answers fit one packet anyway. At level 4 the 200 kB of a day of history take 3 ms; from 128 KiB on
# Starlette compresses in a thread. Answers that several clients share were compressed once for all.
MIN_COMPRESSED_BYTES, LEVEL = 1200, 4
FOLDER = Path(__file__).parent.parent / "static"
PIECE_BYTES = 64 << 10
# Everything except the 1.7 MB of Swagger UI, which would take 0.1 s and 0.5 MB. The others take 15 ms and 75 KB
# (November 2026). Larger files are compressed as they are sent: browsers keep them, since their names
# have a version.
MAX_COMPRESSED_BYTES = 256 << 10
# 2 ms for a piece, between which other requests run.
PIECE_LEVEL = 4
# Those of the files here. `mimetypes` reads the lists of the machine for them, in 15 ms.
MEDIA_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
# `Compression` adds it to uncompressed answers.
VARY = "accept-encoding"
GZIP = 31  # wbits of zlib for a gzip header and its CRC-32


def routes() -> list[Route]:
    return [
        Route(STATIC + name, _file_endpoint(path, "vendor/" in name), name=f"static {name}")
        for name, path in files_under(FOLDER)
    ]


def files_under(root: Path) -> Iterable[tuple[str, Path]]:
    """Yield every file with its URL path. The list is fixed, so that no request can leave the folder."""
    return [(path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*")) if path.is_file()]


def accepts_gzip(request: Request) -> bool:
    return takes_gzip(request.headers.get("accept-encoding", ""))


def _file_endpoint(path: Path, versioned: bool) -> Callable[[Request], Any]:
    """Return the handler of a file. Versioned names are immutable, others have an ETag."""
    lifetime = "public, max-age=31536000, immutable" if versioned else "no-cache"
    size = path.stat().st_size
    tag = f"{path.stat().st_mtime_ns:x}-{size:x}"
    media_type = MEDIA_TYPES.get(path.suffix, "text/plain")
    large = size > MAX_COMPRESSED_BYTES

    @cache
    def compressed() -> bytes | None:
        between = MIN_COMPRESSED_BYTES <= size <= MAX_COMPRESSED_BYTES
        return compress_if_smaller(path.read_bytes()) if between else None

    async def send_file(request: Request) -> Response:
        small = accepts_gzip(request) and (large or compressed() is not None)
        headers = {"cache-control": lifetime, "etag": f'"{tag}-gzip"' if small else f'"{tag}"'}
        if small:
            headers |= {"content-encoding": "gzip", "vary": VARY}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        if large:
            pieces = read_pieces(path, size)
            return StreamingResponse(compress_pieces(pieces) if small else pieces, 200, headers, media_type)
        return Response(compressed() if small else path.read_bytes(), 200, headers, media_type)

    return send_file


def compress_if_smaller(content: bytes) -> bytes | None:
    """Compress at level 9. Return None if that saves less than a tenth."""
    compressed = gzip.compress(content, compresslevel=9, mtime=0)
    return compressed if len(compressed) < 0.9 * len(content) else None


async def read_pieces(path: Path, size: int) -> AsyncIterator[bytes]:
    """Read a file in pieces. It is open only during a read: a slow client holds 64 KiB and no descriptor."""
    for start in range(0, size, PIECE_BYTES):
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(min(PIECE_BYTES, size - start))
        yield piece
        await asyncio.sleep(0)  # lets the loop see a closed connection and run other requests


async def compress_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(PIECE_LEVEL, zlib.DEFLATED, GZIP)
    async for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


class Compression:
    """ASGI middleware: gzip for clients that accept it. Starlette itself takes `gzip;q=0` for acceptance."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(app, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = scope.get("headers", ())
        accepted = b",".join(value for name, value in fields if name == VARY.encode())
        if b"gzip" in accepted and not takes_gzip(accepted.decode("latin-1")):
            scope = {**scope, "headers": [one for one in fields if one[0] != VARY.encode()]}
        await self._app(scope, receive, send)
