"""The shape of a model from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.transformer import Biases, Transformer

Json = Mapping[str, Any]
# Key names in config.json, in order of preference: current names, then GPT-2's.
WORDS = {
    "hidden_size": ("hidden_size", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layer"),
    "n_heads": ("num_attention_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads",),
    "vocab_size": ("vocab_size",),
    "head_dim": ("head_dim",),
    "context": ("max_position_embeddings", "n_positions"),
}
# Keys of models whose parameter count or cache differs (MLA, linear attention, state-space layers): unsupported.
UNSUPPORTED_KEYS = (
    "kv_lora_rank",
    "ssm_cfg",
    "state_size",
    "linear_num_value_heads",
    "layer_types_mamba",
    "mamba_d_state",
)
TIED = frozenset({"gemma", "gemma2", "gemma3_text", "gpt2"})
QKV_BIASES = frozenset({"qwen2", "qwen2_moe"})
QK_NORMS = frozenset({"qwen3", "qwen3_moe", "gemma3_text"})
# Families with a sliding window in every layer; Gemma and Qwen use it in some layers or none.
WINDOWED = frozenset({"mistral", "mixtral", "phi3"})


class Config(Struct, frozen=True):
    """Contents of a config.json. `context`: the model's longest context, 0 if not given. `dtype`: as written."""

    family: str
    transformer: Transformer
    context: int
    dtype: str


def parse_config(found: Json, name: str) -> Config:
    """Read a model's shape. Raises InvalidInputError for missing numbers and for unsupported kinds of attention."""
    inner = found.get("text_config")
    text: Json = {**found, **inner} if isinstance(inner, dict) else found
    family = str(text.get("model_type", ""))[:40]
    strange = next((key for key in UNSUPPORTED_KEYS if text.get(key)), None)
    if strange:
        raise InvalidInputError(
            f"{name}: model_type {family!r} with {strange} is not supported; "
            "give its safetensors folder or its size, for example 20GiB"
        )
    numbers = {key: _number(text, words) for key, words in WORDS.items()}
    missing = [words[0] for key, words in WORDS.items() if not numbers[key] and key in REQUIRED_KEYS]
    if missing:
        raise InvalidInputError(f"{name}: does not describe a transformer: no readable {', '.join(missing)}")
    return Config(family, _transformer(text, family, numbers), numbers["context"], _dtype(text))


REQUIRED_KEYS = frozenset({"hidden_size", "n_layers", "n_heads", "vocab_size"})


def _transformer(text: Json, family: str, numbers: Mapping[str, int]) -> Transformer:
    experts = _number(text, ("num_local_experts", "num_experts", "n_routed_experts")) or 1
    wide = _number(text, ("moe_intermediate_size",)) if experts > 1 else 0
    old = family == "gpt2"
    return Transformer(
        hidden_size=numbers["hidden_size"],
        intermediate_size=wide or _number(text, ("intermediate_size", "n_inner")) or 4 * numbers["hidden_size"],
        n_layers=numbers["n_layers"],
        vocab_size=numbers["vocab_size"],
        n_heads=numbers["n_heads"],
        n_kv_heads=numbers["n_kv_heads"] or numbers["n_heads"],
        head_dim=numbers["head_dim"],
        tied_embeddings=bool(text.get("tie_word_embeddings", family in TIED)),
        gated_mlp=not old,
        n_experts=experts,
        biases=_biases(text, family),
        qk_norm=family in QK_NORMS,
        norms_per_layer=4 if family in ("gemma2", "gemma3_text") else 2,
        learned_positions=numbers["context"] if old else 0,
        sliding_window=_number(text, ("sliding_window",)) if family in WINDOWED else 0,
    )


def _biases(text: Json, family: str) -> Biases:
    if family == "gpt2":
        return "all"
    return "qkv" if family in QKV_BIASES or text.get("attention_bias") is True else "none"


def _number(text: Json, words: tuple[str, ...]) -> int:
    """Return the first positive integer among `words`, else 0. The user of the value checks the upper limit."""
    found = (text.get(word) for word in words)
    return next((one for one in found if type(one) is int and one > 0), 0)


def _dtype(text: Json) -> str:
    found = text.get("dtype", text.get("torch_dtype"))
    return found if isinstance(found, str) and len(found) < 40 else "bfloat16"
