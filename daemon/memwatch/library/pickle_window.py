"""Window over a pickle's bytes: a part of the file, moved on before an operation could reach its end."""

from __future__ import annotations

from typing import BinaryIO

CHUNK_BYTES = 4 << 20
# Before an operation, this many bytes are in the window, or all that the file has left.
MAX_OPERATION_BYTES = (1 << 20) + 16
# Bytes that stay in the window behind the current one.
KEPT_BYTES = 32


class PickleWindow:
    """Bytes `data`, of which `at` is the next one. `passed`: bytes of the file before `data`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.data: bytes = file.read(CHUNK_BYTES)
        self.at: int = 0
        self.passed: int = 0
        self.refill_at: int = 0
        self._set_limit(CHUNK_BYTES)

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self.passed + self.at

    def move(self) -> None:
        """Move the window on. Call it when `at` is `refill_at` or above."""
        kept = max(0, self.at - KEPT_BYTES)
        more = self._file.read(CHUNK_BYTES)
        self.data, self.at, self.passed = self.data[kept:] + more, self.at - kept, self.passed + kept
        self._set_limit(len(more))

    def _set_limit(self, count: int) -> None:
        is_whole = count < CHUNK_BYTES
        self.refill_at = len(self.data) + 1 if is_whole else max(1, len(self.data) - MAX_OPERATION_BYTES)
