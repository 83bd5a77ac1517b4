"""Open streams of all clients: each tick wakes them, and no account takes all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memwatch.core.budget import Account, Budget
from memwatch.core.runtime.worker import FailureLog
from memwatch.core.snapshot import Snapshot

KEEPALIVE_SECONDS = 15.0
# Streams woken in one go before other requests run. With all of 1,000 at once the 99th percentile of scrapes was
# 60 ms, with 16 at a time it is 12 ms (November 2026).
TURN_STREAMS = 16


class Stream:
    """One open stream of a client."""

    def __init__(self, client: str, turn: int) -> None:
        self.client = client
        self.turn = turn
        self.ended = False
        """True if the stream is over, or was replaced by one of another account."""


class Broker:
    """Wakes every stream on each sample. A slow client misses samples; nothing is queued."""

    def __init__(self, latest: Callable[[], Snapshot | None], budget: Budget) -> None:
        self.budget = budget
        self.closed = False
        self._latest = latest
        self._turns = [asyncio.Event()]
        self._by_client: Counter[str] = Counter()
        self._joining: Counter[str] = Counter()
        self.streams = 0
        self.failure_log = FailureLog()

    def count(self, client: str | None) -> int:
        """Return the number of streams of a client, or with None that of all: open ones, and those in `joining`."""
        if client is None:
            return self.streams + self._joining.total()
        return self._by_client[client] + self._joining[client]

    @contextmanager
    def joining(self, client: str) -> Iterator[None]:
        """Count a request for a stream while its account is looked up.

        A lookup takes up to 46 ms, in which a proxy may ask for a thousand streams after a restart. Not counted as
        streams, those above the number of connections were reset in place of an answer.
        """
        self._joining[client] += 1
        try:
            yield
        finally:
            self._joining[client] -= 1
            if not self._joining[client]:
                del self._joining[client]

    def join(self, client: str, account: Account) -> Stream | None:
        """Count one more stream, None if the account may have no more. One of another account may end for it."""
        stream = Stream(client, self.streams // TURN_STREAMS)
        verdict = self.budget.admit(stream, account)
        if not verdict.is_admitted:
            return None
        if isinstance(verdict.gone, Stream):
            self._end(verdict.gone)
        if stream.turn == len(self._turns):
            self._turns.append(asyncio.Event())
        self._by_client[client] += 1
        self.streams += 1
        return stream

    def leave(self, stream: Stream) -> None:
        """Stop counting a stream. Does nothing for one that was replaced."""
        if stream.ended:
            return
        stream.ended = True
        self.budget.release(stream)
        self.streams -= 1
        self._by_client[stream.client] -= 1
        self._by_client += Counter()  # drop those without

    def _end(self, stream: Stream) -> None:
        self.leave(stream)
        self._wake_turn(stream.turn)

    def _wake_turn(self, turn: int) -> None:
        tick, self._turns[turn] = self._turns[turn], asyncio.Event()
        tick.set()

    def wake(self, turn: int = 0) -> None:
        """Wake the streams of a turn. Called in the server's thread for each sample while there are streams."""
        self._wake_turn(turn)
        if turn + 1 < len(self._turns):
            asyncio.get_running_loop().call_soon(self.wake, turn + 1)

    def close(self) -> None:
        """End every stream cleanly."""
        self.closed = True
        for tick in self._turns:
            tick.set()

    async def newer_than(self, seen: Snapshot | None, stream: Stream) -> Snapshot | None:
        """Return the next snapshot, or None on a keep-alive timeout or when the stream ends. It may be `seen`."""
        if self._latest() is not seen or self.closed:
            # Sending may not yield to the loop. If it is as slow as sampling, the next snapshot is already there.
            await asyncio.sleep(0)
            return None if self.closed else self._latest()
        try:
            await asyncio.wait_for(self._turns[stream.turn].wait(), KEEPALIVE_SECONDS)
        except asyncio.TimeoutError:
            return None
        return None if self.closed else self._latest()
