"""Sizes of a model that an engine serves: its weights, and the cache whose capacity the engine reports."""

from __future__ import annotations

import math

from msgspec.structs import replace

from memwatch.engines.records import Cache, ModelSizes
from memwatch.model import Absent, Bytes, Quality
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint, read_gguf
from memwatch.planning.inference import compute_cached_numbers, compute_kv_cache, compute_weights, layers_of_group
from memwatch.planning.model_file import ModelPath
from memwatch.planning.number_formats import bits_per_cached_number
from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.transformer import Transformer

# Ollama stores a GGUF file under its digest.
BLOB = "sha256-"
# A windowed layer of llama.cpp has room for one step beside its window (`--ubatch-size`).
STEP_TOKENS = 512


def size_model(path: ModelPath, cache: Cache | None = None) -> ModelSizes:
    """Read a model's files. Figures that do not follow from them are absent, with the reason as a note."""
    try:
        checkpoint = read_gguf([path]) if path.name.startswith(BLOB) else read_checkpoint(path)
        weights = size_weights(checkpoint)
    except (InvalidInputError, OSError) as error:
        return ModelSizes(note=str(error))
    try:
        return size_cache(checkpoint, weights, cache)
    except InvalidInputError as error:
        return ModelSizes(weights, note=str(error))


def size_weights(checkpoint: Checkpoint) -> Bytes:
    if checkpoint.weights_bytes is not None:
        return checkpoint.weights_bytes
    if checkpoint.transformer is None or checkpoint.problem:
        return Absent.NOT_AVAILABLE
    return compute_weights(checkpoint.transformer, checkpoint.dtype_bytes, checkpoint.scope)


def size_cache(checkpoint: Checkpoint, weights: Bytes, cache: Cache | None) -> ModelSizes:
    shape = checkpoint.transformer
    if cache is None:
        return ModelSizes(weights)
    if cache.replicas > 1:
        weights = Absent.NOT_AVAILABLE if cache.splits_experts else multiply(weights, cache.replicas)
    if shape is None:
        return ModelSizes(weights, note=f"The model's shape is not known: {checkpoint.note or 'no config.json'}.")
    if shape.linear_layers:
        return ModelSizes(weights, note="Layers that keep a state have pages of a size of their own.")
    quality = Quality.ESTIMATED if shape.sliding_window else Quality.DERIVED
    found = _block_bytes(shape, cache) if cache.layout == "blocks" else _cell_bytes(shape, cache)
    return ModelSizes(weights, found, quality)


def multiply(weights: Bytes, replicas: int) -> Bytes:
    """Return the weights of all replicas: each has its own."""
    return weights if isinstance(weights, Absent) else weights * replicas


def _block_bytes(shape: Transformer, cache: Cache) -> int:
    """Return the bytes of all blocks. Each GPU has as many, with its part of the KV heads.

    Heads that are fewer than the GPUs are copied, and so is the one latent vector of MLA.
    """
    heads = 1 if shape.kv_lora_rank else shape.n_kv_heads
    copies = max(1.0, cache.parallel / heads)
    tokens = cache.blocks * cache.block_tokens
    numbers = tokens * layers_of_group(shape) * shape.cached_numbers
    each = compute_cached_numbers(shape, numbers, _number_bytes(cache)) + tokens * shape.side_bytes
    return math.ceil(each * copies)


def _cell_bytes(shape: Transformer, cache: Cache) -> int:
    if shape.sliding_window:
        shape = replace(shape, sliding_window=shape.sliding_window + STEP_TOKENS)
    return compute_kv_cache(shape, cache.tokens, cache.sequences, _number_bytes(cache))


def _number_bytes(cache: Cache) -> float:
    """Return the mean bytes of a number: keys and values may have different formats."""
    return (_format_bytes(cache.key_dtype) + _format_bytes(cache.value_dtype)) / 2


def _format_bytes(dtype: str) -> float:
    return 2.0 if dtype == "auto" else bits_per_cached_number(dtype) / 8
