"""Test which errors are out-of-memory errors, and the size and GPU that their messages name."""

from __future__ import annotations

import pytest

import memwatch
from memwatch.core.model import Absent, Bytes
from memwatch.training.oom_errors import find_gpu, find_wanted_bytes

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tried to allocate 512 B", 512),
        ("Out of memory allocating 1,024 bytes", 1024),
        ("Tried to allocate 20.50 KiB", 20_992),
        ("Tried to allocate 3.00 MiB", 3 << 20),
        ("Tried to allocate 2.00 GiB", 2 << 30),
        ("Unable to allocate 8.00 TiB for an array", 8 << 40),
        ("Unable to allocate 1.50 PiB for an array", 3 << 49),
        ("Tried to allocate 2.00 GB", Absent.NOT_AVAILABLE),
        ("out of memory", Absent.NOT_AVAILABLE),
    ],
)
def test_wanted_size_is_read_in_every_unit(text: str, expected: Bytes) -> None:
    assert find_wanted_bytes(text) == expected


@pytest.mark.parametrize(("length", "is_read"), [(1999, True), (2000, True), (2001, False)])
def test_only_the_first_2000_characters_of_a_message_are_read(length: int, is_read: bool) -> None:
    """A message may quote all of a program, and matching it would take as long."""

    def ending_with(words: str) -> str:
        return words.rjust(length)

    assert memwatch.is_out_of_memory(RuntimeError(ending_with("CUDA error: out of memory"))) is is_read
    assert (find_wanted_bytes(ending_with("Tried to allocate 2 MiB")) == 2 << 20) is is_read
    assert (find_gpu(ending_with("GPU 3")) == 3) is is_read
