"""Out-of-memory errors of Python and of frameworks: how to recognize one, and what it asked for."""

from __future__ import annotations

import re
import traceback

from memwatch.core.model import Absent, Bytes
from memwatch.library.program_safety import never_raise

# Messages of out-of-memory errors without their own class (RuntimeError, XlaRuntimeError).
OUT_OF_MEMORY = re.compile(
    # CUDA, HIP ("HIP out of memory"), XPU, MPS; hipErrorOutOfMemory, HIP_ERROR_OutOfMemory (TensorFlow on ROCm).
    r"out of memory|OutOfMemory"
    # CUDA_ERROR_OUT_OF_MEMORY. Intel's UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, which PyTorch raises as RuntimeError:
    # https://github.com/pytorch/pytorch/issues/177714
    r"|OUT_OF_(?:DEVICE_|HOST_)?MEMORY|RESOURCE_EXHAUSTED|std::bad_alloc"
    # PyTorch on the CPU: alloc_cpu.cpp on Linux and on Windows.
    r"|can't allocate memory|DefaultCPUAllocator: not enough memory"
    # ROCm's runtime throws "MemoryRegion::BlockAllocator::alloc failed." if the region has no room for a block:
    # core/runtime/amd_memory_region.cpp in ROCR-Runtime. Its HSA_STATUS_ERROR_OUT_OF_RESOURCES may be threads, too.
    r"|BlockAllocator::alloc failed"
    # "Usually caused by a cudaMalloc() failure": https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t
    r"|(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
# ResourceExhaustedError: TensorFlow's, also from Keras. https://github.com/keras-team/keras/issues/9643
NAMES = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError", "ResourceExhaustedError"})
# "Tried to allocate 2.00 GiB" (PyTorch), "allocating 1,024 bytes" (CuPy), "allocate 4294967296 bytes" (JAX, PyTorch
# on the CPU), "Unable to allocate 8.00 TiB" (NumPy).
WANTED = re.compile(r"\ballocat(?:e|ing)\s+(?:request for\s+)?([\d,]{1,25}(?:\.\d{1,9})?)\s*([KMGTP]?i?B|bytes)\b")
GPU = re.compile(r"\bGPU (\d{1,4})\b")
UNITS = {"bytes": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
MAX_LENGTH = 2000


@never_raise(False)
def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of Python, PyTorch, CuPy, JAX or TensorFlow. Never raises.

    `error`: the exception itself. Its class or its text is no error: False.
    """
    if isinstance(error, MemoryError) or type(error).__name__ in NAMES:
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)[:MAX_LENGTH]) is not None


def drop_frames(error: BaseException) -> BaseException:
    """Return an error without the variables of its frames, which reference the tensors that should be freed."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    return error


def find_wanted_bytes(text: str) -> Bytes:
    """Return the size that a message says could not be allocated."""
    found = WANTED.search(text[:MAX_LENGTH])
    if found is None or found[2] not in UNITS:
        return Absent.NOT_AVAILABLE
    return int(float(found[1].replace(",", "")) * (1 << UNITS[found[2]]))


def find_gpu(text: str) -> int | None:
    """Return the number of the GPU that a message of PyTorch names."""
    found = GPU.search(text[:MAX_LENGTH])
    return None if found is None else int(found[1])
