"""Number formats of weights and caches: bits per number, and the parts of a model that have them.

A config.json names the format of its weights in `quantization_config`, by the method that quantized them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from memwatch.planning.arguments import InvalidInputError, quote
from memwatch.planning.config_keys import Json, number

# Parts in a format: the matrices of all layers, those of the MLPs only, those of the experts only, or all tensors.
# The others have 16 bits.
Scope = Literal["layers", "mlp", "experts", "file"]

FLOAT32_BYTES = 4
# Bits per weight including its block's scales. bitsandbytes NF4: one fp32 scale per 64 weights, which double
# quantization reduces (arXiv 2305.14314, 3). MXFP4: an 8-bit scale per 32 weights (OCP MX 1.0), NVFP4 one per 16.
BITS = {
    "float64": 64.0,
    "float32": 32.0,
    "bfloat16": 16.0,
    "float16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "nf4": 4.5,
    "nf4_double": 4.127,
    "int4": 4.15625,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
}
# Averages of whole files by llama.cpp's file type, the medium one of several; embeddings are quantized as well.
# From its tools/quantize/README.md, Llama 3.1 8B. Q4_0 and Q5_0: the file's output matrix is Q6_K.
FILE_BITS = {
    "q8_0": 8.5008,
    "q6_k": 6.5633,
    "q5_k": 5.7036,
    "q5_0": 5.64,
    "q4_k": 4.8944,
    "q4_0": 4.64,
    "iq4_xs": 4.4597,
    "q3_k": 3.996,
    "iq3_m": 3.7628,
    "q2_k": 3.1593,
    "iq2_m": 2.9294,
}
# `general.file_type` of GGUF files (llama.h): with small and large mixes as the medium one, and without formats of
# which FILE_BITS has no average.
FILE_TYPES = {
    0: "float32", 1: "float16", 2: "q4_0", 7: "q8_0", 8: "q5_0", 10: "q2_k", 11: "q3_k", 12: "q3_k", 13: "q3_k",
    14: "q4_k", 15: "q4_k", 16: "q5_k", 17: "q5_k", 18: "q6_k", 21: "q2_k", 27: "iq3_m", 29: "iq2_m",
    30: "iq4_xs", 32: "bfloat16",
}  # fmt: skip
# A file of another format, or with files beside it that have formats of their own.
OTHER_FILE = "other"
# Formats in which most publishers offer files, the widest first.
OFFERED_FILES = {"q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k": "Q5_K_M", "q4_k": "Q4_K_M"}
# Blocks of a quantized cache (ggml.h).
CACHE_BITS = {"q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5}
NAMES = (*BITS, *FILE_BITS)
ALIASES = {
    "fp64": "float64",
    "fp32": "float32",
    "f32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_ds_mla": "fp8",
    "q8": "int8",
    "fp4": "nf4",
    "q4": "int4",
    "q4_k_m": "q4_k",
    "q5_k_m": "q5_k",
    "q3_k_m": "q3_k",
}
# Integers in groups: a 16-bit scale and a zero for each group, as GPTQ and AWQ store them. g0: one for each row.
GROUPED = re.compile(r"int([2-8])_g([0-9]{1,5})")
SCOPES: tuple[Scope, ...] = ("layers", "mlp", "experts")


class NumberFormat(Struct, frozen=True):
    """Bits per number, scales included, of the parts of a model in `scope`."""

    bits: float
    scope: Scope = "layers"

    @property
    def bytes(self) -> float:
        return self.bits / 8


def parse_format(dtype: object) -> NumberFormat:
    """Parse the format of weights: "bfloat16", "q4_k", "int4_g128", "mxfp4:experts". Raises InvalidInputError."""
    word, _, part = _word(dtype).partition(":")
    word = canonical_name(word)
    scope = next((one for one in SCOPES if one == part), None if part else "layers")
    if scope and word in BITS:
        return NumberFormat(BITS[word], scope)
    if not part and word in FILE_BITS:
        return NumberFormat(FILE_BITS[word], "file")
    grouped = GROUPED.fullmatch(word)
    if not grouped or not scope:
        raise InvalidInputError(
            f"dtype is {quote(dtype)}, which is not one of {', '.join(NAMES)}; for example bfloat16"
        )
    bits, group = int(grouped[1]), int(grouped[2])
    return NumberFormat(bits + ((16 + bits) / group if group else 0), scope)


def bits_per_weight(dtype: object) -> float:
    """Return the bits per weight of a number format, scales included. Raises InvalidInputError."""
    return parse_format(dtype).bits


def list_narrower_files(file_format: str) -> list[str]:
    """Return the formats of OFFERED_FILES that take less than a file of a format, the widest first."""
    bits = {**BITS, **FILE_BITS}.get(file_format, 0.0)
    return [name for name in OFFERED_FILES if FILE_BITS[name] < bits]


def bits_per_cached_number(dtype: object) -> float:
    """Return the bits per number of a KV cache in a format. Raises InvalidInputError."""
    return CACHE_BITS.get(_word(dtype)) or bits_per_weight(dtype)


def canonical_name(dtype: object) -> str:
    """Return the name of a format for which there are others: bfloat16 for bf16."""
    return ALIASES.get(_word(dtype), _word(dtype))


def _word(dtype: object) -> str:
    return str(dtype).lower().removeprefix("torch.") if isinstance(dtype, str) else ""


KEYS = ("quantization_config", "compression_config")
# Lists of modules that stay at 16 bits.
LEFT_OUT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
LAYER = re.compile(r"layers\.([0-9]{1,5})\.")


def parse_quantization(config: Json, layers: int) -> str:
    """Return the format that the weights of a config.json have, "" if they are not quantized.

    Raises InvalidInputError for a method that is not known, by name.
    """
    found = next((part for key in KEYS if isinstance(part := config.get(key), dict) and part), None)
    if found is None:
        return ""
    method = str(found.get("quant_method", found.get("quant_algo", ""))).lower()[:40]
    read = METHODS.get(method)
    if method == "fp8" and "fp4" in (found.get("expert_dtype"), config.get("expert_dtype")):
        read = "mxfp4"  # DeepSeek V4: experts in 4 bits, the other matrices in fp8, counted as 16 bits
    name = read(found) if callable(read) else read
    if name is None:
        raise InvalidInputError(
            f"quantization_config has the quant_method {quote(method)}, whose size is not known; give the folder "
            "with its safetensors files, or its format, for example dtype int4"
        )
    return _with_scope(name, _scope(found, layers)) if name else ""


def _with_scope(name: str, scope: Scope) -> str:
    if name == "mxfp4":  # only experts have this format in transformers and vLLM
        scope = "experts"
    return name if scope == "layers" else f"{name}:{scope}"


def _scope(found: Json, layers: int) -> Scope:
    """Return the parts that are quantized, by the modules that are left out in at least half of the layers."""
    names = [str(one) for key in LEFT_OUT if isinstance(part := found.get(key), list) for one in part]
    if not _is_left_out("attn", names, layers):
        return "layers"
    return "experts" if _is_left_out("shared_expert", names, layers) else "mlp"


def _is_left_out(part: str, names: Sequence[str], layers: int) -> bool:
    found = [LAYER.search(name) for name in names if part in name and "vision" not in name and "visual" not in name]
    numbers = {match[1] for match in found if match}
    return None in found or len(numbers) * 2 > layers


def _integers(found: Json) -> str | None:
    bits, group = number(found, "bits", "w_bit", "nbits", "num_bits"), number(found, "group_size", "q_group_size")
    return f"int{bits}_g{group}" if 2 <= bits <= 8 and group < 1 << 16 else None


def _bitsandbytes(found: Json) -> str:
    if found.get("load_in_4bit") is not True:
        return "int8"
    return "nf4_double" if found.get("bnb_4bit_use_double_quant") is True else "nf4"


def _compressed_tensors(found: Json) -> str | None:
    """Return the widest format of all groups. A group without weights quantizes activations only."""
    groups = found.get("config_groups")
    parts = (
        [one.get("weights") for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []
    )
    weights = [one for one in parts if isinstance(one, dict)]
    if not weights:
        return ""
    widest = max(weights, key=lambda one: number(one, "num_bits"))
    if str(widest.get("type", "int")) != "float":
        return _integers(widest)
    small = "nvfp4" if number(widest, "group_size") == 16 else "mxfp4"
    return {8: "fp8", 4: small}.get(number(widest, "num_bits"))


def _modelopt(found: Json) -> str | None:
    inner = found.get("quantization")
    algorithm = str((inner if isinstance(inner, dict) else found).get("quant_algo", "")).upper()
    return {
        "FP8": "fp8",
        "FP8_PB_WO": "fp8",
        "NVFP4": "nvfp4",
        "W4A16_AWQ": "int4_g128",
        "W4A8_AWQ": "int4_g128",
    }.get(algorithm)


def _hqq(found: Json) -> str | None:
    inner = found.get("quant_config")
    weights = inner.get("weight_quant_params") if isinstance(inner, dict) else None
    return _integers(weights if isinstance(weights, dict) else found)


def _by_word(found: Json) -> str | None:
    """Quanto and torchao name the format in a word, such as int4_weight_only."""
    text = str(found.get("weights", found.get("quant_type", ""))).lower()
    known = {"int4": "int4", "int8": "int8", "float8": "fp8", "fp8": "fp8"}
    return next((name for word, name in known.items() if word in text), None)


METHODS: Mapping[str, str | Callable[[Json], str | None]] = {
    "awq": _integers,
    "gptq": _integers,
    "auto-round": _integers,
    "auto_round": _integers,
    "intel/auto-round": _integers,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "mxfp4",
    "modelopt": _modelopt,
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "eetq": "int8",
    "hqq": _hqq,
    "quanto": _by_word,
    "torchao": _by_word,
    "bitnet": "int2_g0",
}
