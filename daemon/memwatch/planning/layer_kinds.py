"""Layers of a config.json other than plain attention and MLP: experts, latent and linear attention, state spaces.

Sources: the configuration and modeling files of transformers 4.57, and the models' own files.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence

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
from memwatch.planning.sparse_attention import RATIOS, compressed_layers, indexed_layers

# Types of hybrid models' layers with a KV cache, up to transformers 4 and from 5 on.
ATTENTION = ("attention", "full_attention")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# More than any model's `block_ffn_dim_multiplier`: a larger one is no factor.
MAX_FACTOR = 16


def experts_layers(text: Json) -> Fields:
    """Layers with experts: from `first_k_dense_replace` on, every `decoder_sparse_step`, not `mlp_only_layers`.

    A shared expert has its own width, or there are some of the width of the others.
    """
    if not number(text, *EXPERTS):
        return {}
    step, first = number(text, "decoder_sparse_step", "moe_layer_freq") or 1, number(text, "first_k_dense_replace")
    plain, types = text.get("mlp_only_layers"), text.get("mlp_layer_types")
    dense = set(plain) if isinstance(plain, list) and all(type(one) is int for one in plain) else set()
    layers = min(count_layers(text), 1 << 16)
    moe = sum((one + 1) % step == 0 and one not in dense for one in range(first, layers))
    if isinstance(types, list) and types:
        moe = sum(one != "dense" for one in types[:layers])
    wide = number(text, "moe_intermediate_size")
    shared = number(text, "shared_expert_intermediate_size") or number(text, "n_shared_experts") * wide
    return {
        "moe_layers": moe,
        "dense_intermediate_size": number(text, "intermediate_size"),
        "shared_intermediate_size": shared,
    }


def latent_layers(text: Json) -> Fields:
    """DeepSeek's MLA, in newer models with an indexer. `moe_layer_freq` 1 puts experts into all layers after the
    first dense ones."""
    routed = number(text, "n_routed_experts")
    rope = number(text, "qk_rope_head_dim")
    corrected = text.get("topk_method") == "noaux_tc"
    fields = {
        "kv_lora_rank": number(text, "kv_lora_rank"),
        "q_lora_rank": number(text, "q_lora_rank"),
        "qk_rope_head_dim": rope,
        "v_head_dim": number(text, "v_head_dim"),
        "head_dim": number(text, "qk_nope_head_dim") + rope,
        **indexed_layers(text),
    }
    if routed:
        fields |= experts_layers(text)
        fields["extra_parameters"] = fields.get("extra_parameters", 0) + routed * fields["moe_layers"] * corrected
    return fields


def longcat_layers(text: Json) -> Fields:
    """LongCat Flash: each layer has two attentions with a cache each, two dense MLPs and the experts."""
    layers = count_layers(text)
    return {
        **latent_layers(text),
        "n_layers": 2 * layers,
        "mlp_layers": layers,
        "moe_layers": layers,
        "shared_intermediate_size": 2 * number(text, "ffn_hidden_size", "intermediate_size"),
    }


def minimax_m2_layers(text: Json) -> Fields:
    """Full attention in all layers: `attn_type_list`, which MiniMax M1 mixed, has only ones."""
    if any(one != 1 for one in integers(text, "attn_type_list")):
        raise UnknownFamilyError("attn_type_list has other layers than full attention, whose cache is not known")
    return {}


def mimo_layers(text: Json) -> Fields:
    """MiMo V2: layers with a window have more KV heads, and values are narrower than keys."""
    layers, pattern = count_layers(text), integers(text, "hybrid_layer_pattern")
    types = layer_types(text) or ["full_attention" if not one else "" for one in pattern[:layers]]
    full = types.count("full_attention") if types else 1 + layers // 6
    heads, head = number(text, "num_key_value_heads"), number(text, "head_dim")
    values = number(text, "v_head_dim") or head
    near, others = number(text, "swa_head_dim") or head, number(text, "swa_num_key_value_heads") or 2 * heads
    more = max(0, number(text, "swa_num_attention_heads") - number(text, "num_attention_heads"))
    experts, frequency = experts_layers(text), integers(text, "moe_layer_freq")
    return {
        **experts,
        "moe_layers": sum(map(bool, frequency[:layers])) if frequency else experts["moe_layers"],
        "sliding_window": number(text, "sliding_window_size", "sliding_window") or 128,
        "full_layers": full,
        "full_kv_width": -(-heads * (head + values) // 2),
        "full_kv_heads": heads,
        "n_kv_heads": others,
        "head_dim": near,
        "v_head_dim": number(text, "swa_v_head_dim") or values,
        "extra_parameters": (layers - full) * more * number(text, "hidden_size") * (near + values),
    }


def step_layers(text: Json) -> Fields:
    """Step 3.5: layers with a window have more query heads, and KV heads in groups."""
    layers, given = count_layers(text), text.get("attention_other_setting")
    other: Json = given if isinstance(given, dict) else {}
    heads, head = number(text, "num_attention_groups", "num_key_value_heads"), number(text, "head_dim")
    listed = text.get("moe_layers_enum")
    named = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else None
    queries = number(other, "num_attention_heads") or number(text, "num_sliding_attention_heads")
    near = layer_types(text).count("sliding_attention")
    more = max(0, queries - number(text, "num_attention_heads")) * head
    return {
        "n_kv_heads": number(other, "num_attention_groups") or heads,
        "full_kv_width": heads * head,
        "full_kv_heads": heads,
        "n_experts": number(text, "moe_num_experts", "n_routed_experts", "num_experts"),
        "active_experts": number(text, "moe_top_k", "num_experts_per_tok"),
        "moe_layers": max(0, layers - 3) if named is None else len(named),
        "intermediate_size": number(text, "moe_intermediate_size"),
        "dense_intermediate_size": number(text, "intermediate_size"),
        "shared_intermediate_size": number(text, "share_expert_dim"),
        "extra_parameters": near * 2 * number(text, "hidden_size") * more,
    }


def qwen3_next_layers(text: Json) -> Fields:
    """Gated DeltaNet, and every fourth layer attention."""
    layers, hidden = count_layers(text), number(text, "hidden_size")
    every, types = number(text, "full_attention_interval") or 4, layer_types(text)
    linear = types.count("linear_attention") if types else layers - layers // every
    keys = number(text, "linear_num_key_heads") * number(text, "linear_key_head_dim")
    heads, kernel = number(text, "linear_num_value_heads"), number(text, "linear_conv_kernel_dim")
    head_values = number(text, "linear_value_head_dim")
    values, channels = heads * head_values, 2 * keys + heads * head_values
    mixed = hidden * (2 * keys + 2 * values + 2 * heads) + channels * kernel + 2 * heads + head_values
    found = experts_layers(text)
    return {
        **found,
        "attention_layers": layers - linear,
        "linear_layers": linear,
        "linear_parameters": mixed + values * hidden,
        "state_bytes": (heads * number(text, "linear_key_head_dim") * head_values + channels * kernel)
        * FLOAT32_BYTES,
    }


def llama4_layers(text: Json) -> Fields:
    """Every fourth layer has no rotary positions and looks back on all tokens, the others on their chunk."""
    layers = count_layers(text)
    rotary = text.get("no_rope_layers")
    full = rotary.count(0) if isinstance(rotary, list) and rotary else layers // 4
    return {
        "sliding_window": number(text, "attention_chunk_size") or 8192,
        "full_layers": full,
        "moe_layers": layers // (number(text, "interleave_moe_layer_step") or 1),
        "shared_intermediate_size": number(text, "intermediate_size"),
        "dense_intermediate_size": number(text, "intermediate_size_mlp"),
    }


def gemma3n_layers(text: Json) -> Fields:
    """The last layers read the cache of earlier ones. Per-layer embeddings, AltUp and LAuReL are parameters."""
    layers, hidden = count_layers(text), number(text, "hidden_size")
    shared, small = number(text, "num_kv_shared_layers"), number(text, "hidden_size_per_layer_input")
    types = layer_types(text) or _list_types(layers, 5)
    streams, rank = number(text, "altup_num_inputs") or 4, number(text, "laurel_rank") or 64
    tables = small * layers * (number(text, "vocab_size_per_layer_input") + hidden) + small
    each = 2 * hidden * (small + rank) + 3 * hidden + hidden * (streams + 1) + streams**3 + streams**2
    return {
        "shared_kv_layers": shared,
        "full_layers": types[: layers - shared].count("full_attention"),
        "extra_parameters": tables
        + layers * each
        + 2 * (streams - 1) * hidden**2
        - shared * _key_value_parameters(text),
    }


def _key_value_parameters(text: Json) -> int:
    """Return the parameters of keys and values, which layers that read another's cache do not have."""
    width = number(text, "num_key_value_heads") * number(text, "head_dim")
    return 2 * number(text, "hidden_size") * width + number(text, "head_dim")


