"""Fault: no new thread can be started, since its stack does not fit into memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MORE_THAN_ANY_ADDRESS_SPACE = 1 << 60


@contextmanager
def no_threads() -> Iterator[None]:
    """Make every new thread of this process fail: the kernel rejects its stack."""
    before = threading.stack_size(MORE_THAN_ANY_ADDRESS_SPACE)
    try:
        yield
    finally:
        threading.stack_size(before)
