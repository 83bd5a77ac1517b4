"""Memory of an engine's processes in System RAM, beside the GPU's: counted where both are one memory."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.fit import has_context, shares_memory
from memwatch.planning.number_formats import FILE_BITS, canonical_name
from memwatch.planning.request import Use

SAFETENSORS, GGUF = "safetensors", "gguf"


class HostMemory(Struct, frozen=True):
    """Bytes of the processes of one engine, and where the figure is from: a clause. Estimates begin so."""

    bytes: int
    source: str


# By the kind of files that engines load. The most that was measured counts: a yes has to hold.
ESTIMATES = {
    SAFETENSORS: HostMemory(
        int(6.7 * (1 << 30)), "estimated: the most of 5.4 to 6.7 GiB with vLLM on a DGX Spark (llamastash#81)"
    ),
    GGUF: HostMemory(
        int(2.1 * (1 << 30)), "estimated: as llama-server took on a DGX Spark, 2.1 GiB (llama.cpp#28933)"
    ),
}
# Engines whose resident memory is a measure. That of llama.cpp and Ollama also has pages of the mapped file, and
# layers on the CPU.
MEASURED = frozenset({"vllm", "sglang", "tensorrt-llm"})


def file_kind(checkpoint: Checkpoint, dtype: str) -> str:
    """Return the kind of a model's files. A format of llama.cpp is only in GGUF files."""
    if checkpoint.source == "GGUF" or checkpoint.file_format:
        return GGUF
    in_file = canonical_name(dtype) in FILE_BITS or checkpoint.scope == "file"
    return GGUF if in_file and checkpoint.source != "safetensors" else SAFETENSORS


def find_host_memory(checkpoint: Checkpoint, use: Use, snapshot: Snapshot) -> HostMemory | None:
    """Return what an engine's processes take beside the plan: as much as those that run here, else an estimate.

    None where no GPU shares its memory with the CPU, and where no figure is known: of training, of images, and of
    safetensors files on GPUs that vLLM does not run on.
    """
    unified = [device for device in snapshot.devices if shares_memory(device, snapshot)]
    # A format of llama.cpp means its files, whatever was read.
    kind = GGUF if canonical_name(use.dtype) in FILE_BITS else file_kind(checkpoint, use.dtype)
    if not unified or use.training or checkpoint.pipeline:
        return None
    if kind == SAFETENSORS and not any(has_context(device) for device in unified):
        return None
    running = max(_list_running(snapshot), key=lambda one: one.bytes, default=None) if kind == SAFETENSORS else None
    return running or ESTIMATES[kind]


def _list_running(snapshot: Snapshot) -> Iterator[HostMemory]:
    for engine in snapshot.engines:
        taken = _count_host(engine)
        if engine.kind in MEASURED and engine.sleeping is not True and taken is not None and taken > 0:
            yield HostMemory(taken, f"{size(taken)}, as those of {engine.title} ({engine.id}) take here")


def _count_host(engine: Engine) -> int | None:
    """Return the memory of an engine's processes without that of GPUs, None if a figure is not known."""
    held = list(engine.held_bytes.values())
    known = [one for one in held if isinstance(one, int)]
    if not isinstance(engine.footprint_bytes, int) or not held or len(known) != len(held):
        return None
    return engine.footprint_bytes - sum(known)