def _list_types(layers: int, period: int) -> list[str]:
    """Return the types of layers of which every n-th looks back on all tokens."""
    return ["" if (one + 1) % period else "full_attention" for one in range(min(layers, 1 << 16))]


def gemma4_layers(text: Json) -> Fields:
    """Layers that look back on all tokens have larger heads, and one matrix for keys and values in some sizes."""
    layers, shared, hidden = count_layers(text), number(text, "num_kv_shared_layers"), number(text, "hidden_size")
    types = layer_types(text) or [*_list_types(layers - 1, 6), "full_attention"]
    heads, queries = number(text, "num_key_value_heads"), number(text, "num_attention_heads")
    full_heads, head = number(text, "num_global_key_value_heads") or heads, number(text, "head_dim")
    full_head, full = number(text, "global_head_dim") or _largest_head(text) or head, types.count("full_attention")
    small, wide = number(text, "hidden_size_per_layer_input"), number(text, "intermediate_size")
    tables = small * layers * (number(text, "vocab_size_per_layer_input") + 3 * hidden) + (
        small and hidden * layers
    )
    matrices, wider = 2 - (text.get("attention_k_eq_v") is True), text.get("use_double_wide_mlp") is True
    wider_queries = (2 * hidden * queries + 2) * (full_head - head)
    wider_keys = hidden * (matrices * full_heads * full_head - 2 * heads * head)
    experts = number(text, "num_experts") if text.get("enable_moe_block") is True else 0
    owners = types[: layers - shared].count("full_attention")
    added = full * wider_queries + owners * wider_keys + shared * 3 * hidden * wide * wider
    added += layers * bool(experts) * (4 * hidden + experts)
    return {
        "shared_kv_layers": shared,
        "full_layers": owners,
        "full_kv_width": full_heads * full_head,
        "full_kv_heads": full_heads,
        "n_experts": experts or 1,
        "active_experts": number(text, "top_k_experts") if experts else 0,
        "shared_intermediate_size": wide if experts else 0,
        "extra_parameters": max(0, tables + small + layers + added - shared * _key_value_parameters(text)),
    }


