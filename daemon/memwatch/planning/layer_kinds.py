"""Layers of a config.json other than plain attention and MLP: experts, latent and linear attention, state spaces.

Sources: the configuration and modeling files of transformers 4.57, and the models' own files.
"""

from __future__ import annotations

from collections import ChainMap
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
from memwatch.planning.sparse_attention import indexed_layers

# Types of hybrid models' layers with a KV cache, up to transformers 4 and from 5 on.
ATTENTION = ("attention", "full_attention")
# More than any model's `block_ffn_dim_multiplier`: a larger one is no factor.
MAX_FACTOR = 16


def experts_layers(text: Json) -> Fields:
    """Layers with experts: from `first_k_dense_replace` on, every `decoder_sparse_step`, not `mlp_only_layers`."""
    step, first = number(text, "decoder_sparse_step", "moe_layer_freq") or 1, number(text, "first_k_dense_replace")
    plain, types = text.get("mlp_only_layers"), text.get("mlp_layer_types")
    dense = set(plain) if isinstance(plain, list) and all(type(one) is int for one in plain) else set()
    layers = min(count_layers(text), 1 << 16)
    moe = sum((one + 1) % step == 0 and one not in dense for one in range(first, layers))
    if isinstance(types, list) and types:
        moe = sum(one != "dense" for one in types[:layers])
    return {"moe_layers": moe, "dense_intermediate_size": number(text, "intermediate_size")}


def latent_layers(text: Json) -> Fields:
    """DeepSeek's MLA, in newer models with an indexer. `moe_layer_freq` 1 puts experts into all layers after the
    first dense ones."""
    shared = number(text, "n_shared_experts") * number(text, "moe_intermediate_size")
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
        fields |= {"shared_intermediate_size": shared, **experts_layers(text)}
        fields["extra_parameters"] = fields.get("extra_parameters", 0) + routed * fields["moe_layers"] * corrected
    return fields


def glm_moe_layers(text: Json) -> Fields:
    shared = number(text, "n_shared_experts") * number(text, "moe_intermediate_size")
    experts = experts_layers(text)
    return {
        **experts,
        "shared_intermediate_size": shared,
        "extra_parameters": number(text, "n_routed_experts") * experts["moe_layers"],
    }


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


def qwen_moe_layers(text: Json) -> Fields:
    """Qwen2 MoE and Qwen3-Next: a shared expert with a gate."""
    shared = number(text, "shared_expert_intermediate_size")
    found = experts_layers(text)
    gates = number(text, "hidden_size") * found["moe_layers"] * bool(shared)
    return {**found, "shared_intermediate_size": shared, "extra_parameters": gates}


def qwen3_next_layers(text: Json) -> Fields:
    """Gated DeltaNet, and every fourth layer attention with an output gate, which doubles its queries."""
    layers, hidden = count_layers(text), number(text, "hidden_size")
    every = number(text, "full_attention_interval") or 4
    full = layer_types(text).count("full_attention") or layers // every
    keys = number(text, "linear_num_key_heads") * number(text, "linear_key_head_dim")
    heads, kernel = number(text, "linear_num_value_heads"), number(text, "linear_conv_kernel_dim")
    head_values = number(text, "linear_value_head_dim")
    values, channels = heads * head_values, 2 * keys + heads * head_values
    mixed = hidden * (2 * keys + 2 * values + 2 * heads) + channels * kernel + 2 * heads + head_values
    found = qwen_moe_layers(text) if number(text, "num_experts") else {"extra_parameters": 0}
    gate = full * hidden * number(text, "num_attention_heads") * number(text, "head_dim")
    return {
        **found,
        "linear_layers": layers - full,
        "linear_parameters": mixed + values * hidden,
        "state_bytes": (heads * number(text, "linear_key_head_dim") * head_values + channels * kernel)
        * FLOAT32_BYTES,
        "extra_parameters": found["extra_parameters"] + gate,
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


def gpt_oss_layers(text: Json) -> Fields:
    """Biases of experts and routers, and a sink for each head."""
    experts, hidden = number(text, "num_local_experts", "num_experts"), number(text, "hidden_size")
    each = experts * (2 * number(text, "intermediate_size") + hidden + 1) + number(text, "num_attention_heads")
    return {"extra_parameters": count_layers(text) * each}


def gemma3n_layers(text: Json) -> Fields:
    """The last layers read the cache of earlier ones. Per-layer embeddings, AltUp and LAuReL are parameters."""
    layers, hidden = count_layers(text), number(text, "hidden_size")
    shared, small = number(text, "num_kv_shared_layers"), number(text, "hidden_size_per_layer_input")
    types = layer_types(text) or _list_types(layers, 5)
    streams, rank = number(text, "altup_num_inputs") or 4, number(text, "laurel_rank") or 64
    tables = small * layers * (number(text, "vocab_size_per_layer_input") + hidden) + small
    each = 2 * hidden * (small + rank) + 2 * hidden + hidden * (streams + 1) + streams**3 + streams**2
    return {
        "shared_kv_layers": shared,
        "full_layers": types[: layers - shared].count("full_attention"),
        "extra_parameters": tables + layers * each + 2 * (streams - 1) * hidden**2,
    }


def _list_types(layers: int, period: int) -> list[str]:
    """Return the types of layers of which every n-th looks back on all tokens."""
    return ["" if (one + 1) % period else "full_attention" for one in range(min(layers, 1 << 16))]


def gemma4_layers(text: Json) -> Fields:
    """Layers that look back on all tokens have larger heads, and one matrix for keys and values in some sizes."""
    layers, shared = count_layers(text), number(text, "num_kv_shared_layers")
    types = layer_types(text) or [*_list_types(layers - 1, 6), "full_attention"]
    heads = number(text, "num_global_key_value_heads", "num_key_value_heads")
    small = number(text, "hidden_size_per_layer_input")
    tables = small * layers * (number(text, "vocab_size_per_layer_input") + 3 * number(text, "hidden_size"))
    return {
        "shared_kv_layers": shared,
        "full_layers": types[: layers - shared].count("full_attention"),
        "full_kv_width": heads * number(text, "global_head_dim", "head_dim"),
        "full_kv_heads": heads,
        "extra_parameters": tables,
    }


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
    """One letter a layer: M for Mamba 2, * for attention, - for an MLP, E for experts. Newer files have words."""
    pattern = str(text.get("hybrid_override_pattern") or "".join(map(_letter, layer_types(text))))
    return {
        **_mamba2(text),
        "linear_layers": pattern.count("M"),
        "attention_layers": pattern.count("*"),
        "mlp_layers": pattern.count("-") + pattern.count("E"),
        "moe_layers": pattern.count("E"),
        "shared_intermediate_size": number(text, "moe_shared_expert_intermediate_size") * ("E" in pattern),
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
    attention = layer_types(text).count("full_attention") or (len(indices) if isinstance(indices, list) else 0)
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
    hidden, heads, head = (number(text, word) for word in ("hidden_size", "num_attention_heads", "head_dim"))
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
