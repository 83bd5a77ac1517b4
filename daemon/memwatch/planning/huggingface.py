"""The shape of a model from its config.json, with what the configurations of its family leave to the code.

Sources: the configuration and modeling files of transformers 4.57, and the models' own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from memwatch.planning import layer_kinds, read_table
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.config_keys import (
    Fields,
    Json,
    ReadKeys,
    UnknownFamilyError,
    count_layers,
    describe_unknown,
    integers,
    layer_types,
    list_unknown,
    number,
)
from memwatch.planning.number_formats import parse_quantization
from memwatch.planning.transformer import LAYER_COUNTS, Biases, Transformer

WINDOW_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of families.json, by model_type. A name in place of a row: the row of that family.

    `defaults`: values of the class for keys that a config.json may lack. `reads`: own names of keys, by the name in
    most families. `ignored`: keys that change no size. `pattern`: every n-th layer looks back on all tokens.
    `windowed`: the sliding window applies without `layer_types`. `rule`: a name in layer_kinds.RULES. `extra`:
    parameters that no other field has, as products of fields and keys such as `n_layers*hidden_size`; a factor
    `?key` is 1 if that key is true, else 0, and `!key` the other way round. `tower`, `audio`: the same of keys of
    `vision_config` and `audio_config` and of the numbers in `describe_tower`; `^key` is one of the outer config.
    `vision`: values of the class for keys that a `vision_config` may lack. `cached`: False for encoders, which
    have no KV cache. `wide_qk_norm`: the norms of queries and keys are as wide as all heads. `missing`: the rule
    that this version lacks, for a part, or with an empty `rule` for all layers.
    """

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
    reads: Mapping[str, str] = {}
    ignored: tuple[str, ...] = ()
    rule: str = "experts"
    extra: tuple[str, ...] = ()
    tower: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    vision: Mapping[str, Any] = {}
    missing: str = ""

    @property
    def known_types(self) -> frozenset[str]:
        return frozenset({*WINDOW_TYPES, *layer_kinds.TYPES.get(self.rule, ())})


def find_family(*names: str) -> Family | None:
    """Return the row of the first name that has one."""
    rows = read_table("families", Family | str)
    row = next((rows[name] for name in names if name in rows), None)
    return rows[row] if isinstance(row, str) else row


# Key names in config.json, in order of preference: current names, then GPT-2's, then that of models.json.
WORDS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads", "num_attention_groups"),
    "vocab_size": ("vocab_size",),
    "head_dim": ("head_dim", "attention_head_dim"),
    "context": ("max_position_embeddings", "n_positions", "context"),
}
MAX_CONTEXT = 1 << 30
REQUIRED_KEYS = frozenset({"hidden_size", "n_layers", "n_heads", "vocab_size"})
# The text model of one that also sees or hears.
INNER = ("text_config", "llm_config", "language_config")
INSTEAD = "give its GGUF file, its folder with safetensors files (weights only), or a size, for example 20GiB"
# Encoders: names, keys of their configurations, and fields of a row with their rules.
ENCODERS = (("image encoder", "vision_config", "tower"), ("audio encoder", "audio_config", "audio"))
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
    known = find_family(family, outer)
    tied = {key: found[key] for key in ("tie_word_embeddings",) if key in found}  # of the whole model
    given = {key: value for key, value in {**found, **inner, **tied}.items() if value is not None}
    text = ReadKeys(_renamed({**known.defaults, **given}, known) if known else given)
    numbers = {key: number(text, *words) for key, words in WORDS.items()} | {"n_layers": count_layers(text)}
    missing = [words[0] for key, words in WORDS.items() if not numbers[key] and key in REQUIRED_KEYS]
    if known and not known.rule:
        raise UnknownFamilyError(f"{name}: the rule for {known.missing} ({family}) is missing; {INSTEAD}")
    if missing and (known or not family):
        raise InvalidInputError(f"{name}: does not describe a transformer: no readable {', '.join(missing)}")
    if not known:
        raise UnknownFamilyError(
            f"{name}: the model_type {family!r} is not known, and its layers may differ from those of others; "
            f"{INSTEAD}"
        )
    whole = find_family(outer) or known
    towers, uncounted = count_towers(text, numbers["hidden_size"], (whole, known))
    shape, problem = _transformer(text, family, known, numbers, towers), ""
    try:
        dtype = parse_quantization(text, shape.n_layers) or _dtype(text)
    except InvalidInputError as error:
        dtype, problem = _dtype(text), str(error)
    unknown = list_unknown(text, known.known_types) if known.cached else ()
    lacking = known.missing or whole.missing or uncounted
    note = lacking and f"The rule for {lacking} ({outer or family}) is missing: it needs more."
    note = note or describe_unknown(unknown, "config.json")
    return Config(family, shape, _scaled_context(text, numbers["context"]), dtype, problem, note)


def _scaled_context(text: ReadKeys, context: int) -> int:
    """Return the longest context, as vLLM derives it: with YaRN the original maximum by the factor.

    The factors of Gemma 3 and Llama 3 are in max_position_embeddings already.
    """
    found = text.get("rope_scaling") or text.get("rope_parameters")
    scaling = found if isinstance(found, dict) else {}
    factor, first = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    is_yarn = (scaling.get("rope_type") or scaling.get("type")) == "yarn"
    if not is_yarn or not isinstance(factor, int | float) or not isinstance(first, int):
        return context
    is_possible = 0 < factor < MAX_CONTEXT and 0 < first < MAX_CONTEXT
    return max(context, min(int(factor * first), MAX_CONTEXT)) if is_possible else context


