"""Bytes of a pipe as whole lines. Not a collector."""

from __future__ import annotations


class Lines:
    """Keeps the beginning of a line until its end has come. What gets longer than `most_bytes` is left out whole.

    `cut` counts lines that were too long.
    """

    def __init__(self, most_bytes: int) -> None:
        self.cut = 0
        self._most = most_bytes
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, each with its newline."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if self._skipping and lines:
            lines.pop(0)
            self._skipping = False
        kept = [line for line in lines if len(line) <= self._most]
        self.cut += len(lines) - len(kept)
        if len(self._rest) >= self._most:
            self.cut += not self._skipping
            self._rest, self._skipping = b"", True
        return kept
