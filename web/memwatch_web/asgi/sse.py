"""Server-sent events: one rendering for all clients. A slow client skips samples and delays no other client."""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from memwatch.core.budget import Account
from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.broker import Broker, Stream
from memwatch_web.asgi.caller import CLIENT, HEAD_ONLY
from memwatch_web.asgi.latest_snapshot import RenderCache
from memwatch_web.asgi.problems import BytesResponse, problem_response
from memwatch_web.asgi.threads import QueueFullError

log = logging.getLogger(__name__)

# A place of an account, and one of the lookups of accounts, which take some milliseconds each.
RETRY_SECONDS, SOON_SECONDS = 30, 1
FindAccount = Callable[[Scope], Awaitable[Account]]

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
NOTHING_NEW = b": nothing new\n\n"


def sse(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """Format one event. Data with several lines becomes several data fields."""
    head = f"event: {event}\n" if event_id is None else f"id: {event_id}\nevent: {event}\n"
    return head.encode() + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"


# Content codings of streams. Clients of a stream share the compression of each chunk.
#
# Separate deflate streams would need 0.3 MB of memory for each client, and compress each tick for each client. Here
# a chunk is compressed at most three times for all: alone, and as a continuation of the chunk before, which was
# sent whole or without the parts that had not changed. A client whose last chunk was the one before has it in its
# window, so the continuation is enough: 31.4 kB of the overview of a DGX Spark while a process grows take 900 bytes
# instead of 7,600 (level 6, 0.3 ms; level 3 takes a fifth more, November 2026). RFC 1951 allows both: a reference
# points at most 32 KiB back.

LEVEL = 6
WINDOW_BYTES = 32 << 10
# RFC 1952: gzip, deflate, no name, no time, level not stated, unknown system.
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
LAST_BLOCK = b"\x03\x00"  # empty, with the final bit


class Encoder(Protocol):
    """Content coding of one stream."""

    @property
    def coding(self) -> str | None: ...

    @property
    def head(self) -> bytes: ...

    def tick(self, snapshot: Snapshot) -> bytes:
        """Return the encoded chunk of a snapshot."""

    def comment(self, text: bytes) -> bytes:
        """Return an encoded text that depends on no snapshot."""

    def end(self) -> bytes: ...


class Identity:
    """No coding."""

    coding = None
    head = b""

    def __init__(self, chunk_of: Callable[[Snapshot], bytes]) -> None:
        self._chunk_of = chunk_of

    def tick(self, snapshot: Snapshot) -> bytes:
        return self._chunk_of(snapshot)

    def comment(self, text: bytes) -> bytes:
        return text

    def end(self) -> bytes:
        return b""


# A part of a page, between comments. In the chunk after one that had the same part, an empty element stands for it:
# a reference reaches 32 KiB back, and eight GPUs have more.
PART = re.compile(rb'<!--part-->\s*<(\w+)[^>]*? id="([^"]+)".*?<!--/part-->', re.DOTALL)


def shorten(text: bytes, before: bytes) -> bytes:
    """Return the text with an empty element, `data-same`, for each part that is the same in the text before."""
    known = {found.group(2): found.group() for found in PART.finditer(before)}

    def choose(found: re.Match[bytes]) -> bytes:
        tag, name = found.groups()
        same = known.get(name) == found.group()
        return b'<%b id="%b" data-same></%b>' % (tag, name, tag) if same else found.group()

    return PART.sub(choose, text)


# One of two forms of a picture. A page shows the one that fits its width.
FORMS = ("wide", "narrow")
FORM = re.compile(rb'<!--(wide|narrow)-->\s*<(\w+)[^>]*? id="([^"]+)".*?<!--/\1-->', re.DOTALL)


def keep_form(text: bytes, form: str) -> bytes:
    """Return the text with an empty element, `data-same`, for each picture in another form."""

    def choose(found: re.Match[bytes]) -> bytes:
        its, tag, name = found.groups()
        return found.group() if its == form.encode() else b'<%b id="%b" data-same></%b>' % (tag, name, tag)

    return FORM.sub(choose, text)


class Chunk(NamedTuple):
    """A chunk as it is sent, and its text."""

    sent: bytes
    text: bytes


class SharedDeflate:
    """Compressed chunks of one stream, for all of its clients. Not thread-safe."""

    def __init__(self, cache: RenderCache) -> None:
        self._cache = cache
        self._snapshot: Snapshot | None = None
        self._before: Snapshot | None = None
        self._text = self._text_before = b""
        self._short = b""
        self._alone: bytes | None = None
        self._continued: dict[bytes, bytes] = {}

    def _take(self, snapshot: Snapshot) -> None:
        if snapshot is not self._snapshot:
            self._before, self._text_before = self._snapshot, self._text
            self._snapshot, self._text = snapshot, self._cache.plain(snapshot)
            self._short = shorten(self._text, self._text_before)
            self._alone, self._continued = None, {}

    def deflated(self, snapshot: Snapshot, seen: Snapshot | None, last: bytes = b"") -> Chunk:
        """Return the chunk for a client whose last chunk was of the snapshot `seen`, with the text `last`."""
        self._take(snapshot)
        if seen is None or seen is not self._before:
            if self._alone is None:
                self._alone = deflate(self._text)
            return Chunk(self._alone, self._text)
        if last not in self._continued:  # of all clients, the whole text or the short one
            self._continued[last] = deflate(self._short, last)
        return Chunk(self._continued[last], self._short)


class Gzip:
    """Gzip of one stream, of shared chunks."""

    coding = "gzip"
    head = GZIP_HEADER

    def __init__(self, shared: SharedDeflate) -> None:
        self._shared = shared
        self._seen: Snapshot | None = None
        self._last = b""
        self._checksum = self._size = 0

    def tick(self, snapshot: Snapshot) -> bytes:
        chunk = self._shared.deflated(snapshot, self._seen, self._last)
        self._seen, self._last = snapshot, chunk.text
        self._count(chunk.text)
        return chunk.sent

    def comment(self, text: bytes) -> bytes:
        self._count(text)
        self._seen = None  # the text lies between two chunks now
        return deflate(text)

    def end(self) -> bytes:
        return LAST_BLOCK + self._checksum.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little")

    def _count(self, text: bytes) -> None:
        """Keep checksum and size for the end, which gzip requires: 14 µs for 24 kB (November 2026)."""
        self._checksum, self._size = zlib.crc32(text, self._checksum), self._size + len(text)


def deflate(text: bytes, before: bytes = b"") -> bytes:
    """Compress a piece of a deflate stream, to the end of a byte. `before`: the uncompressed bytes before it."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -15, zdict=before[-WINDOW_BYTES:])
    return packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)


class EventStream(Response):
    """ASGI response: one chunk for each new snapshot, until the client or the server closes.

    503 if the account of the client has its share, or too many accounts are being looked up.
    """

    def __init__(
        self, broker: Broker, encoder: Encoder, find_account: FindAccount, simulated: bool = False
    ) -> None:
        super().__init__()
        self._broker = broker
        self._encoder = encoder
        self._find_account = find_account
        self._simulated = simulated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From here on a client that has left costs no lookup and holds no place.
        async with anyio.create_task_group() as group:
            group.start_soon(self._leave_with_client, receive, group.cancel_scope)
            await self._serve(scope, receive, send)
            group.cancel_scope.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get(CLIENT, "")
        try:
            with self._broker.joining(client):
                account = await self._find_account(scope)
        except QueueFullError:
            sentence = "many pages are being opened at once; try again"
            await self._refuse(sentence, SOON_SECONDS)(scope, receive, send)
            return
        except asyncio.CancelledError:
            if not self._broker.closed:  # the client has left
                raise
            await self._refuse("memwatchd is stopping", RETRY_SECONDS)(scope, receive, send)
            return
        if HEAD_ONLY in scope and self._broker.budget.admits(account):
            await self._send_head(send)
            await send({"type": "http.response.body", "body": b""})
            return
        stream = None if HEAD_ONLY in scope else self._broker.join(client, account)
        if stream is None:
            sentence = f"{self._broker.budget.describe(account)}: close some, or raise max_streams."
            await self._refuse(sentence, RETRY_SECONDS)(scope, receive, send)
            return
        try:
            await self._send_all(send, stream)
        finally:
            self._broker.leave(stream)

    def _refuse(self, sentence: str, retry_seconds: int) -> BytesResponse:
        return problem_response(503, sentence, {"Retry-After": str(retry_seconds)}, self._simulated)

    async def _send_head(self, send: Send) -> None:
        coding = self._encoder.coding
        headers = [*HEADERS, (b"content-encoding", coding.encode())] if coding else HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_all(self, send: Send, stream: Stream) -> None:
        await self._send_head(send)
        head = self._encoder.head
        async for chunk in self._chunks(stream):
            await send({"type": "http.response.body", "body": head + chunk, "more_body": True})
            head = b""
        await send({"type": "http.response.body", "body": head + self._encoder.end(), "more_body": False})

    async def _chunks(self, stream: Stream) -> AsyncIterator[bytes]:
        seen: Snapshot | None = None
        while not self._has_ended(stream):
            snapshot = await self._broker.newer_than(seen, stream)
            if self._has_ended(stream):
                return
            if snapshot is None:
                yield self._encoder.comment(NOTHING_NEW)
            elif snapshot is not seen:
                seen = snapshot
                chunk = self._render(snapshot)
                if chunk is None:
                    return
                yield chunk

    def _render(self, snapshot: Snapshot) -> bytes | None:
        """Return the chunk of a snapshot, or None after an error, which ends the stream: clients connect again."""
        try:
            return self._encoder.tick(snapshot)
        except Exception as error:  # noqa: BLE001  the response has begun, so no handler reports it
            text = f"a live stream ended: {type(error).__name__}: {error}"
            if self._broker.failure_log.admits(text):
                log.error("%s", text)
            return None

    def _has_ended(self, stream: Stream) -> bool:
        return self._broker.closed or stream.ended

    @staticmethod
    async def _leave_with_client(receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()