def _renamed(given: dict[str, Any], known: Family) -> dict[str, Any]:
    """Return a config with the names of keys that most families have, without the ignored ones."""
    renamed = {name: given.pop(own) for name, own in known.reads.items() if own in given}
    return {name: value for name, value in (given | renamed).items() if name not in known.ignored}


def _transformer(text: Json, family: str, known: Family, numbers: Mapping[str, int], towers: int) -> Transformer:
    experts = number(text, *layer_kinds.EXPERTS) or 1
    wide = number(text, "moe_intermediate_size", "expert_ffn_hidden_size") if experts > 1 else 0
    single = text.get("multi_query") is True and text.get("new_decoder_architecture") is not True  # Falcon
    kv_heads = 1 if single else numbers["n_kv_heads"]
    fields: dict[str, int] = {
        "hidden_size": numbers["hidden_size"],
        "intermediate_size": wide or _width(text) or 4 * numbers["hidden_size"],
        "n_layers": numbers["n_layers"],
        "vocab_size": numbers["vocab_size"],
        "n_heads": numbers["n_heads"],
        "n_kv_heads": kv_heads or numbers["n_heads"],
        "head_dim": numbers["head_dim"] or numbers["hidden_size"] // numbers["n_heads"],
        "n_experts": experts,
        "active_experts": number(text, *EXPERTS_OF_TOKEN) if experts > 1 else 0,
        "learned_positions": numbers["context"] if family == "gpt2" or not known.cached else 0,
        **_windows(text, known, numbers["n_layers"]),
        **layer_kinds.RULES[known.rule](text),
    }
    extra = fields.pop("extra_parameters", 0) + towers
    extra += sum(_multiply(product, fields, text) for product in known.extra)
    queries = integers(text, "num_attention_heads_per_layer")[: numbers["n_layers"]]
    extra += 2 * sum(one - fields["n_heads"] for one in queries) * fields["hidden_size"] * fields["head_dim"]
    if known.wide_qk_norm:
        heads = fields["n_heads"] + fields["n_kv_heads"]
        extra += numbers["n_layers"] * heads * fields["head_dim"]
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


def _multiply(product: str, fields: Fields, text: Json) -> int:
    """Return a product of numbers, fields of the shape, and keys of the config."""
    found = 1
    for factor in product.split("*"):
        if factor.isdigit():
            found *= int(factor)
        elif factor[0] in "?!":
            found *= (text.get(factor[1:]) is True) == (factor[0] == "?")
        else:
            found *= fields.get(factor) or number(text, factor)
    return found


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


def count_towers(text: Json, hidden: int, families: Sequence[Family]) -> tuple[int, str]:
    """Return the parameters of the encoders for images and sound, and the one whose rule is missing."""
    counted = 0
    for part, key, rule in ENCODERS:
        given = text.get(key)
        if not isinstance(given, dict) or not given:
            continue
        row = next((one for one in families if getattr(one, rule)), None)
        if row is None:
            return counted, f"the {part}"
        keys: dict[str, Any] = {**row.vision, **given}
        fields = describe_tower(keys, hidden)
        named = {factor for product in getattr(row, rule) for factor in product.split("*") if factor[0] == "^"}
        outer = {name: value for name in named if (value := text.get(name[1:]))}  # the others stay unread
        products = [_multiply(one, fields, {**keys, **outer}) for one in getattr(row, rule)]
        if not fields["wide"] or not fields["layers"] or not all(products[: len(products) // 2]):
            return counted, f"the {part} of this shape"
        counted += sum(products)
    return counted, ""


def describe_tower(keys: Json, hidden: int) -> dict[str, int]:
    """Return numbers of an encoder. `blocks`: layers of a ViT, with biases. `vit`: with patches, positions and a
    last norm. `head`: pools its tokens. `merged`: the width of neighbours together. `text_size`: of the model."""
    wide = number(keys, "embed_dim", "hidden_size", "vt_hidden_size")
    layers = number(keys, "num_hidden_layers", "depth", "vt_num_hidden_layers")
    between = number(keys, "intermediate_size", "vt_intermediate_size") or 4 * wide
    heads = number(keys, "num_heads", "num_attention_heads") or 1
    patch, near = number(keys, "patch_size") or 14, number(keys, "spatial_merge_size") or 2
    found, each = keys.get("deepstack_visual_indexes"), 2 * wide * between + between + wide
    blocks = layers * (4 * (wide * wide + wide) + each + 4 * wide)
    patches, positions = 3 * patch * patch * wide, (number(keys, "image_size") // patch) ** 2
    return {
        "wide": wide,
        "layers": layers,
        "between": between,
        "kv_wide": wide * (number(keys, "num_key_value_heads") or heads) // heads,
        "blocks": blocks,
        "patches": patches,
        "num_positions": positions,
        "vit": blocks + patches + positions * wide + 3 * wide,
        "head": 4 * wide * wide + 4 * wide + each + 3 * wide,
        "merged": wide * near * near,
        "frames": number(keys, "temporal_patch_size") or 2,
        "deepstack": len(found) if isinstance(found, list) else 0,
        "text_size": hidden,
    }


def _biases(text: Json, known: Family) -> Biases:
    if known.biases != "none":
        return known.biases
    return "attention" if text.get("attention_bias") is True else "none"


def _dtype(text: Mapping[str, Any]) -> str:
    found = text.get("dtype", text.get("torch_dtype"))
    return found if isinstance(found, str) and len(found) < 40 else "bfloat16"
