"""Number formats of weights and caches: bits per number, and the parts of a model that have them."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from memwatch.planning.sizes import InvalidInputError, quote

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


def bits_per_cached_number(dtype: object) -> float:
    """Return the bits per number of a KV cache in a format. Raises InvalidInputError."""
    return CACHE_BITS.get(_word(dtype)) or bits_per_weight(dtype)


def canonical_name(dtype: object) -> str:
    """Return the name of a format for which there are others: bfloat16 for bf16."""
    return ALIASES.get(_word(dtype), _word(dtype))


def _word(dtype: object) -> str:
    return str(dtype).lower().removeprefix("torch.") if isinstance(dtype, str) else ""
