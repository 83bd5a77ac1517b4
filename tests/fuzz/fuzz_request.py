"""Bytes on a connection: complete answers with a valid status, no internal error, and no task left running.

A connection with the fast path of /metrics gives the same answers as one without.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

from fuzz.site import RIGHT, Site, site
from memwatch_web.asgi.auth import parse_authorization

MAX_BYTES = 20_000
# Separator of the pieces that a client sends.
PAUSE = b"<|>"
TURNS = 200
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


class Wire(asyncio.Transport):
    """Transport that accepts all writes at once."""

    def __init__(self, client: socket.socket | None = None) -> None:
        ends = {"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 6360)}
        super().__init__(ends if client is None else {"socket": client, "peername": "", "sockname": ""})
        self.written = bytearray()
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Ignore the end of input."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffer nothing."""

    def pause_reading(self) -> None:
        """Do nothing: input is pushed by the test."""

    def resume_reading(self) -> None:
        """Do nothing: input is pushed by the test."""


def check(data: bytes) -> None:
    parse_authorization(data)
    here = site()
    here.complaints.found.clear()
    written = here.loop.run_until_complete(answered(here, data))
    plain = here.loop.run_until_complete(answered(here, data, fast_path=False))
    assert statuses_of(written) == statuses_of(plain), (written[:200], plain[:200])
    assert not here.complaints.found, here.complaints.found
    assert not written or written.startswith(b"HTTP/1.1 "), written[:200]
    statuses = set(statuses_of(written))
    assert statuses <= RIGHT, statuses - RIGHT
    assert not asyncio.all_tasks(here.loop)


def statuses_of(written: bytes) -> list[int]:
    return [int(status) for status in STATUS.findall(written)]


async def answered(here: Site, data: bytes, fast_path: bool = True, client: socket.socket | None = None) -> bytes:
    """Return the written bytes. Without the fast path, the application answers every request.

    `client`: the connected socket, over TCP by default.
    """
    wire, protocol = Wire(client), here.connection()
    if not fast_path:
        protocol._at_once = {}
    protocol.connection_made(wire)
    for piece in data.split(PAUSE):
        if wire.closing:
            break
        protocol.data_received(piece)
        await settled(protocol)
    protocol.connection_lost(None)
    for _ in range(TURNS):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # it waits for a thread: a search for backends
        await asyncio.gather(task, return_exceptions=True)
    return bytes(wire.written)


async def settled(protocol: Any) -> None:
    """Wait until the answer is complete, or is a stream."""
    for _ in range(TURNS):
        if protocol.cycle is None or protocol.cycle.response_complete:
            return
        await asyncio.sleep(0)
