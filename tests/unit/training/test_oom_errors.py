"""Test which errors are out-of-memory errors, and the size and GPU that their messages name."""

from __future__ import annotations

import pytest

import memwatch
from memwatch.core.model import Absent, Bytes
from memwatch.training.oom_errors import find_gpu, find_wanted_bytes

CUPY = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
TORCH = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
TENSORFLOW = type("ResourceExhaustedError", (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (TORCH("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (CUPY("Out of memory allocating 1,024 bytes"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes."), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 29491200 bytes."), True),
        (TENSORFLOW("OOM when allocating tensor with shape[128,128,109,109] and type float"), True),
        (RuntimeError("HSA exception: MemoryRegion::BlockAllocator::alloc failed."), True),
        (RuntimeError("HIP error: hipErrorOutOfMemory"), True),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"), False),
        (RuntimeError("HSA exception: Queue create failed at hsaKmtCreateQueue"), False),
        (ValueError("out of memory"), False),
        (KeyError("x"), False),
    ],
    ids=lambda value: f"{type(value).__name__} {value}"[:60].strip(),
)
def test_out_of_memory_errors_of_frameworks_are_recognized(error: BaseException, is_one: bool) -> None:
    assert memwatch.is_out_of_memory(error) is is_one


class UnreadableError(RuntimeError):
    def __str__(self) -> str:
        raise TypeError("no text")


@pytest.mark.parametrize("wrong", [None, "CUDA out of memory", MemoryError, 3, UnreadableError()])
def test_anything_but_an_exception_with_a_text_is_no_out_of_memory_error(wrong: BaseException) -> None:
    """It is called where an error is handled already, so another one would hide that."""
    assert memwatch.training.is_out_of_memory(wrong) is False


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
