"""Wait until there is room."""

from __future__ import annotations

import time

from memwatch.library.truth import memory_info
from memwatch.planning.quantities import BadInput, bytes_of


def wait_for(size: str | int, timeout: float | None = None, device: object = None, interval: float = 1.0) -> bool:
    """Whether so much can be had now, waiting at most `timeout` seconds for it. Raises BadInput.

    In System RAM, or on a GPU. What is not known is not waited for: then the answer is False at the end.
    """
    need = bytes_of(size)
    if not 0.01 <= interval <= 3600:
        raise BadInput(f"interval is {interval!r}, which is not from 0.01 to 3600 seconds; for example 1")
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        found = memory_info(device)
        if found is not None and isinstance(found.headroom_bytes, int) and found.headroom_bytes >= need:
            return True
        if until is not None and time.monotonic() + interval > until:
            return False
        time.sleep(interval)
