"""Peaks of CuPy's default pool, which counts none itself: a memory hook of CuPy reads it after allocations.

CuPy calls a thread's hooks for what this thread allocates and frees. A peak is exact as long as every other thread
has a hook too, or is one of this library's: any other could allocate unseen.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

from msgspec import Struct

from memwatch.library.program_safety import never_raise

OWN_THREADS = "memwatch-"


class CupyPeak(Struct):
    """Peaks of one GPU's pool since the last reset. `expected_bytes`: in use, as the hooks add it up."""

    used_bytes: int
    reserved_bytes: int
    expected_bytes: int
    is_exact: bool

    def see(self, used: int, reserved: int) -> None:
        self.used_bytes = max(self.used_bytes, used)
        self.reserved_bytes = max(self.reserved_bytes, reserved)


class CupyPeaks:
    """Peaks by GPU while blocks are open, and the number of open blocks by thread. Their threads have a hook."""

    def __init__(self) -> None:
        self._peaks: dict[int, CupyPeak] = {}
        self._open: dict[int, int] = {}
        self._hook: Any = None
        # Garbage collection frees arrays, so a hook may be called within a call here.
        self._lock = threading.RLock()

    def acquire(self) -> int:
        """Hook the calling thread for one more block. Return the thread, 0 if CuPy cannot be used."""
        cupy, thread = sys.modules.get("cupy"), threading.get_ident()
        if cupy is None or not (self._open.get(thread) or self._enter(cupy)):
            return 0
        with self._lock:
            self._open[thread] = self._open.get(thread, 0) + 1
        return thread

    def _enter(self, cupy: Any) -> bool:  # noqa: ANN401  a module
        try:
            cupy.get_default_memory_pool().total_bytes()  # raises without a GPU
            if self._hook is None:
                self._hook = build_hook(cupy, self)
            with suppress(KeyError):  # left there by a block that another thread closed
                self._hook.__enter__()
        except Exception:  # noqa: BLE001  CuPy's exception classes are not imported here
            return False
        if not self._open:
            self._peaks.clear()
        return True

    def release(self, thread: int) -> None:
        """End one block of a thread. Its last one removes the hook, if called in that thread."""
        with self._lock:
            left = self._open.pop(thread, 0) - 1
            if left > 0:
                self._open[thread] = left
        if left == 0 and thread == threading.get_ident():
            with suppress(KeyError):  # the program has removed it
                self._hook.__exit__()

    def find(self, device: int) -> CupyPeak | None:
        """Return the peaks of a GPU, None while they are not counted.

        Without any so far, it is the GPU's first allocation, which the pool counts before it calls the hook: CUDA
        takes 0.2 s for it (seen with CuPy 14.2 on an H100).
        """
        if not self._open:
            return None
        with self._lock:
            found = self._peak(device)
        self._check_threads()
        return found

    def reset(self, device: int, used: int, reserved: int) -> bool:
        """Count from now on. False if the calling thread has no hook."""
        if threading.get_ident() not in self._open:
            return False
        with self._lock:
            self._peaks[device] = CupyPeak(used, reserved, used, not self._has_other_threads())
        return True

    @never_raise(None)
    def on_malloc(self, device_id: int, mem_size: int, mem_ptr: int, **_: object) -> None:
        """Take an allocation. The pool is read only near a new peak: older versions of CuPy add up all arrays."""
        if not mem_ptr or not self._open:
            return
        peak = self._count(device_id, mem_size)
        if peak.is_exact:
            self._check_threads()
        if peak.expected_bytes <= peak.used_bytes:
            return
        pool = sys.modules["cupy"].get_default_memory_pool()
        used, reserved = pool.used_bytes(), pool.total_bytes()
        with self._lock:
            if used > peak.expected_bytes:
                peak.is_exact = False  # another thread allocates without a hook
            peak.expected_bytes = used
            peak.see(used, reserved)

    @never_raise(None)
    def on_free(self, device_id: int, mem_size: int, **_: object) -> None:
        if self._open:
            self._count(device_id, -mem_size)

    @never_raise(None)
    def on_reserve(self, device_id: int, mem_ptr: int, **_: object) -> None:
        if mem_ptr and self._open:
            reserved = sys.modules["cupy"].get_default_memory_pool().total_bytes()
            with self._lock:
                self._peak(device_id).see(0, reserved)

    def _count(self, device: int, change: int) -> CupyPeak:
        with self._lock:
            peak = self._peak(device)
            peak.expected_bytes += change
            return peak

    def _peak(self, device: int) -> CupyPeak:
        if device not in self._peaks:  # the first use of this GPU
            self._peaks[device] = CupyPeak(0, 0, 0, not self._has_other_threads())
        return self._peaks[device]

    def _check_threads(self) -> None:
        with self._lock:
            if self._has_other_threads():
                for peak in self._peaks.values():
                    peak.is_exact = False

    def _has_other_threads(self) -> bool:
        """Return True if a thread runs that may use CuPy unseen."""
        running = threading.enumerate()
        return any(one.ident not in self._open and not one.name.startswith(OWN_THREADS) for one in running)

    def after_fork(self) -> None:
        """Remove the hook in the child, where no block of the parent ends."""
        hook, is_open = self._hook, threading.get_ident() in self._open
        self.__init__()  # type: ignore[misc]
        if is_open:
            with suppress(Exception):
                hook.__exit__()


def build_hook(cupy: Any, peaks: CupyPeaks) -> Any:  # noqa: ANN401
    """Build a hook on CuPy's base class. CuPy passes all arguments by name."""
    methods = {
        "name": "memwatch",
        "malloc_postprocess": lambda _self, **event: peaks.on_malloc(**event),
        "free_postprocess": lambda _self, **event: peaks.on_free(**event),
        "alloc_postprocess": lambda _self, **event: peaks.on_reserve(**event),
    }
    return type("MemwatchHook", (cupy.cuda.MemoryHook,), methods)()


cupy_peaks: CupyPeaks = CupyPeaks()
