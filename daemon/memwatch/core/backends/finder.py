"""Find backends on request, never on a tick: read files, query OpenCL in a child process, cache for a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from memwatch.core.backends.model import Backends, OpenclResult
from memwatch.core.backends.probes import ProbeResults, gather
from memwatch.core.backends.rules import build_backends
from memwatch.core.helper.codec import DecodeError, from_line
from memwatch.core.helper.python_child import python_child
from memwatch.core.helper.supervisor import Helper, HelperError
from memwatch.core.linux.files import Roots
from memwatch.core.snapshot import Snapshot

CHILD = "memwatch.core.backends.opencl_child"
DEADLINE_SECONDS = 10.0
CACHE_SECONDS = 60.0


def ask_opencl(argv: Sequence[str] | None = None, deadline_seconds: float = DEADLINE_SECONDS) -> OpenclResult:
    """Query OpenCL in a short-lived child process, `CHILD` by default. A hang or a crash becomes a failure."""
    helper = Helper(argv or python_child(CHILD), deadline_seconds, pause_seconds=0.0)
    try:
        return from_line(OpenclResult, helper.ask(b"ask"))
    except (HelperError, DecodeError) as error:
        return OpenclResult(failure="failed", text=str(error))
    finally:
        helper.stop()


class Finder:
    """Finds the backends of one machine. Not thread-safe. The first call takes up to ten seconds.

    OpenCL only reports on the machine that this process runs on. It is not queried if `roots` is another one.
    """

    def __init__(
        self, roots: Roots, ask: Callable[[], OpenclResult] = ask_opencl, for_others: bool = False
    ) -> None:
        """`for_others`: the result is used by programs of other users."""
        self._roots, self._for_others = roots, for_others
        self._ask = ask if roots.rootfs == Path("/") else None
        self._probe_results: ProbeResults | None = None
        self._at = 0.0

    def find(self, snapshot: Snapshot) -> Backends:
        """Return every backend: memory from the snapshot, all else at most a minute old."""
        if self._probe_results is None or time.monotonic() - self._at >= CACHE_SECONDS:
            self._probe_results = gather(self._roots, self._ask, for_others=self._for_others)
            self._at = time.monotonic()
        return build_backends(self._probe_results, snapshot, round(time.monotonic() - self._at, 3))
