"""The heap of the C library."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> bool:
    """Return free memory of the heap to the kernel. False if the C library has no malloc_trim, as musl."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return False
    trim(0)
    return True
