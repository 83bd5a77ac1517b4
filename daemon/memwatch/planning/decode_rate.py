"""Rate of decoding one sequence, from the bytes that each token reads and the bandwidth of the memory.

An estimate: a token cannot take less than one read of the weights that it uses and of its cache. Programs reach
a part of the bandwidth. llama.cpp on an M2 Ultra, 800 GB/s, Llama 2 7B: 69 % in F16 and 45 % in Q4_0
(ggml-org/llama.cpp discussion 4167).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.units import size
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.inference import choose_cache_bytes, compute_kv_cache, compute_weights
from memwatch.planning.named_machines import find_bandwidth
from memwatch.planning.number_formats import NumberFormat, bits_per_cached_number, parse_format
from memwatch.planning.request import Use, choose_context
from memwatch.planning.transformer import Transformer

LOWEST, HIGHEST = 0.4, 0.8


class DecodeRate(Struct, frozen=True):
    """Tokens a second of one sequence at its full context: a range, estimated."""

    low: Annotated[float, Doc("Tokens a second, at the least.", (20.3,))]
    high: Annotated[float, Doc("Tokens a second, at the most.", (40.5,))]
    read_bytes: Annotated[int, Doc("Bytes that one token reads.")]
    bandwidth: Annotated[int, Doc("Of the GPU's memory, bytes a second, by its specification.")]
    quality: Annotated[str, Doc(values=("estimated",))] = "estimated"


def estimate_decode_rate(checkpoint: Checkpoint, use: Use, device: str) -> DecodeRate | None:
    """Return the rate on a GPU by its name. None for other plans than one GPU's inference, an unknown shape, and a
    GPU whose bandwidth is not known."""
    bandwidth = find_bandwidth(device)
    elsewhere = use.training or use.offload_kv or use.cpu_layers or use.gpus > 1
    if bandwidth is None or checkpoint.transformer is None or elsewhere:
        return None
    read = count_read_bytes(checkpoint, checkpoint.transformer, use)
    return DecodeRate(LOWEST * bandwidth / read, HIGHEST * bandwidth / read, read, bandwidth)


def count_read_bytes(checkpoint: Checkpoint, shape: Transformer, use: Use) -> int:
    """Return the bytes that a token reads: its cache, and weights without embeddings and the other experts."""
    form = parse_format(use.dtype) if use.dtype else NumberFormat(checkpoint.dtype_bytes * 8, checkpoint.scope)
    counted = compute_weights(shape, form.bytes, form.scope)
    known = None if use.dtype else checkpoint.weights_bytes
    experts = shape.count_parameters("experts")
    used = min(1.0, (shape.active_experts or 2) / shape.n_experts) if shape.n_experts > 1 else 1.0
    table = 0 if shape.tied_embeddings else shape.vocab_size * shape.hidden_size
    bytes_of_table = form.bytes if form.scope == "file" else max(form.bytes, 2.0)
    unread = experts * (1 - used) * form.bytes + table * bytes_of_table
    number = bits_per_cached_number(use.kv_dtype) / 8 if use.kv_dtype else choose_cache_bytes(form.bytes)
    cache = compute_kv_cache(shape, choose_context(checkpoint, use), 1, number)
    return int((known or counted) * max(0.0, 1 - unread / counted)) + cache


def figure(rate: float) -> str:
    """Return a rate with three figures, from 1,000 on as a whole number."""
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.3g}"


def describe_rate(rate: DecodeRate) -> str:
    """Return the rate as a sentence."""
    width = rate.bandwidth / 1e9
    return (
        f"Decoding one sequence: {figure(rate.low)} to {figure(rate.high)} tokens a second (estimated: "
        f"{size(rate.read_bytes)} are read for each, at 40 to 80 % of {width:g} GB/s)."
    )
