"""Shares of a model on each of several GPUs, for tensor and pipeline parallelism."""

from __future__ import annotations

from memwatch.planning.transformer import Transformer

PARALLEL = ("tensor", "pipeline")


def choose_parallel_kind(shape: Transformer, wanted: str, gpus: int) -> str:
    """Return tensor or pipeline. Tensor parallelism needs a number of GPUs that divides the heads."""
    return wanted or ("pipeline" if shape.n_heads % gpus else "tensor")


def shares_of(shape: Transformer, how: str, gpus: int, weights: int, cache: float) -> dict[str, float]:
    """Return the part of weights and cache on the fullest GPU. Activations are not divided.

    Tensor: `cache` is the part of the cache. Pipeline: whole layers, and on the fullest one table of embeddings.
    """
    if gpus == 1:
        return {}
    if how == "tensor":
        return {"weights": 1 / gpus, "kv_cache": cache}
    layers = min(1.0, -(-shape.n_layers // gpus) / shape.n_layers)
    table = min(1.0, shape.vocab_size * shape.hidden_size * 2 / max(1, weights))
    tables = min(1.0, table * (1 if shape.tied_embeddings else 2))
    return {"weights": min(1.0, (1 - tables) * layers + table), "kv_cache": layers}
