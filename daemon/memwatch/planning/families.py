"""Families of models by the `model_type` of config.json: what their configurations leave to the code.

Sources: the configuration and modeling files of transformers 4.57, and the models' own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from memwatch.planning import layer_kinds
from memwatch.planning.config_keys import Fields, Json
from memwatch.planning.sparse_attention import RATIOS, compressed_layers
from memwatch.planning.transformer import Biases

WINDOW_TYPES = ("full_attention", "sliding_attention", "chunked_attention")
# Types of layers with a state in place of keys and values, and of layers without attention.
STATE_TYPES = ("attention", "linear_attention", "mamba", "conv", "hybrid", "mlp", "moe")


class Family(Struct, frozen=True):
    """`defaults`: values of the class for keys that a config.json may lack. `pattern`: every n-th layer looks back
    on all tokens. `windowed`: the sliding window applies without `layer_types`. `details`: fields of other kinds of
    layers, for a config and its number of layers. `types`: types of layers in `layer_types` that these count,
    beside those of windows. `cached`: False for encoders, which have no KV cache. `wide_qk_norm`: the norms of
    queries and keys are as wide as all heads."""

    windowed: bool = False
    pattern: int = 0
    tied: bool = False
    gated: bool = True
    biases: Biases = "none"
    qk_norm: bool = False
    wide_qk_norm: bool = False
    norms: int = 2
    cached: bool = True
    defaults: Mapping[str, Any] = {}
    details: Callable[[Json], Fields] | None = None
    types: tuple[str, ...] = ()

    @property
    def known_types(self) -> frozenset[str]:
        return frozenset({*WINDOW_TYPES, *self.types})


QWEN2 = Family(biases="qkv")
QWEN3 = Family(qk_norm=True)
QWEN3_MOE = Family(qk_norm=True, details=layer_kinds.experts_layers)
GEMMA2 = Family(windowed=True, pattern=2, tied=True, norms=4, defaults={"sliding_window": 4096, "head_dim": 256})
GEMMA3_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
GEMMA3 = Family(windowed=True, pattern=6, tied=True, qk_norm=True, norms=4, defaults=GEMMA3_DEFAULTS)
GEMMA3N = Family(windowed=True, tied=True, qk_norm=True, norms=4, defaults={
    "vocab_size": 262_400, "vocab_size_per_layer_input": 262_144, "hidden_size": 2048,
    "hidden_size_per_layer_input": 256, "intermediate_size": 16_384, "num_hidden_layers": 35,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
    "num_kv_shared_layers": 15, "max_position_embeddings": 32_768,
}, details=layer_kinds.gemma3n_layers)  # fmt: skip
GEMMA4 = Family(windowed=True, tied=True, qk_norm=True, norms=4, details=layer_kinds.gemma4_layers)
DEEPSEEK = Family(details=layer_kinds.latent_layers, types=("indexed_attention",))
DEEPSEEK_V4 = Family(windowed=True, defaults={
    "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "o_groups": 8,
    "o_lora_rank": 1024, "sliding_window": 128, "index_head_dim": 128, "index_n_heads": 64, "hc_mult": 4,
    "n_shared_experts": 1,
}, details=compressed_layers, types=(*RATIOS,))  # fmt: skip
LLAMA4 = Family(details=layer_kinds.llama4_layers)
MISTRAL = Family(windowed=True)
COHERE = Family(tied=True, norms=1)
ENCODER = Family(cached=False, gated=False, biases="all", tied=True)
GLM4_MOE = Family(biases="qkv", details=layer_kinds.glm_moe_layers)
QWEN3_NEXT = Family(qk_norm=True, details=layer_kinds.qwen3_next_layers, types=STATE_TYPES)
HYBRID = Family(details=layer_kinds.granite_hybrid_layers, types=STATE_TYPES)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": MISTRAL,
    "ministral": MISTRAL,
    "ministral3": Family(),
    "mixtral": MISTRAL,
    "qwen2": QWEN2,
    "qwen2_moe": Family(biases="qkv", details=layer_kinds.qwen_moe_layers),
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_text": QWEN3,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5": QWEN3_NEXT,
    "qwen3_5_moe": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_NEXT,
    "qwen3_5_moe_text": QWEN3_NEXT,
    "gemma": Family(tied=True),
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma3n": GEMMA3N,
    "gemma3n_text": GEMMA3N,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "phi3": MISTRAL,
    "phi": Family(gated=False, biases="all", norms=1),
    "phimoe": Family(windowed=True, biases="attention"),
    "gpt2": Family(tied=True, gated=False, biases="all"),
    "gpt_oss": Family(windowed=True, pattern=2, biases="attention", details=layer_kinds.gpt_oss_layers),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "deepseek_v4": DEEPSEEK_V4,
    "glm_moe_dsa": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "kimi_linear": Family(details=layer_kinds.kimi_linear_layers, types=STATE_TYPES),
    "glm4_moe_lite": DEEPSEEK,
    "minicpm3": DEEPSEEK,
    "jamba": Family(details=layer_kinds.jamba_layers, types=STATE_TYPES),
    "nemotron_h": Family(gated=False, norms=1, details=layer_kinds.nemotron_h_layers, types=STATE_TYPES),
    "granite": Family(),
    "granitemoe": Family(),
    "granitemoehybrid": HYBRID,
    "bamba": Family(details=layer_kinds.bamba_layers, types=STATE_TYPES),
    "falcon_h1": Family(details=layer_kinds.falcon_h1_layers, types=STATE_TYPES),
    "lfm2": Family(tied=True, qk_norm=True, details=layer_kinds.lfm2_layers, types=STATE_TYPES),
    "lfm2_moe": Family(tied=True, qk_norm=True, details=layer_kinds.lfm2_moe_layers, types=STATE_TYPES),
    "minimax": Family(details=layer_kinds.minimax_layers, types=STATE_TYPES),
    "minimax_text_01": Family(details=layer_kinds.minimax_layers, types=STATE_TYPES),
    "minimax_m2": Family(details=layer_kinds.minimax_m2_layers),
    "mimo_v2_flash": Family(details=layer_kinds.mimo_layers),
    "step3p5": Family(qk_norm=True, details=layer_kinds.step_layers),
    "step3p7": Family(qk_norm=True, details=layer_kinds.step_layers),
    "longcat_flash": Family(details=layer_kinds.longcat_layers),
    "mistral4": DEEPSEEK,
    "llama4": LLAMA4,
    "llama4_text": LLAMA4,
    "cohere": COHERE,
    "cohere2": Family(windowed=True, pattern=4, tied=True, norms=1),
    "olmo": Family(norms=0),
    "olmo2": Family(wide_qk_norm=True),
    "olmo3": Family(windowed=True, pattern=4, wide_qk_norm=True),
    "olmoe": Family(wide_qk_norm=True),
    "starcoder2": Family(windowed=True, gated=False, biases="all", tied=True),
    "stablelm": Family(),
    "glm": Family(biases="qkv"),
    "glm4": Family(biases="qkv", norms=4),
    "glm4_moe": GLM4_MOE,
    "exaone4": Family(windowed=True, pattern=4, qk_norm=True),
    "smollm3": Family(tied=True),
    "internlm2": Family(),
    "ernie4_5": Family(tied=True),
    "seed_oss": Family(biases="qkv"),
    "bert": ENCODER,
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "modernbert": Family(cached=False, tied=True),
}
