"""Keys of a model's config.json: typed reads, and a record of the keys that were read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from memwatch.planning.arguments import UnknownModelError

Json = Mapping[str, Any]
Fields = dict[str, int]
MAX_NAMED = 6
# Names of keys about caches and kinds of attention, and words in names of those that change no size. GGUF files use
# the same words.
STRUCTURE = re.compile(
    r"attn|attention|cache|kv|compress|index|sparse|window|chunk|latent|lora_rank|mamba|ssm|conv|linear|recurrent"
    r"|state|layer_types|block_type|pattern|memory|engram|swa|hybrid|shared_layers"
)
NO_SIZE = re.compile(
    r"bias|drop|theta|rope|rotary|multiplier|factor|softcap|logit|scal|norm|init|kernels|bidirectional|dtype|gate"
    r"|temperature|act$|cross_attention|flash|implementation|mtp|mlp|moe|expand|chunk_size|(^|_)index$|token_id$"
    r"|^(output|vision|audio|image|video|use)_"
)
# Keys with such a name that change no size. K and V are stored apart even if one matrix makes both (Gemma 4).
NO_SIZES = frozenset({
    "num_attention_heads", "attention_k_eq_v", "compression_config", "for_llm_compressor", "conv_dim",
    "conv_dim_out", "activation_sparsity_pattern", "clip_qkv", "reorder_and_upcast_attn",
})  # fmt: skip


class UnknownFamilyError(UnknownModelError):
    """A config.json of a family whose layers are not known."""


class ReadKeys(Mapping[str, object]):
    """A config whose reads are recorded: `unread` has the keys that no code asked for."""

    def __init__(self, keys: Json) -> None:
        self._keys = keys
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self._read.add(name)
        return self._keys[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def unread(self) -> list[str]:
        return [name for name in self._keys if name not in self._read]


def find_structures(names: Iterable[str]) -> list[str]:
    """Return the names of a cache or a kind of attention."""
    return [name for name in names if STRUCTURE.search(name) and not NO_SIZE.search(name) and name not in NO_SIZES]


def list_unknown(text: ReadKeys, known_types: Collection[str]) -> tuple[str, ...]:
    """Return what no code reads of a config: keys that name a cache or a kind of attention, and types of layers."""
    used = [name for name in text.unread if text[name] not in (None, False, 0, "", [], {})]
    types = sorted({one for one in layer_types(text) if one not in known_types})
    return (*(name[:40] for name in find_structures(used)), *(f"the layer type {one[:40]!r}" for one in types))


def describe_unknown(names: Collection[str], file: str) -> str:
    """Return a sentence about structures that a plan does not count, empty for none."""
    if not names:
        return ""
    listed = list(names)[:MAX_NAMED]
    more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return f"This plan does not know {', '.join(listed)}{more} of the {file}: its cache may be larger."


def number(text: Json, *words: str) -> int:
    """Return the first positive integer among `words`, else 0. The user of the value checks the upper limit.

    Some files have one for each layer: a list counts if all of its numbers are equal.
    """
    found = [_equal(one) if isinstance(one := text.get(word), list) else one for word in words]
    return next((one for one in found if type(one) is int and one > 0), 0)


def _equal(listed: list[Any]) -> object:
    return listed[0] if listed and all(type(one) is int and one == listed[0] for one in listed) else 0


def integers(text: Json, word: str) -> list[int]:
    """Return a list of integers, empty if it is none."""
    found = text.get(word)
    return found if isinstance(found, list) and all(type(one) is int for one in found) else []


def layer_types(text: Json) -> list[str]:
    """Return the type of each layer. Some files list more than they have, for multi-token prediction."""
    found = [text.get(word) for word in ("layer_types", "layers_block_type")]
    types = next((one for one in found if isinstance(one, list)), [])
    return [str(one) for one in types][: number(text, "num_hidden_layers") or None]


def count_layers(text: Json) -> int:
    """Return the number of layers. transformers 5 writes some hybrid models with the list of types only."""
    return number(text, "num_hidden_layers", "n_layer", "num_layers") or len(layer_types(text))
