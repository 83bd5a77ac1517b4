"""Server-sent events from a stream of bytes, within bounds."""

from __future__ import annotations

from memwatch.monitor.neighbours.tick import TickError

# A tick has at most 4 KiB; comments and the names of fields add little.
MAX_EVENT_BYTES = 8 << 10
TICK = b"tick"


class EventParser:
    """Collects the body of a stream and returns the data of its ticks. `count`: all events and comments so far."""

    def __init__(self) -> None:
        self._rest = b""
        self.count: int = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each tick that is complete now. Raises TickError if an event does not end."""
        *blocks, rest = (self._rest + data).split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise TickError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        self._rest = rest
        self.count += len(blocks)
        return [found for block in blocks if (found := parse_tick(block)) is not None]


def parse_tick(block: bytes) -> bytes | None:
    """Return the data of a tick, None for a comment or another event."""
    event, data = b"", []
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name == b"event":
            event = value.strip()
        elif name == b"data":
            data.append(value.strip())
    return b" ".join(data) if event == TICK and data else None
