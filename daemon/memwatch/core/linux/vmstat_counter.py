"""One line of /proc/vmstat. Not a collector."""

from __future__ import annotations

from memwatch.core.model import Absent

OOM_KILL = b"oom_kill"
# Direct reclaim of the machine, by zone: a machine has some of these lines.
ALLOCSTALL: tuple[bytes, ...] = tuple(
    b"allocstall_" + zone for zone in (b"dma", b"dma32", b"normal", b"highmem", b"movable", b"device")
)
MAX_DIGITS = 20


class Counter:
    """One line of vmstat, which has about 180 lines: searched first at its last position."""

    def __init__(self, key: bytes) -> None:
        self._key = self._line = b"\n" + key + b" "
        self._at = -1
        self.was_found: bool = False
        self.value: int | Absent = Absent.NOT_SUPPORTED

    def place(self) -> tuple[bytes, int]:
        """Return the line's text and position. At position 0 an empty text, which every file has, if missing."""
        return (self._line, self._at) if self._at >= 0 else (b"", 0)

    def search(self, data: bytes) -> None:
        """Find the line and parse the number after the key up to the end of the line."""
        key, at = self._key, max(0, self._at)
        if not data.startswith(key, at):
            at = data.find(key)
        start = at + len(key)
        end = data.find(b"\n", start)
        digits = data[start:end]
        if at < 0 or end < 0 or not digits.isdigit() or len(digits) > MAX_DIGITS:
            self._at, self.value = -1, Absent.NOT_SUPPORTED
        else:
            self._line, self._at, self.value = data[at : end + 1], at, int(digits)
            self.was_found = True
