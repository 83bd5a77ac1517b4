"""One followed machine: its ticks, and its state from what arrives. Times are monotonic seconds."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.core.snapshot import NeighbourState
from memwatch.reporting.render import words
from memwatch_monitor.neighbours.tick import LastWords, Tick, decode_all, decode_tick, tell_last_words
from memwatch_monitor.neighbours.trend import Trend

# Recent ticks of one neighbour in a bounded amount of memory, compressed in blocks.

# 32 ticks of one machine are alike: 28 kB take 2.4 kB at level 1 in 0.2 ms (November 2026).
BLOCK_TICKS = 32
LEVEL = 1


class Block(Struct, frozen=True):
    """Compressed ticks, the oldest first, and the time of the newest."""

    newest_unix: float
    data: bytes


class TickRing:
    """Ticks of the last `seconds`, in the time of their sender, as long as they take at most `max_bytes`."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds, self._max_bytes = seconds, max_bytes
        self._blocks: deque[Block] = deque()
        self._open: list[bytes] = []
        self._packed_bytes = self._open_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._packed_bytes + self._open_bytes

    def add(self, unix: float, data: bytes) -> None:
        """Add a tick. `data` contains no newline."""
        self._open.append(data)
        self._open_bytes += len(data)
        if len(self._open) >= BLOCK_TICKS or self._open_bytes > self._max_bytes // 2:
            self._close(unix)
        while self._blocks and (
            self.size_bytes > self._max_bytes or self._blocks[0].newest_unix < unix - self._seconds
        ):
            self._packed_bytes -= len(self._blocks.popleft().data)

    def ticks(self) -> list[bytes]:
        """Return the ticks, the oldest first. Some are older than `seconds`: whole blocks are dropped."""
        packed = [line for block in self._blocks for line in zlib.decompress(block.data).split(b"\n")]
        return packed + self._open

    def _close(self, unix: float) -> None:
        data = zlib.compress(b"\n".join(self._open), LEVEL)
        self._blocks.append(Block(unix, data))
        self._packed_bytes += len(data)
        self._open, self._open_bytes = [], 0


RECENT_SECONDS, HOUR_SECONDS = 120.0, 3600.0
HOUR_STEP_SECONDS = 10.0
# Together below 0.25 MiB of the 0.4 MiB that a neighbour may take.
RECENT_BYTES, HOUR_BYTES = 144 << 10, 96 << 10
# A tick later than this is a silence. TCP repeats a lost segment for up to 6 s within 10 s.
SILENT_SECONDS, SILENT_INTERVALS = 10.0, 5.0
# After a power failure machines start minutes apart.
FIRST_SECONDS = 300.0
STOPPED_SECONDS = 2.0
# A machine that was stopped in order for longer than a day may have been forgotten, or never came back.
MAX_STOPPED_SECONDS = 86_400.0
LATE_SECONDS, LATE_INTERVALS = 3.0, 2.0
# Smaller differences of clocks are delays of the network and of rendering.
MIN_CLOCK_OFFSET_SECONDS = 2.0

FailureKind = Literal["down", "refused", "ended"]


class Failure(Struct, frozen=True):
    """The end of a connection or of an attempt. `ended`: the stream ended in order. `refused`: it is not usable."""

    kind: FailureKind
    text: str


class Neighbour:
    """State of one neighbour. Used by one thread at a time: see `NeighbourBook`."""

    def __init__(self, name: str, url: str, now: float) -> None:
        self.name: str = name
        self.url: str = url
        self.last: Tick | None = None
        self.last_at: float = now
        self.failure: Failure | None = None
        self.clock_offset_seconds: float = 0.0
        self._recent = TickRing(RECENT_SECONDS, RECENT_BYTES)
        self._hour = TickRing(HOUR_SECONDS, HOUR_BYTES)
        self._hour_at = float("-inf")
        self._trend = Trend()
        self._words: LastWords | None = None

    @property
    def size_bytes(self) -> int:
        return self._recent.size_bytes + self._hour.size_bytes

    @property
    def trend(self) -> Trend:
        return self._trend

    def on_tick(self, data: bytes, now: float, unix: float) -> None:
        """Take a tick. `unix`: wall clock of this machine. Raises TickError."""
        tick = decode_tick(data)
        self._recent.add(tick.unix, data)
        if now - self._hour_at >= HOUR_STEP_SECONDS:
            self._hour_at = now
            self._hour.add(tick.unix, data)
            self._trend.add(tick)
        self.last = tick
        self.last_at = now
        self.failure = None
        self.clock_offset_seconds = tick.unix - unix

    def on_failure(self, failure: Failure) -> None:
        """Take the end of a connection. After an end in order it is expected that no connection is accepted."""
        is_expected = failure.kind == "down" and self.failure is not None and self.failure.kind == "ended"
        self.failure = self.failure if is_expected else failure

    @property
    def silent_after_seconds(self) -> float:
        """Return the longest time without a tick, or until the first one."""
        return max(SILENT_SECONDS, SILENT_INTERVALS * self.last.interval) if self.last else FIRST_SECONDS

    @property
    def late_after_seconds(self) -> float:
        return max(LATE_SECONDS, LATE_INTERVALS * self.last.interval if self.last else 0.0)

    def state(self, now: float) -> NeighbourState:
        """Return the state without what other machines see."""
        age = now - self.last_at
        kind = self.failure.kind if self.failure else None
        if kind == "refused":
            return "refused"
        if kind == "ended" and STOPPED_SECONDS < age <= MAX_STOPPED_SECONDS:
            return "stopped"
        if age > self.silent_after_seconds:
            return "silent"
        return "up" if self.last else "starting"

    def text(self, state: NeighbourState, now: float) -> str:
        """Describe a state in one sentence."""
        if state == "up" and self.last:
            return self.last.sentence
        why = f" ({self.failure.text})" if self.failure and self.failure.kind == "down" else ""
        if state == "refused" and self.failure:
            return self.failure.text
        if state == "stopped" and self.last:
            return f"memwatchd was stopped at {words.clock(self.last.unix)}"
        if state == "starting":
            return f"no answer yet{why}"
        if self.failure and self.failure.kind == "ended" and self.last:
            when = words.clock(self.last.unix)
            return f"memwatchd was stopped at {when}, and has not come back for {words.elapsed(now - self.last_at)}"
        found = self.last_words()
        if found is None:
            return f"no answer for {words.elapsed(now - self.last_at)}{why}"
        return f"{found.sentence}{why}"

    def last_words(self) -> LastWords | None:
        """Return the end of its ticks. Computed once per tick."""
        if self.last is not None and (self._words is None or self._words.tick is not self.last):
            found = tell_last_words(self.recent())
            self._words = found and LastWords(self.last, found.falling_bytes_per_second, found.sentence)
        return self._words

    def recent(self) -> Sequence[Tick]:
        """Return every tick of its last 120 s, the oldest first."""
        if self.last is None:
            return ()
        newest = self.last.unix
        return [tick for tick in decode_all(self._recent.ticks()) if abs(newest - tick.unix) <= RECENT_SECONDS]

    def hour(self) -> Sequence[Tick]:
        """Return a tick for each 10 s of its last hour, the oldest first."""
        return decode_all(self._hour.ticks())

    @property
    def known_clock_offset_seconds(self) -> float | Absent:
        """Return by how much its clock is ahead of ours, NOT_AVAILABLE if that may be delay."""
        offset = self.clock_offset_seconds
        return offset if self.last is not None and abs(offset) >= MIN_CLOCK_OFFSET_SECONDS else Absent.NOT_AVAILABLE
