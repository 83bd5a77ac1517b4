"""TLS on connections that are counted before the handshake."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast


class CountedProtocol(Protocol):
    """HTTP protocol that counts a connection before it is made."""

    def accept(self, transport: asyncio.Transport) -> None: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class TlsProtocol(asyncio.Protocol):
    """Passes a connection to `http` when TLS is established.

    With `ssl=` in `create_server`, asyncio reports a connection only after its handshake: 512 silent clients took
    all descriptors before a limit applied.
    """

    def __init__(self, http: CountedProtocol, context: ssl.SSLContext, handshake_seconds: float) -> None:
        self._http = http
        self._context = context
        self._seconds = handshake_seconds
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._http.accept(transport)
        if not transport.is_closing():
            self._handshake = asyncio.get_running_loop().create_task(self._start(transport))

    def data_received(self, data: bytes) -> None:
        """Keep a request that arrives together with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._http.connection_lost(exc)

    async def _start(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except OSError as error:
            self.connection_lost(error)
            return
        if secured is None:  # closed during the handshake (CPython 3.10 to 3.13)
            self.connection_lost(None)
        elif not self._is_lost:
            self._hand_over(secured)

    def _hand_over(self, secured: asyncio.Transport) -> None:
        secured.set_protocol(cast("asyncio.Protocol", self._http))
        self._http.connection_made(secured)
        if self._early:
            self._http.data_received(b"".join(self._early))
