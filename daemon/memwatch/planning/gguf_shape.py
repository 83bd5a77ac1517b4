"""The shape of a model from the keys of a GGUF file, as llama.cpp reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwatch.planning.config_keys import Fields, ReadKeys, describe_unknown, find_structures
from memwatch.planning.gguf import ArrayLength, Value
from memwatch.planning.number_formats import FLOAT32_BYTES
from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.sparse_attention import RATIOS, SPARSE, compressed_cache
from memwatch.planning.transformer import Transformer

# Every n-th layer looks back on all tokens, in files without `sliding_window_pattern` (llama-model.cpp, November
# 2025: `set_swa_pattern`). 0: no layer uses the window, though the file has one.
PATTERNS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "llama4": 4,
    "exaone4": 4,
    "olmo2": 4,
    "smallthinker": 4,
    "gemma-embedding": 6,
    "phi3": 0,
    "llama": 0,
    "qwen2": 0,
    "qwen2moe": 0,
    "qwen3": 0,
    "qwen3moe": 0,
    "starcoder2": 0,
}
LLAMA4_CHUNK = 8192
# Recurrent state of other layers: llama.cpp keeps it in 32 bits. qwen3next writes no list of its attention layers.
DEFAULT_INTERVAL = 4
ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "t5encoder"}
)
# Tokens per entry of compressed attention (DeepSeek V4), by layer.
COMPRESSED = "attention.compress_ratios"
NEEDED = ("block_count", "embedding_length", "attention.head_count")


class Keys:
    """The keys of a file's architecture. `layered`: a value for each layer."""

    def __init__(self, keys: Mapping[str, Value]) -> None:
        self.family: str = str(keys.get("general.architecture", ""))[:40]
        self._keys = ReadKeys(keys)
        self.layers: int = self.number("block_count")

    def has(self, name: str) -> bool:
        return f"{self.family}.{name}" in self._keys

    def number(self, name: str, otherwise: int = 0) -> int:
        """Return a number. Of a list with one for each layer the largest."""
        found = self._keys.get(f"{self.family}.{name}")
        if isinstance(found, ArrayLength):
            raise InvalidInputError(f"{name} is not readable: a list of {found} values")
        if isinstance(found, tuple):
            return max((int(one) for one in found if isinstance(one, int)), default=otherwise)
        return found if type(found) is int else otherwise

    def layered(self, name: str) -> Sequence[int]:
        found = self._keys.get(f"{self.family}.{name}")
        return [int(one) for one in found if isinstance(one, int)] if isinstance(found, tuple) else []

    @property
    def unknown(self) -> list[str]:
        """Return the keys about caches that no code read."""
        own = [name.removeprefix(f"{self.family}.") for name in self._keys.unread if name.startswith(self.family)]
        leaves = {name: name.removeprefix("attention.") for name in own}
        named = set(find_structures(leaves.values()))
        return [name for name, leaf in leaves.items() if leaf in named and self._keys[f"{self.family}.{name}"]]

    @property
    def vocabulary(self) -> int:
        found = self._keys.get("tokenizer.ggml.tokens", 0)
        return self.number("vocab_size") or (int(found) if isinstance(found, int) else 0)


def parse_shape(found: Mapping[str, Value]) -> Transformer:
    """Return the shape that the keys describe. Raises InvalidInputError, which names the architecture."""
    return parse_file(found)[0]


def parse_file(found: Mapping[str, Value]) -> tuple[Transformer, str]:
    """Return the shape, and a sentence about caches that it does not have. Raises InvalidInputError."""
    keys = Keys(found)
    missing = [name for name in NEEDED if not keys.number(name)]
    if missing:
        raise InvalidInputError(f"architecture {keys.family!r}: no readable {', '.join(missing)}")
    try:
        shape = Transformer(**_fields(keys))  # type: ignore[arg-type]
    except InvalidInputError as error:
        raise InvalidInputError(f"architecture {keys.family!r}: {error}") from None
    return shape, describe_unknown(keys.unknown, "GGUF file")


def _fields(keys: Keys) -> Fields:
    heads = keys.number("attention.head_count")
    experts = keys.number("expert_count") or 1
    key_length = keys.number("attention.key_length")
    value_length = keys.number("attention.value_length")
    fields = {
        "hidden_size": keys.number("embedding_length"),
        "intermediate_size": keys.number("expert_feed_forward_length") or keys.number("feed_forward_length"),
        "n_layers": keys.layers,
        "vocab_size": keys.vocabulary,
        "n_heads": heads,
        "n_kv_heads": keys.number("attention.head_count_kv", heads) or heads,
        "head_dim": key_length,
        "v_head_dim": value_length if value_length != key_length else 0,
        "n_experts": experts,
        "active_experts": keys.number("expert_used_count"),
        **(_compressed(keys) if keys.layered(COMPRESSED) else _kinds(keys)),
        **(_experts(keys) if experts > 1 else {}),
    }
    if keys.family in ENCODERS:
        fields["shared_kv_layers"] = keys.layers
    return fields


def _kinds(keys: Keys) -> Fields:
    return {**_windows(keys), **_recurrent(keys), **_latent(keys)}


