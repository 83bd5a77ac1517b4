"""Sizes of a model that an engine serves: its weights, and the cache whose capacity the engine reports."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.records import MAX_BYTES, Cache, ModelSizes
from memwatch.core.model import Absent, Bytes, Quality
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
# Any user may write such files.
TOO_LARGE = "The files of its model and its report lead to more bytes than any machine has."


class ServedModel(Struct, frozen=True):
    """A model by its files. `note`: why its shape is not known, a clause. `failure`: why nothing is, a sentence."""

    weights_bytes: Bytes = Absent.NOT_AVAILABLE
    shape: Transformer | None = None
    note: str = ""
    failure: str = ""
    options: tuple[str, ...] = ()


def read_served(path: ModelPath) -> ServedModel:
    """Read a model's files."""
    try:
        checkpoint = read_gguf([path]) if path.name.startswith(BLOB) else read_checkpoint(path)
        return ServedModel(size_weights(checkpoint), checkpoint.transformer, checkpoint.note)
    except (InvalidInputError, OSError) as error:
        return ServedModel(failure=str(error))


def size_served(model: ServedModel, cache: Cache | None) -> ModelSizes:
    """Return the sizes of a model. Those that do not follow from its files are absent, with a note."""
    if model.failure:
        return ModelSizes(note=model.failure)
    if model.options:
        return ModelSizes(options=model.options)
    try:
        found = size_cache(model, cache)
    except InvalidInputError as error:
        found = ModelSizes(model.weights_bytes, note=str(error))
    if any(isinstance(one, int) and one > MAX_BYTES for one in (found.weights_bytes, found.kv_cache_bytes)):
        return ModelSizes(Absent.INCONSISTENT, Absent.INCONSISTENT, note=TOO_LARGE)
    return found


def size_model(path: ModelPath, cache: Cache | None = None) -> ModelSizes:
    return size_served(read_served(path), cache)


def size_weights(checkpoint: Checkpoint) -> Bytes:
    if checkpoint.weights_bytes is not None:
        return checkpoint.weights_bytes
    if checkpoint.transformer is None or checkpoint.problem:
        return Absent.NOT_AVAILABLE
    return compute_weights(checkpoint.transformer, checkpoint.dtype_bytes, checkpoint.scope)


def size_cache(model: ServedModel, cache: Cache | None) -> ModelSizes:
    shape, weights = model.shape, model.weights_bytes
    if cache is None:
        return ModelSizes(weights)
    if cache.replicas > 1:
        weights = Absent.NOT_AVAILABLE if cache.splits_experts else multiply(weights, cache.replicas)
    if shape is None:
        return ModelSizes(weights, note=f"The model's shape is not known: {model.note or 'no config.json'}.")
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
