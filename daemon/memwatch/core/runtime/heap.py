"""The heap of the C library."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8


def trim_heap() -> bool:
    """Return free memory of the heap to the kernel. False if the C library has no malloc_trim, as musl."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return False
    trim(0)
    return True


def use_one_arena() -> None:
    """Let all threads of glibc use one arena: each further one takes 20 KiB, and 64 MiB of address space."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(_M_ARENA_MAX, 1)
