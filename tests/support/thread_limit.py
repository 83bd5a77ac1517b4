"""A system that has no thread to give: there is no room for what one would have as its stack."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MORE_THAN_ANY_ADDRESS_SPACE = 1 << 60


@contextmanager
def no_threads() -> Iterator[None]:
    """Nobody in this process gets a new thread meanwhile: the kernel refuses its stack."""
    usual = threading.stack_size(MORE_THAN_ANY_ADDRESS_SPACE)
    try:
        yield
    finally:
        threading.stack_size(usual)
