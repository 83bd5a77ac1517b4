"""Sizes of quantized weights from config.json alone, against published files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_weights
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.number_formats import (
    CACHE_BITS,
    NAMES,
    bits_per_cached_number,
    bits_per_weight,
    parse_format,
)
from memwatch.planning.request import Use
from scripts.published_models import FP8, MODELS
from support.checkpoint_files import safetensors

CONFIGS = {model.name: model.config for model in MODELS}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
FP8_CHANNEL = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
    "ignore": ["lm_head"],
}
EXPERTS_INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}


def weights_of(name: str, quantization: dict[str, Any] | None = None) -> int:
    given = {**CONFIGS[name], "quantization_config": quantization} if quantization else CONFIGS[name]
    config = parse_config(given, "config.json")
    form = parse_format(config.dtype)
    return compute_weights(config.transformer, form.bytes, form.scope)


@pytest.mark.parametrize(
    ("name", "quantization", "published"),
    [
        ("Llama 3 8B", None, 16.06e9),  # its index
        ("Llama 3 70B", None, 141.1e9),
        ("Llama 4 Scout", None, 203 * (1 << 30)),
        ("gpt-oss-20b", None, 13_761_264_768),  # `total_size` of its index
        ("gpt-oss-120b", None, 65_248_815_744),
        ("Llama 3 8B", AWQ, 5.73e9),  # hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4
        ("Llama 3 8B", GPTQ, 5.74e9),  # hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4
        ("Llama 3 8B", BNB4, 5.70e9),  # unsloth/llama-3-8b-bnb-4bit
        (
            "Llama 3 8B",
            {"quant_method": "modelopt", "quant_algo": "FP8"},
            9.08e9,
        ),  # nvidia/Llama-3.1-8B-Instruct-FP8
        ("Mistral 7B v0.1", AWQ, 4.15e9),  # TheBloke/Mistral-7B-v0.1-AWQ
        ("Qwen2.5 7B", AWQ, 5.57e9),  # Qwen/Qwen2.5-7B-Instruct-AWQ
        ("Llama 3 70B", FP8_CHANNEL, 72.7e9),  # RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic
    ],
)
def test_weights_equal_the_published_file(name: str, quantization: dict[str, Any] | None, published: float) -> None:
    assert weights_of(name, quantization) == pytest.approx(published, rel=0.03)


def test_gguf_formats_count_quantized_embeddings(tmp_path: Path) -> None:
    """Llama 3 8B Q4_K_M: its file has 4.92 GB, 4.58 GiB."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama 3 8B"]))
    checkpoint = read_checkpoint(tmp_path)

    weights = compute_checkpoint_need(checkpoint, Use(dtype="q4_k")).parts["weights"]

    assert weights == pytest.approx(4_920_734_272, rel=0.01)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        (AWQ, "int4_g128"),
        ({**GPTQ, "bits": 3, "group_size": -1}, "int3_g0"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        (FP8, "fp8"),
        (FP8_CHANNEL, "fp8"),
        (EXPERTS_INT4, "int4_g32:experts"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*", "lm_head"]}, "nvfp4:mlp"),
        ({"quant_method": "mxfp4"}, "mxfp4:experts"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "int4"),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            "int4_g64",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}}, "bfloat16"),
        ({}, "bfloat16"),
    ],
)
def test_quantization_config_gives_the_format(quantization: dict[str, Any], dtype: str) -> None:
    config = parse_config({**CONFIGS["Llama 3 8B"], "quantization_config": quantization}, "config.json")

    assert config.dtype == dtype
    assert parse_format(config.dtype).bits > 0


def test_modules_left_out_of_a_few_layers_change_nothing() -> None:
    """Some files keep the attention of the first layers at 16 bits."""
    left_out = [f"model.layers.{layer}.self_attn" for layer in range(3)]
    config = parse_config({**CONFIGS["Llama 3 8B"], "quantization_config": {**FP8, "ignored_layers": left_out}}, "")

    assert config.dtype == "fp8"


@pytest.mark.parametrize("quantization", [{"quant_method": "novel"}, {"quant_method": "gptq", "bits": "4"}])
def test_unknown_quantization_is_rejected_by_name(quantization: dict[str, Any], tmp_path: Path) -> None:
    """The message says what would help: the format, or the folder with its tensors, which then is accepted."""
    given = {**CONFIGS["Llama 3 8B"], "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(given))
    alone = read_checkpoint(tmp_path)
    safetensors(tmp_path / "model.safetensors", {"a": ("BF16", [3, 5])})

    with pytest.raises(InvalidInputError, match=rf'"{quantization["quant_method"]}".*give the folder.*dtype int4'):
        compute_checkpoint_need(alone, Use())
    assert compute_checkpoint_need(alone, Use(dtype="int4")).parts["weights"] > 0
    assert compute_checkpoint_need(read_checkpoint(tmp_path), Use()).parts["weights"] == 30


def test_formats_have_a_scope() -> None:
    """Of a cache the blocks count, of a file the average over its tensors."""
    assert parse_format("q4_k_m").scope == "file"
    assert parse_format("mxfp4:experts").bytes == 4.25 / 8
    assert bits_per_weight("int4_g128") == bits_per_weight("int4")
    assert (bits_per_cached_number("q8_0"), bits_per_cached_number("fp8")) == (8.5, 8)
    for name in ("int9_g128", "nf4:vision", "q4_k:experts", "int4_g"):
        with pytest.raises(InvalidInputError, match=f"which is not one of {NAMES[0]}"):
            parse_format(name)


# Bytes of a block of 32 numbers (ggml-common.h): block_q8_0 and so on.
BLOCKS = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}


def test_formats_of_a_cache_have_the_blocks_of_ggml() -> None:
    """All quantized formats that llama-server takes for its cache."""
    assert {name: bits_per_cached_number(name) * 32 / 8 for name in CACHE_BITS} == BLOCKS
