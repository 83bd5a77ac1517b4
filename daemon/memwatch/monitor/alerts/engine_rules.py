"""Alert rule of model servers: requests wait because the KV cache is full. Pure functions."""

from __future__ import annotations

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Pool
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size

FULL_RATIO = 0.95
# A pool with this part available has room for a larger cache.
MIN_FREE_RATIO = 0.15
PENDING_SECONDS = 30.0
# Options that raise the size of the cache, and that lower its use.
RAISE = {
    "vllm": "--gpu-memory-utilization",
    "sglang": "--mem-fraction-static",
    "llama.cpp": "-c",
    "ollama": "OLLAMA_CONTEXT_LENGTH",
    "tensorrt-llm": "--kv_cache_free_gpu_memory_fraction",
}
LOWER = {
    "vllm": "--max-num-seqs or --max-model-len",
    "sglang": "--max-running-requests or --context-length",
    "llama.cpp": "-np",
    "ollama": "OLLAMA_NUM_PARALLEL",
    "tensorrt-llm": "--max_batch_size",
}


def is_full(engine: Engine) -> bool | Absent:
    """Return True while requests wait and the cache is full. Absent if the engine does not report both."""
    waiting, ratio = engine.requests_waiting, engine.kv_cache_ratio
    if isinstance(waiting, Absent) or isinstance(ratio, Absent):
        return waiting if isinstance(waiting, Absent) else Absent.NOT_AVAILABLE
    return waiting > 0 and ratio >= FULL_RATIO


def describe_full(engine: Engine, snapshot: Snapshot) -> str:
    """Return what is wrong, and what to change: by whether the pool of the engine has memory left."""
    waiting, ratio = engine.requests_waiting, engine.kv_cache_ratio
    used = f"{ratio:.0%}" if isinstance(ratio, float) else "nearly"
    of = f" of {size(engine.kv_cache_bytes)}" if isinstance(engine.kv_cache_bytes, int) else ""
    problem = f"{engine.id}: {waiting} requests wait, and its KV cache{of} is {used} full"
    pool = find_engine_pool(engine, snapshot)
    if pool is None or isinstance(pool.available_bytes, Absent):
        return problem
    left = f"{pool.label} has {size(pool.available_bytes)} available"
    if pool.available_bytes >= MIN_FREE_RATIO * pool.size_bytes:
        return f"{problem}; {left}: raise {RAISE.get(engine.kind, 'the size of its cache')}"
    return f"{problem}; {left} only: lower {LOWER.get(engine.kind, 'the number of its requests at once')}"


def find_engine_pool(engine: Engine, snapshot: Snapshot) -> Pool | None:
    """Return the pool in which an engine holds most device memory; System RAM for one that holds none."""
    within = {share.id: share.within for share in snapshot.shares}
    held = {place: figure for place, figure in engine.held_bytes.items() if isinstance(figure, int)}
    place = max(held, key=lambda one: held[one], default="ram")
    while place in within:
        place = within[place]
    return next((pool for pool in snapshot.pools if pool.id == place), None)
