"""Test which errors are out-of-memory errors."""

from __future__ import annotations

import pytest

import memwatch

CUPY = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
TORCH = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (TORCH("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (CUPY("Out of memory allocating 1,024 bytes"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes."), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
        (KeyError("x"), False),
    ],
    ids=["Python", "PyTorch", "CuPy", "JAX", "PyTorch on the CPU", "another error of CUDA", "a value", "a key"],
)
def test_out_of_memory_errors_of_frameworks_are_recognized(error: BaseException, is_one: bool) -> None:
    assert memwatch.is_out_of_memory(error) is is_one
