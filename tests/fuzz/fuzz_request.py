"""Bytes on a connection: whole answers with a right status, no error of ours, and nothing left running.

A connection that knows requests by their bytes gives as many answers as one that parses every piece.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from fuzz.site import RIGHT, Site, site
from memwatch_web.asgi.auth import parse_authorization

MOST_BYTES = 20_000
# Between two pieces of what a client sends.
PAUSE = b"<|>"
TURNS = 200
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


class Wire(asyncio.Transport):
    """Takes all that is written, at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 6360)})
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
        """Nobody reads."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is kept back."""

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""


def check(data: bytes) -> None:
    parse_authorization(data)
    here = site()
    here.complaints.found.clear()
    written = here.loop.run_until_complete(answered(here, data))
    parsed = here.loop.run_until_complete(answered(here, data, forgets=True))
    assert STATUS.findall(written) == STATUS.findall(parsed), (written[:200], parsed[:200])
    assert not here.complaints.found, here.complaints.found
    assert not written or written.startswith(b"HTTP/1.1 "), written[:200]
    statuses = {int(status) for status in STATUS.findall(written)}
    assert statuses <= RIGHT, statuses - RIGHT
    assert not asyncio.all_tasks(here.loop)


async def answered(here: Site, data: bytes, forgets: bool = False) -> bytes:
    """What is written; where it `forgets`, no piece is known from before."""
    wire, protocol = Wire(), here.connection()
    if forgets:
        protocol._heard = {}
    protocol.connection_made(wire)
    for piece in data.split(PAUSE):
        if wire.closing:
            break
        if forgets:
            protocol._heard.clear()
        protocol.data_received(piece)
        await settled(protocol)
    protocol.connection_lost(None)
    for _ in range(TURNS):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # what waits for a thread: a search for backends
        await asyncio.gather(task, return_exceptions=True)
    return bytes(wire.written)


async def settled(protocol: Any) -> None:
    """Until the answer is whole, or is a stream."""
    for _ in range(TURNS):
        if protocol.cycle is None or protocol.cycle.response_complete:
            return
        await asyncio.sleep(0)
