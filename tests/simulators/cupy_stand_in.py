"""Fake CuPy with one GPU, whose pool calls memory hooks where cupy/cuda/memory.pyx does. CuPy's own needs a GPU.

Hooks belong to a thread, arguments are passed by name, and a second hook of the same name is a KeyError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

UNIT_BYTES = 512


class CupyHooks(threading.local):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}


hooks = CupyHooks()


class CupyMemoryHook:
    """The class MemoryHook of cupy/cuda/memory_hook.pyx."""

    name = "MemoryHook"

    def __enter__(self) -> CupyMemoryHook:
        if self.name in hooks.found:
            raise KeyError(f"memory hook {self.name} already exists")
        hooks.found[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del hooks.found[self.name]

    def alloc_preprocess(self, **_: object) -> None: ...
    def alloc_postprocess(self, **_: object) -> None: ...
    def malloc_preprocess(self, **_: object) -> None: ...
    def malloc_postprocess(self, **_: object) -> None: ...
    def free_preprocess(self, **_: object) -> None: ...
    def free_postprocess(self, **_: object) -> None: ...


def call(name: str, **event: int) -> None:
    for hook in hooks.found.values():
        getattr(hook, name)(**event)


class PooledArray:
    """Memory of a pool, freed once."""

    def __init__(self, pool: CountingCupy, size: int) -> None:
        self._pool, self.size = pool, size

    def free(self) -> None:
        event = {"device_id": 0, "mem_size": self.size, "mem_ptr": 1, "pmem_id": id(self)}
        call("free_preprocess", **event)
        self._pool.used -= self.size
        call("free_postprocess", **event)


class CountingCupy:
    """The module and its default pool. `reads`: calls of used_bytes.

    `driver`: called when memory is reserved. The pool has counted it by then.
    """

    MemoryHook = CupyMemoryHook

    def __init__(self, limit: int = 1 << 40, driver: Callable[[], object] = bool) -> None:
        self.driver = driver
        self.cuda = self.runtime = self
        self.used = self.total = self.reads = 0
        self.limit = limit

    def get_default_memory_pool(self) -> CountingCupy:
        return self

    def getDevice(self) -> int:
        return 0

    def used_bytes(self) -> int:
        self.reads += 1
        return self.used

    def total_bytes(self) -> int:
        return self.total

    def free_all_blocks(self) -> None:
        self.total = self.used

    def malloc(self, size: int) -> PooledArray:
        rounded = -(-size // UNIT_BYTES) * UNIT_BYTES
        call("malloc_preprocess", device_id=0, size=size, mem_size=rounded)
        array = None
        try:
            array = self._malloc(rounded)
        finally:
            known = (1, id(array)) if array else (0, 0)
            call(
                "malloc_postprocess",
                device_id=0,
                size=size,
                mem_size=rounded,
                mem_ptr=known[0],
                pmem_id=known[1],
            )
        return array

    def _malloc(self, rounded: int) -> PooledArray:
        if self.used + rounded > self.total:
            missing = self.used + rounded - self.total
            call("alloc_preprocess", device_id=0, mem_size=missing)
            is_possible = self.total + missing <= self.limit
            self.total += missing if is_possible else 0
            self.driver()
            call("alloc_postprocess", device_id=0, mem_size=missing, mem_ptr=int(is_possible))
            if not is_possible:
                raise MemoryError(f"Out of memory allocating {rounded} bytes")
        self.used += rounded
        return PooledArray(self, rounded)