def _largest_head(text: Json) -> int:
    found = text.get("per_layer_config")
    layers = found.values() if isinstance(found, dict) else ()
    return max((number(one, "head_dim") for one in layers if isinstance(one, dict)), default=0)


def _mamba(text: Json, width: int) -> Fields:
    """Mamba, for a layer with `width` inner channels."""
    hidden, state, kernel = number(text, "hidden_size"), *(_state(text)), _kernel(text)
    rank = number(text, "mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
    matrices = 2 * hidden * width + width * (rank + 2 * state) + rank * width + width * hidden
    return {
        "linear_parameters": matrices + width * (kernel + 3 + state),
        "state_bytes": width * (state + kernel) * FLOAT32_BYTES,
    }


def _state(text: Json) -> tuple[int]:
    return (number(text, "mamba_d_state", "ssm_state_size", "state_size") or 16,)


def _kernel(text: Json) -> int:
    return number(text, "mamba_d_conv", "conv_kernel") or 4


def _mamba2(text: Json) -> Fields:
    """Mamba 2: heads share their state's input and output in groups."""
    hidden, (state,), kernel = number(text, "hidden_size"), _state(text), _kernel(text)
    heads = number(text, "mamba_n_heads", "mamba_num_heads", "num_heads")
    each = number(text, "mamba_d_head", "mamba_head_dim", "head_dim")
    width = number(text, "mamba_d_ssm") or heads * each
    groups = number(text, "mamba_n_groups", "n_groups") or 1
    channels = width + 2 * groups * state
    matrices = hidden * (width + channels + heads) + width * hidden
    return {
        "linear_parameters": matrices + channels * (kernel + 1) + 3 * heads + width,
        "state_bytes": (width * state + channels * kernel) * FLOAT32_BYTES,
    }


def mamba_layers(text: Json) -> Fields:
    return _without_attention(
        text, _mamba(text, number(text, "intermediate_size") or 2 * number(text, "hidden_size"))
    )


def mamba2_layers(text: Json) -> Fields:
    return _without_attention(text, _mamba2(text))


def _without_attention(text: Json, mixed: Fields) -> Fields:
    """Return fields of a model with state spaces only. It has no MLP: the narrowest of a shape is subtracted."""
    return {
        **mixed,
        "linear_layers": count_layers(text),
        "linear_parameters": mixed["linear_parameters"] - 2 * number(text, "hidden_size"),
        "intermediate_size": 1,
    }


def jamba_layers(text: Json) -> Fields:
    layers, hidden = count_layers(text), number(text, "hidden_size")
    attention = _count_every(layers, number(text, "attn_layer_period") or 8, number(text, "attn_layer_offset"))
    moe = _count_every(layers, number(text, "expert_layer_period") or 2, number(text, "expert_layer_offset"))
    mixed = _mamba(text, hidden * (number(text, "mamba_expand") or 2))
    norms = (number(text, "mamba_dt_rank") or -(-hidden // 16)) + 2 * _state(text)[0]
    return {
        **mixed,
        "linear_parameters": mixed["linear_parameters"] + norms,
        "linear_layers": layers - attention,
        "attention_layers": attention,
        "moe_layers": moe,
    }


def _count_every(layers: int, period: int, offset: int) -> int:
    return max(0, -(-(layers - offset) // period))


def nemotron_h_layers(text: Json) -> Fields:
    """One letter a layer: M for Mamba 2, * for attention, - for an MLP, E for experts. Newer files have words.

    Experts of `moe_latent_size` have as many parameters as narrower ones, and two matrices into it and back.
    """
    wide, hidden = number(text, "moe_intermediate_size"), number(text, "hidden_size")
    latent = number(text, "moe_latent_size")
    pattern = str(text.get("hybrid_override_pattern") or "".join(map(_letter, layer_types(text))))
    return {
        **_mamba2(text),
        "linear_layers": pattern.count("M"),
        "attention_layers": pattern.count("*"),
        "mlp_layers": pattern.count("-") + pattern.count("E"),
        "moe_layers": pattern.count("E"),
        "shared_intermediate_size": number(text, "moe_shared_expert_intermediate_size") * ("E" in pattern),
        "dense_intermediate_size": number(text, "intermediate_size"),
        "intermediate_size": wide * (latent or hidden) // hidden,
        "extra_parameters": pattern.count("E") * (2 * hidden * latent + number(text, "n_routed_experts")),
        **({} if "E" in pattern else {"n_experts": 1, "intermediate_size": number(text, "intermediate_size")}),
    }


def _letter(kind: str) -> str:
    return {"mlp": "-", "moe": "E"}.get(kind, "*" if kind in ATTENTION else "M")


def granite_hybrid_layers(text: Json) -> Fields:
    attention = sum(one in ATTENTION for one in layer_types(text))
    return {
        **_mamba2(text),
        "attention_layers": attention,
        "linear_layers": count_layers(text) - attention,
        "shared_intermediate_size": number(text, "shared_intermediate_size")
        * bool(number(text, "num_local_experts")),
    }


def bamba_layers(text: Json) -> Fields:
    found = text.get("attn_layer_indices")
    attention = len(found) if isinstance(found, list) else 0
    return {**_mamba2(text), "attention_layers": attention, "linear_layers": count_layers(text) - attention}


def falcon_h1_layers(text: Json) -> Fields:
    """Attention and Mamba 2 side by side in each layer."""
    layers = count_layers(text)
    return {**_mamba2(text), "attention_layers": layers, "linear_layers": layers}


def lfm2_layers(text: Json) -> Fields:
    """Their MLP has two thirds of the written width, rounded up, unless `block_auto_adjust_ff_dim` is false."""
    width = number(text, "block_ff_dim", "intermediate_size")
    if text.get("block_auto_adjust_ff_dim", True) is not False:
        factor, step = text.get("block_ffn_dim_multiplier"), number(text, "block_multiple_of") or 256
        known = factor if isinstance(factor, int | float) and 0 < factor < MAX_FACTOR else 1
        width = -(-int(2 * width // 3 * known) // step) * step
    return {**_short_convolutions(text), "intermediate_size": width}


def lfm2_moe_layers(text: Json) -> Fields:
    """Experts in all layers after the first `num_dense_layers`, whose MLP is as wide as written."""
    return {
        **_short_convolutions(text),
        "moe_layers": max(0, count_layers(text) - number(text, "num_dense_layers")),
        "dense_intermediate_size": number(text, "intermediate_size"),
    }


def _short_convolutions(text: Json) -> Fields:
    """Their state is a few tokens."""
    layers, hidden = count_layers(text), number(text, "hidden_size")
    indices = text.get("full_attn_idxs")
    attention = sum(one in ("full_attention", "sliding_attention") for one in layer_types(text))
    attention = attention or (len(indices) if isinstance(indices, list) else 0)
    kernel = number(text, "conv_L_cache") or 3
    return {
        "attention_layers": attention,
        "linear_layers": layers - attention,
        "linear_parameters": 4 * hidden * hidden + hidden * kernel,
        "state_bytes": hidden * kernel * FLOAT32_BYTES,
    }


def minimax_layers(text: Json) -> Fields:
    """Lightning attention: a square state for each head."""
    types = text.get("attn_type_list")
    kinds: Sequence[object] = types if isinstance(types, list) else layer_types(text)
    full = sum(one in (1, "full_attention") for one in kinds)
    hidden, heads = number(text, "hidden_size"), number(text, "num_attention_heads")
    head = number(text, "head_dim") or hidden // max(1, heads)
    return {
        "attention_layers": full,
        "linear_layers": count_layers(text) - full,
        "linear_parameters": 5 * hidden * heads * head + heads * head,
        "state_bytes": heads * head * head * FLOAT32_BYTES,
    }


def kimi_linear_layers(text: Json) -> Fields:
    """Kimi Delta Attention, and MLA in the layers that `linear_attn_config` or, from transformers 5 on,
    `layer_types` names: every fourth but the first by default."""
    given = text.get("linear_attn_config")
    inner: Json = given if isinstance(given, dict) else {}
    listed, layers = inner.get("full_attn_layers"), count_layers(text)
    types = layer_types(text).count("full_attention")
    attention = len(listed) if isinstance(listed, list) else types or max(0, layers - 1) // 4
    head = number(text, "linear_head_dim") or number(inner, "head_dim") or 128
    heads = number(text, "linear_num_heads") or number(inner, "num_heads") or 32
    kernel = number(text, "linear_conv_kernel_dim") or number(inner, "short_conv_kernel_size") or 4
    hidden, width = number(text, "hidden_size"), heads * head
    experts = {
        "n_routed_experts": number(text, "num_experts", "num_local_experts"),
        "n_shared_experts": number(text, "num_shared_experts", "n_shared_experts"),
    }
    return {
        **latent_layers(ChainMap(experts, text)),  # type: ignore[arg-type]
        "attention_layers": attention,
        "linear_layers": layers - attention,
        "linear_parameters": 4 * hidden * width + 2 * head * (hidden + width) + 3 * kernel * width,
        "state_bytes": width * (head + 3 * kernel) * FLOAT32_BYTES,
    }


def bailing_hybrid_layers(text: Json) -> Fields:
    """Ling 2.6: as Kimi Linear, with whole matrices for its gates, and MLA in the last layer of each group."""
    layers, hidden, group = count_layers(text), number(text, "hidden_size"), number(text, "layer_group_size") or 6
    found = kimi_linear_layers(text)
    heads = number(text, "linear_num_heads", "num_attention_heads")
    head = number(text, "linear_head_dim") or 128
    width = heads * head
    kernel = number(text, "linear_conv_kernel_dim", "short_conv_kernel_size") or 4
    full = layer_types(text).count("full_attention") or layers // group
    return {
        **found,
        "attention_layers": full,
        "linear_layers": layers - full,
        "linear_parameters": 6 * hidden * width + (hidden + 1) * heads + 3 * width * kernel + width + head,
        "state_bytes": width * (head + 3 * kernel) * FLOAT32_BYTES,
    }


RULES: Mapping[str, Callable[[Json], Fields]] = {
    "bailing_hybrid": bailing_hybrid_layers,
    "bamba": bamba_layers,
    "compressed": compressed_layers,
    "experts": experts_layers,
    "falcon_h1": falcon_h1_layers,
    "gemma3n": gemma3n_layers,
    "gemma4": gemma4_layers,
    "granite_hybrid": granite_hybrid_layers,
    "jamba": jamba_layers,
    "kimi_linear": kimi_linear_layers,
    "latent": latent_layers,
    "mamba": mamba_layers,
    "mamba2": mamba2_layers,
    "lfm2": lfm2_layers,
    "lfm2_moe": lfm2_moe_layers,
    "llama4": llama4_layers,
    "longcat": longcat_layers,
    "mimo": mimo_layers,
    "minimax": minimax_layers,
    "minimax_m2": minimax_m2_layers,
    "nemotron_h": nemotron_h_layers,
    "qwen3_next": qwen3_next_layers,
    "step": step_layers,
}
# Types of layers with a state in place of keys and values, and of layers without attention.
STATE_TYPES = ("attention", "linear_attention", "mamba", "conv", "hybrid", "mlp", "moe")
# Types in `layer_types` that a rule counts, beside those of windows.
TYPES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        (
            "bailing_hybrid", "bamba", "falcon_h1", "granite_hybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe",
            "mamba", "mamba2", "minimax", "nemotron_h", "qwen3_next",
        ),
        STATE_TYPES,
    ),
    "compressed": tuple(RATIOS),
    "latent": ("indexed_attention",),
}  # fmt: skip
