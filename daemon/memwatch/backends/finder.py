"""Looks at files and asks OpenCL in a child process, on demand and never on a tick; remembers it for a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from memwatch.backends.discovery import backends_of
from memwatch.backends.model import Backends
from memwatch.backends.opencl_result import OpenclAnswer
from memwatch.backends.probes import Evidence, gather
from memwatch.helper.codec import Garbled, from_line
from memwatch.helper.supervisor import Helper, HelperFailed
from memwatch.linux.files import Roots
from memwatch.snapshot import Snapshot

CHILD = (sys.executable, "-m", "memwatch.backends.opencl_child")
DEADLINE_SECONDS = 10.0
KEPT_SECONDS = 60.0


def ask_opencl(argv: Sequence[str] = CHILD, deadline_seconds: float = DEADLINE_SECONDS) -> OpenclAnswer:
    """What a child that lives as long as its answer says; a hang or a crash is an answer too."""
    helper = Helper(argv, deadline_seconds, pause_seconds=0.0)
    try:
        return from_line(OpenclAnswer, helper.ask(b"ask"))
    except (HelperFailed, Garbled) as error:
        return OpenclAnswer(failure="failed", text=str(error))
    finally:
        helper.stop()


class Finder:
    """Finds the backends of one machine. For one thread at a time; the first call takes up to ten seconds.

    OpenCL speaks for the machine that this process runs on, so a host seen through other folders is not asked.
    """

    def __init__(
        self, roots: Roots, ask: Callable[[], OpenclAnswer] = ask_opencl, for_others: bool = False
    ) -> None:
        """`for_others`: it answers programs of other users than its own."""
        self._roots, self._for_others = roots, for_others
        self._ask = ask if roots.rootfs == Path("/") else None
        self._evidence: Evidence | None = None
        self._at = 0.0

    def find(self, snapshot: Snapshot) -> Backends:
        """Every backend as of now: memory as the snapshot has it, the rest as of the last minute."""
        if self._evidence is None or time.monotonic() - self._at >= KEPT_SECONDS:
            self._evidence = gather(self._roots, self._ask, for_others=self._for_others)
            self._at = time.monotonic()
        return backends_of(self._evidence, snapshot, round(time.monotonic() - self._at, 3))