def _experts(keys: Keys) -> Fields:
    width, shared = keys.number("expert_feed_forward_length"), keys.number("expert_shared_feed_forward_length")
    step = keys.number("interleave_moe_layer_step") or 1
    return {
        "moe_layers": max(0, keys.layers - keys.number("leading_dense_block_count")) // step,
        "dense_intermediate_size": keys.number("feed_forward_length"),
        "shared_intermediate_size": shared or keys.number("expert_shared_count") * width,
    }


def _windows(keys: Keys) -> Fields:
    """Return the window and how many layers with a cache of their own look back on all tokens."""
    window = keys.number("attention.sliding_window") or LLAMA4_CHUNK * (keys.family == "llama4")
    shared = keys.number("attention.shared_kv_layers")
    flags = keys.layered("attention.sliding_window_pattern")
    if not window:
        return {"shared_kv_layers": shared}
    owners = max(0, keys.layers - shared)
    if flags:
        wide = keys.number("attention.key_length"), keys.number("attention.key_length_swa")
        own = _global_heads(keys, flags, wide[0]) if wide[1] else {}
        narrow = {"head_dim": wide[1], "v_head_dim": 0} if wide[1] else {}
        full = sum(not one for one in flags[:owners])
        return {"sliding_window": window, "full_layers": full, "shared_kv_layers": shared, **own, **narrow}
    pattern = keys.number("attention.sliding_window_pattern", PATTERNS.get(keys.family, -1))
    if pattern < 0:
        raise InvalidInputError(
            f"has a sliding window of {window} tokens, and which layers use it is not known; "
            "its config.json in the same folder would help"
        )
    if pattern == 0:
        return {"shared_kv_layers": shared}
    return {"sliding_window": window, "full_layers": owners // pattern, "shared_kv_layers": shared}


def _global_heads(keys: Keys, flags: Sequence[int], head: int) -> Fields:
    """Return the KV heads of layers without a window, and the width of their keys (Gemma 4)."""
    heads = keys.layered("attention.head_count_kv")
    full = [count for count, near in zip(heads, flags, strict=False) if not near]
    count = max(full) if full else keys.number("attention.head_count_kv")
    return {"full_kv_width": head * count, "full_kv_heads": count}


def _recurrent(keys: Keys) -> Fields:
    """Return the layers without a KV cache: zero KV heads, or all but every n-th, and the state of each."""
    heads = keys.layered("attention.head_count_kv")
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    channels = inner + 2 * keys.number("ssm.group_count") * state
    kernel = keys.number("ssm.conv_kernel")
    size = (inner * state + channels * kernel) * FLOAT32_BYTES
    if 0 in heads:
        short = keys.number("embedding_length") * keys.number("shortconv.l_cache") * FLOAT32_BYTES
        widths = keys.layered("feed_forward_length")
        # Nemotron-H: a layer is Mamba, attention or an MLP; those with an MLP have no state.
        without = sum(count == 0 and not width for count, width in zip(heads, widths, strict=False))
        linear = without if widths and 0 in widths else heads.count(0)
        full = sum(count > 0 for count in heads)
        return {"attention_layers": full, "linear_layers": linear, "state_bytes": size or short}
    if not inner:
        return {}
    if keys.family == "falcon-h1":
        return {"attention_layers": keys.layers, "linear_layers": keys.layers, "state_bytes": size}
    interval = keys.number("full_attention_interval", DEFAULT_INTERVAL)
    full = keys.layers // interval
    return {"attention_layers": full, "linear_layers": keys.layers - full, "state_bytes": size}


def _latent(keys: Keys) -> Fields:
    """MLA. Newer files give the latent vector's length as `key_length`, and a head's as `key_length_mla`."""
    rank = keys.number("attention.kv_lora_rank")
    if not rank:
        return {}
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": keys.number("attention.q_lora_rank"),
        "qk_rope_head_dim": keys.number("rope.dimension_count"),
        "head_dim": keys.number("attention.key_length_mla") or keys.number("attention.key_length"),
        "v_head_dim": keys.number("attention.value_length_mla") or keys.number("attention.value_length"),
        "n_kv_heads": keys.number("attention.head_count"),
        "side_numbers": _count_indexers(keys) * keys.number("attention.indexer.key_length"),
    }


def _count_indexers(keys: Keys) -> int:
    """Return the layers with keys of an indexer (DSA): all in files before GLM-5.2, which list no types."""
    types = keys.layered("attention.indexer.types")
    return sum(map(bool, types)) if types else keys.layers


def _compressed(keys: Keys) -> Fields:
    """DeepSeek V4: a window of single vectors, compressed entries and indexer keys, all in the cache's format."""
    ratios, head = keys.layered(COMPRESSED)[: keys.layers], keys.number("attention.key_length")
    rope, index = keys.number("rope.dimension_count"), keys.number("attention.indexer.key_length")
    if other := [one for one in ratios if one not in RATIOS.values()]:
        raise InvalidInputError(f"{COMPRESSED} has {other[0]}, whose cache is not known")
    found = compressed_cache(ratios, head, index)
    return {
        **found,
        "kv_lora_rank": max(0, head - rope),
        "q_lora_rank": keys.number("attention.q_lora_rank"),
        "qk_rope_head_dim": rope,
        "o_groups": keys.number("attention.output_group_count"),
        "o_lora_rank": keys.number("attention.output_lora_rank"),
        "sliding_window": keys.number("attention.sliding_window"),
        "side_numbers": found["side_numbers"] + sum(-(-index // one) for one in ratios if one == SPARSE),
        "side_bytes": 0,
    }
