"""The shape of a model from its config.json, with what the configurations of its family leave to the code.

Sources: the configuration and modeling files of transformers 4.57, and the models' own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from memwatch.planning import layer_kinds
from memwatch.planning.config_keys import (
    Fields,
    Json,
    ReadKeys,
    UnknownFamilyError,
    count_layers,
    describe_unknown,
    layer_types,
    list_unknown,
    number,
)
from memwatch.planning.number_formats import parse_quantization
from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.sparse_attention import RATIOS, compressed_layers
from memwatch.planning.transformer import LAYER_COUNTS, Biases, Transformer

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


# Key names in config.json, in order of preference: current names, then GPT-2's.
WORDS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads", "num_attention_groups"),
    "vocab_size": ("vocab_size",),
    "head_dim": ("head_dim", "attention_head_dim"),
    "context": ("max_position_embeddings", "n_positions"),
}
REQUIRED_KEYS = frozenset({"hidden_size", "n_layers", "n_heads", "vocab_size"})
# The text model of one that also sees or hears.
INNER = ("text_config", "llm_config", "language_config")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
EXPERTS_OF_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


class Config(Struct, frozen=True):
    """Contents of a config.json. `context`: the model's longest context, 0 if not given. `dtype`: format of the
    weights, from `quantization_config` or as written. `problem`: why that is not known. `unknown`: a sentence about
    caches that the shape does not have."""

    family: str
    transformer: Transformer
    context: int
    dtype: str
    problem: str = ""
    unknown: str = ""


def parse_config(found: Json, name: str) -> Config:
    """Read a model's shape. Raises InvalidInputError for missing numbers, UnknownFamilyError for an unknown
    family."""
    outer = str(found.get("model_type", ""))[:40]
    inner = next((part for word in INNER if isinstance(part := found.get(word), dict)), {})
    family = str(inner.get("model_type", outer))[:40]
    known = FAMILIES.get(family, FAMILIES.get(outer))
    given = {key: value for key, value in {**found, **inner}.items() if value is not None}
    text = ReadKeys({**(known.defaults if known else {}), **given})
    numbers = {key: number(text, *words) for key, words in WORDS.items()} | {"n_layers": count_layers(text)}
    missing = [words[0] for key, words in WORDS.items() if not numbers[key] and key in REQUIRED_KEYS]
    if missing and (known or not family):
        raise InvalidInputError(f"{name}: does not describe a transformer: no readable {', '.join(missing)}")
    if not known:
        raise UnknownFamilyError(
            f"{name}: the model_type {family!r} is not known, and its layers may differ from those of others; "
            "give its GGUF file, its folder with safetensors files (weights only), or a size, for example 20GiB"
        )
    shape, problem = _transformer(text, family, known, numbers), ""
    try:
        dtype = parse_quantization(text, shape.n_layers) or _dtype(text)
    except InvalidInputError as error:
        dtype, problem = _dtype(text), str(error)
    unknown = list_unknown(text, known.known_types) if known.cached else ()
    return Config(family, shape, numbers["context"], dtype, problem, describe_unknown(unknown, "config.json"))


def _transformer(text: Json, family: str, known: Family, numbers: Mapping[str, int]) -> Transformer:
    experts = number(text, *EXPERTS) or 1
    wide = number(text, "moe_intermediate_size", "expert_ffn_hidden_size") if experts > 1 else 0
    kv_heads = 1 if text.get("multi_query") is True else numbers["n_kv_heads"]
    fields: dict[str, int] = {
        "hidden_size": numbers["hidden_size"],
        "intermediate_size": wide or _width(text) or 4 * numbers["hidden_size"],
        "n_layers": numbers["n_layers"],
        "vocab_size": numbers["vocab_size"],
        "n_heads": numbers["n_heads"],
        "n_kv_heads": kv_heads or numbers["n_heads"],
        "head_dim": numbers["head_dim"],
        "n_experts": experts,
        "active_experts": number(text, *EXPERTS_OF_TOKEN) if experts > 1 else 0,
        "learned_positions": numbers["context"] if family == "gpt2" or not known.cached else 0,
        **_windows(text, known, numbers["n_layers"]),
        **(known.details(text) if known.details else {}),
    }
    extra = fields.pop("extra_parameters", 0) + count_tower(text, numbers["hidden_size"])
    if known.wide_qk_norm:
        heads = fields["n_heads"] + fields["n_kv_heads"]
        extra += numbers["n_layers"] * heads * (numbers["head_dim"] or numbers["hidden_size"] // fields["n_heads"])
    return Transformer(
        **_checked(fields),
        tied_embeddings=bool(text.get("tie_word_embeddings", known.tied)),
        gated_mlp=known.gated,
        biases=_biases(text, known),
        qk_norm=known.qk_norm or text.get("use_qk_norm") is True,
        norms_per_layer=known.norms,
        extra_parameters=extra,
        **({} if known.cached else {"shared_kv_layers": numbers["n_layers"]}),
    )


def _checked(fields: Fields) -> Fields:
    """Leave out what a model with experts in all layers does not need, and negative counts of layers."""
    if fields.get("moe_layers") == fields["n_layers"]:
        fields = fields | {"moe_layers": 0, "dense_intermediate_size": 0}
    return {name: max(0, value) if name in LAYER_COUNTS else value for name, value in fields.items()}


def _width(text: Json) -> int:
    found = text.get("intermediate_size")
    if isinstance(found, list):  # Gemma 3n writes one for each layer
        return max((one for one in found if type(one) is int and one > 0), default=0)
    return number(text, "intermediate_size", "n_inner", "ffn_hidden_size")


def _windows(text: Json, known: Family, layers: int) -> Fields:
    """Return the window, and how many layers look back on all tokens. Newer files list the type of each layer."""
    window = number(text, "sliding_window", "attention_chunk_size")
    pattern = number(text, "sliding_window_pattern", "_sliding_window_pattern") or known.pattern
    used, before = text.get("use_sliding_window"), number(text, "max_window_layers")
    types = layer_types(text)
    near = sum(one in ("sliding_attention", "chunked_attention") for one in types)
    if types:
        return {"sliding_window": window, "full_layers": types.count("full_attention")} if near else {}
    if used is False or not window:
        return {}
    if used is True:
        return {"sliding_window": window, "full_layers": min(layers, before)}
    if not known.windowed:
        return {}
    return {"sliding_window": window, "full_layers": layers // pattern if pattern else 0}


def count_tower(text: Json, hidden: int) -> int:
    """Return the parameters of a vision tower like ViT, and of a projection to the text model."""
    found = text.get("vision_config")
    vision: Json = found if isinstance(found, dict) else {}
    wide = number(vision, "hidden_size", "embed_dim")
    layers = number(vision, "num_hidden_layers", "depth")
    if not wide or not layers:
        return 0
    between = number(vision, "intermediate_size") or 4 * wide
    patch, image = number(vision, "patch_size") or 14, number(vision, "image_size")
    each = 4 * (wide * wide + wide) + 2 * wide * between + between + wide + 4 * wide
    positions = (image // patch) ** 2 * wide
    return layers * each + 3 * patch * patch * wide + positions + 3 * wide + wide * hidden + wide


def _biases(text: Json, known: Family) -> Biases:
    if known.biases != "none":
        return known.biases
    return "attention" if text.get("attention_bias") is True else "none"


def _dtype(text: Mapping[str, Any]) -> str:
    found = text.get("dtype", text.get("torch_dtype"))
    return found if isinstance(found, str) and len(found) < 40 else "bfloat16"
