"""Caches beside keys and values: indexers of sparse attention, compressed attention and its state.

Sources: transformers 5.24 (configuration and modeling files of deepseek_v32, glm_moe_dsa and deepseek_v4), SGLang
0.5.23 (model_executor/pool_configurator.py, configs/model_config.py), vLLM (v1/kv_cache_interface.py) and llama.cpp
(llama-kv-cache-dsa.cpp, llama-kv-cache-dsv4.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.planning.config_keys import (
    Fields,
    Json,
    UnknownFamilyError,
    count_layers,
    integers,
    layer_types,
    number,
)
from memwatch.planning.number_formats import FLOAT32_BYTES

MAX_LISTED = 1 << 16
# Values that share a scale in the fp8 formats of latent vectors and of indexer keys, and the bytes of a scale.
SCALED, SCALE_BYTES = 128, 4
# Compressed attention of DeepSeek V4: tokens per entry. Only the lower ratio has an indexer, and overlaps.
SPARSE, HEAVY = 4, 128
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": SPARSE, "heavily_compressed_attention": HEAVY}
# 448 numbers in fp8 with 8 bytes of scales, and 64 with positions in 16 bits.
V4_SCALES_BYTES = 8


def indexer_bytes(width: int, pool: int = 1) -> int:
    """Return the bytes of a token's key in an indexer: fp8 with a scale for each 128, whatever the cache's format.

    `pool`: tokens that share a key.
    """
    return -(-(width + -(-width // SCALED) * SCALE_BYTES) // pool)


def count_indexers(text: Json, layers: int) -> int:
    """Return the layers with an indexer of their own. GLM-5.2 and LongCat reuse the choice of an earlier layer."""
    kinds, pattern = text.get("indexer_types"), text.get("index_topk_pattern")
    every = number(text, "cli_factor")
    period, start = number(text, "index_topk_freq") or 1, number(text, "index_skip_topk_offset") or 2
    for found in (kinds, pattern):
        if isinstance(found, list | str) and found:
            return layers - sum(one in ("S", "shared") for one in found[:layers])
    if every > 1:
        return -(-layers // every)
    return sum(max(one - start + 1, 0) % period == 0 for one in range(min(layers, MAX_LISTED)))


def indexed_layers(text: Json) -> Fields:
    """DeepSeek's sparse attention (DSA) over MLA: a key for the indexer beside the latent vector of each token.

    Its kernels keep the latent vector in fp8 with scales, and the numbers with positions in 16 bits: 656 bytes
    in place of 576 (SGLang's calculate_mla_kv_cache_dim, vLLM's fp8_ds_mla).
    """
    width, heads = number(text, "index_head_dim"), number(text, "index_n_heads")
    if not number(text, "index_topk") or not width:
        return {}
    layers, rank = count_indexers(text, count_layers(text)), number(text, "kv_lora_rank")
    hidden, queries = number(text, "hidden_size"), number(text, "q_lora_rank") or number(text, "hidden_size")
    return {
        "side_bytes": layers * indexer_bytes(width, number(text, "index_kpool") or 1),
        "fp8_token_bytes": rank + -(-rank // SCALED) * SCALE_BYTES + 2 * number(text, "qk_rope_head_dim"),
        "extra_parameters": layers * (queries * heads * width + hidden * (width + heads) + 2 * width),
    }


def compressed_layers(text: Json) -> Fields:
    """DeepSeek V4: a window of single vectors in each layer, and compressed entries: one for 4 tokens with an
    indexer (CSA), or one for 128 (HCA). Compressors keep their last tokens in 32 bits."""
    layers, head, rope = count_layers(text), number(text, "head_dim"), number(text, "qk_rope_head_dim")
    text.get("index_topk")  # compressed entries that a token reads: none of them is dropped
    ratios = list_ratios(text, layers)
    shared = number(text, "n_shared_experts") * number(text, "moe_intermediate_size")
    return {
        "kv_lora_rank": head - rope,
        "q_lora_rank": number(text, "q_lora_rank"),
        "qk_rope_head_dim": rope,
        "v_head_dim": head,
        "o_groups": number(text, "o_groups"),
        "o_lora_rank": number(text, "o_lora_rank"),
        "sliding_window": number(text, "sliding_window", "window_size"),
        "fp8_token_bytes": head + rope + V4_SCALES_BYTES,
        **compressed_cache(ratios, head, number(text, "index_head_dim")),
        "shared_intermediate_size": shared,
        "extra_parameters": _v4_parameters(text, ratios, head),
    }


def list_ratios(text: Json, layers: int) -> list[int]:
    """Return the tokens of a compressed entry by layer, 0 for none. A layer that no list has counts as the kind
    with the largest cache. Raises UnknownFamilyError for another ratio."""
    given, types = integers(text, "compress_ratios"), layer_types(text)
    rates = text.get("compress_rates")
    known = {**RATIOS, **(rates if isinstance(rates, dict) else {})}
    listed = [known.get(one, -1) for one in types] if types and not given else given
    found = [0 if one == 1 else one for one in listed[:layers]]
    other = [one for one in found if one not in RATIOS.values()]
    if other:
        raise UnknownFamilyError(f"compress_ratios has {other[0]}, whose cache is not known")
    return found + [SPARSE] * (min(layers, MAX_LISTED) - len(found))


def compressed_cache(ratios: Sequence[int], head: int, index: int) -> Fields:
    """Return the numbers and bytes of a token in compressed entries, and the state of a layer's compressor."""
    sparse, heavy = ratios.count(SPARSE), ratios.count(HEAVY)
    state = sparse * 2 * SPARSE * 4 * (head + index) + heavy * HEAVY * 2 * head
    layers = len(ratios)
    return {
        "side_numbers": sparse * -(-head // SPARSE) + heavy * -(-head // HEAVY),
        "side_bytes": sparse * indexer_bytes(index, SPARSE),
        "attention_layers": layers,
        "linear_layers": layers,
        "state_bytes": -(-state * FLOAT32_BYTES // layers) if layers else 0,
    }


def _v4_parameters(text: Json, ratios: Sequence[int], head: int) -> int:
    """Return the parameters of compressors, indexers, sinks and hyper-connections."""
    hidden, index, heads = (number(text, word) for word in ("hidden_size", "index_head_dim", "index_n_heads"))
    streams = number(text, "hc_mult")
    mixed = (2 + streams) * streams
    each = 2 * (mixed * streams * hidden + mixed + 3) + number(text, "num_attention_heads")
    choice = index * heads * number(text, "q_lora_rank") + hidden * heads
    sparse = (4 * hidden + 2 * SPARSE) * (head + index) + head + index + choice
    heavy = (2 * hidden + HEAVY) * head + head
    return len(ratios) * each + ratios.count(SPARSE) * sparse + ratios.count(HEAVY) * heavy
