"""The format of a model's weights from the `quantization_config` of its config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwatch.planning.number_formats import Scope
from memwatch.planning.sizes import InvalidInputError, quote

Json = Mapping[str, Any]
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


def _number(found: Json, *words: str) -> int:
    return next((one for word in words if type(one := found.get(word)) is int), 0)


def _integers(found: Json) -> str | None:
    bits, group = _number(found, "bits", "w_bit", "nbits", "num_bits"), _number(found, "group_size", "q_group_size")
    return f"int{bits}_g{max(0, group)}" if 2 <= bits <= 8 and group < 1 << 16 else None


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
    widest = max(weights, key=lambda one: _number(one, "num_bits"))
    if str(widest.get("type", "int")) != "float":
        return _integers(widest)
    small = "nvfp4" if _number(widest, "group_size") == 16 else "mxfp4"
    return {8: "fp8", 4: small}.get(_number(widest, "num_bits"))


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
