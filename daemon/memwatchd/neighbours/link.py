"""The connections to one followed machine: one, and further ones while its tick is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from memwatch.core.http import GetError
from memwatch.core.linux.key_owner import KeyOwner
from memwatch.monitor.neighbours.neighbour import Failure
from memwatchd.neighbours.connection import Connection, connect, explain_error
from memwatchd.neighbours.peer import Peer

# TCP doubles its pause with each lost segment. At 30 % loss both ways one tick of 65 came more than 10 s late on
# one connection (November 2026). A further connection begins with short pauses.
MAX_CONNECTIONS = 4
FURTHER_SECONDS = 2.0


class Link:
    """Follows a peer until its last connection has ended. `take` raises TickError for invalid data."""

    def __init__(
        self, peer: Peer, take: Callable[[bytes], None], is_late: Callable[[], bool], owner: KeyOwner | None = None
    ) -> None:
        self.has_ticks = False
        self._peer, self._take, self._is_late = peer, take, is_late
        self._owner = owner
        self._attempts: set[asyncio.Task[Failure]] = set()
        self._opened_at = 0.0
        self._ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    async def follow(self) -> Failure:
        """Return the reason of the end."""
        self._open()
        try:
            return await self._ended
        finally:
            await asyncio.gather(*self._close_all_but(None), return_exceptions=True)

    def check(self) -> None:
        """Open a further connection if the tick is late. Called every second."""
        paused = asyncio.get_running_loop().time() - self._opened_at
        if (
            self.has_ticks
            and paused >= FURTHER_SECONDS
            and 0 < len(self._attempts) < MAX_CONNECTIONS
            and self._is_late()
        ):
            self._open()

    def _open(self) -> None:
        self._opened_at = asyncio.get_running_loop().time()
        attempt = asyncio.ensure_future(self._attempt())
        self._attempts.add(attempt)
        attempt.add_done_callback(self._on_end)

    async def _attempt(self) -> Failure:
        """Follow one connection to its end."""
        own = asyncio.current_task()
        connection: Connection | None = None
        try:
            connection = await connect(self._peer, lambda data: self._on_tick(data, own), self._owner)
            return await wait_for_end(connection)
        except (OSError, asyncio.TimeoutError, UnicodeError, GetError) as error:
            return explain_error(error)
        finally:
            if connection is not None:
                connection.close()

    def _on_tick(self, data: bytes, attempt: asyncio.Task[Failure] | None) -> None:
        self._take(data)
        self.has_ticks = True
        if len(self._attempts) > 1:
            self._close_all_but(attempt)

    def _close_all_but(self, kept: asyncio.Task[Failure] | None) -> set[asyncio.Task[Failure]]:
        closed = {attempt for attempt in self._attempts if attempt is not kept}
        self._attempts -= closed
        for attempt in closed:
            attempt.cancel()
        return closed

    def _on_end(self, attempt: asyncio.Task[Failure]) -> None:
        if attempt not in self._attempts:
            return
        self._attempts.remove(attempt)
        if self._ended.done():
            return
        if (error := attempt.exception()) is not None:
            self._ended.set_exception(error)
        elif not self._attempts or attempt.result().kind == "ended":
            self._ended.set_result(attempt.result())


async def wait_for_end(connection: Connection) -> Failure:
    """Wait for the end of a connection, or until nothing comes for too long."""
    loop = asyncio.get_running_loop()
    while True:
        done, _ = await asyncio.wait([connection.ended], timeout=5.0)
        if done:
            return connection.ended.result()
        if connection.is_overdue(loop.time()):
            return Failure("down", "no response")
