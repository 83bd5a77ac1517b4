"""Compare plans for GGUF files with what llama.cpp allocates on the CPU: `make test-llama`.

The files have a small Llama with random weights. llama.cpp reports the bytes of its tensors, and logs its buffers
in MiB with two decimals. It is not part of the tests: there are no wheels, and building it took 44 minutes on two
busy cores.
"""

from __future__ import annotations

import ctypes
import re
import sys
import tempfile
from pathlib import Path

import llama_cpp
from msgspec import Struct

from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.inference import compute_activations, compute_kv_cache
from support.written_models import random_weights, write_gguf

MIB = 1 << 20
# "llama_kv_cache: size =    6.00 MiB (  4096 cells, …", "CPU compute buffer size =    73.01 MiB".
CACHE = re.compile(r"llama_kv_cache: size = +([0-9.]+) MiB")
WORK = re.compile(r"compute buffer size = +([0-9.]+) MiB")
FORMS = ("F32", "F16", "Q8_0", "Q5_0", "Q4_0")


class Measured(Struct, frozen=True):
    """Bytes of all tensors; MiB of the cache and of the buffers for computing, as logged."""

    tensor_bytes: int
    cache_mib: float
    work_mib: float


def measure(path: Path, context: int) -> Measured:
    """Load a file, create a context, and return the sizes."""
    lines: list[str] = []
    keep = llama_cpp.llama_log_callback(lambda _level, text, _data: lines.append(text.decode("utf-8", "replace")))
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    found = llama_cpp.Llama(str(path), n_ctx=context, n_batch=512, verbose=True)
    size = int(llama_cpp.llama_model_size(found.model))
    found.close()
    text = "".join(lines)
    cache, work = CACHE.search(text), WORK.findall(text)
    assert cache, text
    return Measured(size, float(cache[1]), sum(map(float, work)))


def main() -> None:
    print(f"llama-cpp-python {llama_cpp.__version__}, Python {sys.version.split()[0]}")
    weights = random_weights()
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            path = write_gguf(Path(folder) / f"{form}.gguf", weights, form)
            planned = read_checkpoint(path)
            assert planned.transformer is not None
            for context in (512, 4096):
                found = measure(path, context)
                cache = compute_kv_cache(planned.transformer, context, 1, 2) / MIB
                work = compute_activations(planned.transformer, context, 1, 2) / MIB
                print(
                    f"{form}, {context} tokens: weights {found.tensor_bytes:,} bytes, planned "
                    f"{planned.weights_bytes:,}; cache {found.cache_mib} MiB, planned {cache:.2f}; "
                    f"computing {found.work_mib} MiB, planned {work:.2f}"
                )
                assert found.tensor_bytes == planned.weights_bytes
                assert abs(found.cache_mib - cache) < 0.01


if __name__ == "__main__":
    main()
