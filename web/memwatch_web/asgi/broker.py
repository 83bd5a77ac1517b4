"""Open streams of all clients: each tick wakes them, and no client takes all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from memwatch.core.runtime.worker import FailureLog
from memwatch.core.snapshot import Snapshot

KEEPALIVE_SECONDS = 15.0
# Streams woken in one go before other requests run. With all of 1,000 at once the 99th percentile of scrapes was
# 60 ms, with 16 at a time it is 12 ms (November 2026).
TURN_STREAMS = 16
# Part of all streams that one client may have. The rest is left to others without ending a stream.
SHARE = 3 / 4


class Stream:
    """One open stream of a client."""

    def __init__(self, client: str, turn: int) -> None:
        self.client = client
        self.turn = turn
        self.ended = False
        """True if the stream was replaced by one of another client."""


class Broker:
    """Wakes every stream on each sample. A slow client misses samples; nothing is queued."""

    def __init__(self, latest: Callable[[], Snapshot | None], max_streams: int) -> None:
        self.max_streams = max_streams
        self.closed = False
        self._latest = latest
        self._turns = [asyncio.Event()]
        self._by_client: dict[str, dict[Stream, None]] = {}
        self.streams = 0
        self.failure_log = FailureLog()

    @property
    def max_of_client(self) -> int:
        return max(1, math.ceil(self.max_streams * SHARE))

    def count(self, client: str | None) -> int:
        """Return the number of open streams of a client, or with None that of all."""
        return self.streams if client is None else len(self._by_client.get(client, ()))

    def has_room(self, client: str) -> bool:
        """Return whether this client may open one more stream. For it a stream of another client may end."""
        own = self.count(client)
        return own < self.max_of_client and (self.streams < self.max_streams or self._longest(own) is not None)

    def join(self, client: str) -> Stream:
        """Count one more stream. If there are too many, the oldest of the client with the most streams ends."""
        longest = self._longest(self.count(client)) if self.streams >= self.max_streams else None
        if longest is not None:
            self._end(next(iter(longest)))
        turn = self.streams // TURN_STREAMS
        if turn == len(self._turns):
            self._turns.append(asyncio.Event())
        stream = Stream(client, turn)
        self._by_client.setdefault(client, {})[stream] = None
        self.streams += 1
        return stream

    def leave(self, stream: Stream) -> None:
        """Stop counting a stream. Does nothing for one that was replaced."""
        own = self._by_client.get(stream.client, {})
        if stream in own:
            del own[stream]
            self.streams -= 1
            if not own:
                del self._by_client[stream.client]

    def _longest(self, own: int) -> dict[Stream, None] | None:
        """Return the streams of the client with the most, None if a client with `own` streams must not end any.

        Two more than `own`: with one more, two clients would end each other's streams in turn for ever.
        """
        longest = max(self._by_client.values(), key=len, default=None)
        return longest if longest is not None and len(longest) >= own + 2 else None

    def _end(self, stream: Stream) -> None:
        self.leave(stream)
        stream.ended = True
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
