"""Who may run beside whom: tests that measure wait until they are alone, the others wait until those are done."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def taking_turns(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place among the workers that share `folder`; `alone`, nobody else holds one meanwhile.

    Everybody goes through a gate that who wants to be alone keeps shut while it waits: without that, two busy
    workers would pass places to each other and it would wait for ever.
    """
    with (folder / "gate").open("w") as gate, (folder / "place").open("w") as place:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
