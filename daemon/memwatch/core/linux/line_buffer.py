"""Split the bytes of a pipe into complete lines. Not a collector."""

from __future__ import annotations


class LineBuffer:
    """Buffers the beginning of a line until it is complete. Lines longer than `max_bytes` are dropped.

    `cut` counts the dropped lines.
    """

    def __init__(self, max_bytes: int) -> None:
        self.cut: int = 0
        self._max_bytes = max_bytes
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete, each with its newline."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if self._skipping and lines:
            lines.pop(0)
            self._skipping = False
        kept = [line for line in lines if len(line) <= self._max_bytes]
        self.cut += len(lines) - len(kept)
        if len(self._rest) >= self._max_bytes:
            self.cut += not self._skipping
            self._rest, self._skipping = b"", True
        return kept
