"""Baseline: an asyncio server that always answers the same 8 KiB, the limit of a Python event loop here."""

from __future__ import annotations

import asyncio
import sys

BODY = b"#" * 8192
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(BODY)


class Constant(asyncio.Protocol):
    """Protocol that checks only the end of a request."""

    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(HEAD + BODY)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
