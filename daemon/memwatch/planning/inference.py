"""Memory of a model during inference: weights, KV cache and activations."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from memwatch.planning.arguments import check_count, check_dtype_bytes
from memwatch.planning.number_formats import Scope
from memwatch.planning.transformer import Transformer

# Servers split a long prompt into chunks of 512 (llama.cpp) to 8,192 tokens (vLLM), processed one at a time.
PIECE_TOKENS = 2048
MAX_TOKENS = 1 << 30
# Embeddings, the output matrix and norms stay at 16 bits when the other matrices are quantized further.
UNQUANTIZED_BYTES = 2.0
PARTS_OF: Mapping[Scope, tuple[str, ...]] = {
    "layers": (),
    "mlp": ("mlp", "shared", "experts"),
    "experts": ("experts",),
}


class InferenceEstimate(Struct, frozen=True):
    """Sizes in bytes. `weights_bytes` is exact for supported shapes, `activations_bytes` a rough estimate."""

    parameters: int
    weights_bytes: int
    kv_cache_bytes: int
    activations_bytes: int
    total_bytes: int


def estimate_inference_memory(
    hidden_size: int,
    intermediate_size: int,
    n_layers: int,
    vocab_size: int,
    n_heads: int,
    n_kv_heads: int,
    max_seq_len: int,
    dtype_bytes: float = 2,
    *,
    batch_size: int = 1,
    kv_dtype_bytes: float | None = None,
    tied_embeddings: bool = False,
    head_dim: int = 0,
    n_experts: int = 1,
) -> InferenceEstimate:
    """Estimate weights, KV cache and activations of a Llama-like model. Raises InvalidInputError for impossible
    numbers."""
    model = Transformer(
        hidden_size,
        intermediate_size,
        n_layers,
        vocab_size,
        n_heads,
        n_kv_heads,
        head_dim,
        tied_embeddings,
        n_experts=n_experts,
    )
    return estimate_inference(model, max_seq_len, dtype_bytes, batch_size, kv_dtype_bytes)


def estimate_inference(
    model: Transformer,
    max_seq_len: int,
    dtype_bytes: float = 2,
    batch_size: int = 1,
    kv_dtype_bytes: float | None = None,
    weights_bytes: int | None = None,
) -> InferenceEstimate:
    """Estimate the memory of any shape. `weights_bytes`: the size of the checkpoint's tensors, if known."""
    weight = check_dtype_bytes(dtype_bytes)
    number = choose_cache_bytes(weight)
    weights = compute_weights(model, weight) if weights_bytes is None else weights_bytes
    cache = compute_kv_cache(model, max_seq_len, batch_size, number if kv_dtype_bytes is None else kv_dtype_bytes)
    working = compute_activations(model, max_seq_len, batch_size, number)
    return InferenceEstimate(model.parameters, weights, cache, working, weights + cache + working)


def choose_cache_bytes(dtype_bytes: float) -> float:
    """Return the bytes of a cached number and of activations by default: those of weights, at least 16 bits."""
    return max(dtype_bytes, UNQUANTIZED_BYTES)


def compute_weights(model: Transformer, dtype_bytes: float, scope: Scope = "layers") -> int:
    """Return the bytes of all weights, of which the parts in `scope` have `dtype_bytes`."""
    inside = model.parameters if scope == "file" else model.count_parameters(*PARTS_OF[scope])
    rest = max(dtype_bytes, UNQUANTIZED_BYTES)
    return math.ceil(inside * dtype_bytes + (model.parameters - inside) * rest)


def compute_kv_cache(model: Transformer, seq_len: int, batch_size: int, dtype_bytes: float, ranks: int = 1) -> int:
    """Return the bytes of keys and values, of caches beside them, and of the state of layers without them.

    `ranks`: on each of as many GPUs with tensor parallelism. State is divided with the heads that have it; that of
    compressors is copied.
    """
    tokens = check_count(seq_len, "max_seq_len", 8192, 1, MAX_TOKENS)
    batch = check_count(batch_size, "batch_size", 1, 1, MAX_TOKENS)
    number = check_dtype_bytes(dtype_bytes, "kv_dtype_bytes")
    state = model.linear_layers * model.state_bytes
    numbers = compute_cached_numbers(model, model.count_cached_numbers(tokens, ranks), number)
    part = state if model.side_numbers else -(-state // ranks)
    return batch * (numbers + model.side_bytes * tokens + part)


def compute_cached_numbers(model: Transformer, numbers: int, dtype_bytes: float) -> int:
    """Return the bytes of cached numbers. Some latent vectors have scales in a cache of 8 bits."""
    if dtype_bytes == 1 and model.fp8_token_bytes:
        return -(-numbers * model.fp8_token_bytes // model.cached_numbers)
    return math.ceil(numbers * dtype_bytes)


def compute_activations(model: Transformer, seq_len: int, batch_size: int, dtype_bytes: float) -> int:
    """Estimate the activations of one layer for one chunk, and the logits of the last token in 32 bits."""
    tokens = min(seq_len, PIECE_TOKENS) * batch_size
    width = 4 * model.hidden_size + 3 * model.active_width
    return math.ceil(tokens * width * dtype_bytes) + batch_size * model.vocab_size * 4


def estimate_kv_cache(
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    batch_size: int = 1,
    dtype_bytes: float = 2,
) -> int:
    """Return the bytes of the KV cache for `max_seq_len` tokens in each of `batch_size` sequences."""
    for name, value in (("n_layers", n_layers), ("n_kv_heads", n_kv_heads), ("head_dim", head_dim)):
        check_count(value, name, {"n_layers": 32, "n_kv_heads": 8, "head_dim": 128}[name], 1, 1 << 28)
    width = n_kv_heads * head_dim
    cached = Transformer(width, 1, n_layers, 1, n_kv_heads, n_kv_heads, head_dim)
    return compute_kv_cache(cached, max_seq_len, batch_size, dtype_bytes)


def layers_of_group(shape: Transformer) -> int:
    """Return the layers that share the blocks of the cache: all with a cache, if these are of one kind."""
    owners = shape.with_attention - shape.shared_kv_layers
    full = shape.full_layers if shape.sliding_window else owners
    small, large = sorted((full, owners - full))
    if not small:
        return large
    return large if large < 1.25 * small else small
