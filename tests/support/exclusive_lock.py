"""Lock between tests: those that measure wait until they run alone, others wait until these are done."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def taking_turns(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place among the workers that share `folder`; with `alone`, no other worker holds one meanwhile.

    All pass a gate that a worker waiting to be alone keeps locked. Without it, two busy workers would alternate and
    it would wait forever.
    """
    with (folder / "gate").open("w") as access, (folder / "place").open("w") as place:
        with _stopped_clock():
            fcntl.flock(access, fcntl.LOCK_EX)
            fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(access, fcntl.LOCK_UN)
        yield


@contextmanager
def _stopped_clock() -> Iterator[None]:
    """Stop the clock of the test (`support.deadline`) meanwhile: other tests cause this wait."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)
