"""Published checkpoints: the number of parameters in their files; models.json has the part of their config.json.

`python -m scripts.reference` writes the table to docs/reference/memwatch.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from memwatch.core.units import size
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.tables import read_table
from scripts.published_sources import SOURCES


class Published(Struct, frozen=True):
    """`parameters`: sum of the tensors in its safetensors files, from its index or its card, without layers for
    multi-token prediction. Tied embeddings are in the files once. `make test-torch` counts the same with the code
    of transformers; published_sources has the sources of the shapes."""

    name: str
    parameters: int
    config: dict[str, Any]


def config(family: str, hidden: int, wide: int, layers: int, vocab: int, heads: int, kv: int, **more: Any) -> Any:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "torch_dtype": "bfloat16",
        **more,
    }


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
TIE = {"tie_word_embeddings": True}
COUNTED: dict[str, int] = {
    "Mistral 7B v0.1": 7_241_732_096,
    "Llama 2 7B": 6_738_415_616,
    "Llama 3 8B": 8_030_261_248,
    "Llama 3 70B": 70_553_706_496,
    "Llama 3.2 1B": 1_235_814_400,
    "TinyLlama 1.1B": 1_100_048_384,
    "Qwen2.5 7B": 7_615_616_512,
    "Qwen2.5 0.5B": 494_032_768,
    "Qwen3 8B": 8_190_735_360,
    "Qwen3 30B-A3B": 30_532_122_624,
    "Gemma 2B": 2_506_172_416,
    "Gemma 2 2B": 2_614_341_888,
    "Phi-3 mini 4k": 3_821_079_552,
    "Mixtral 8x7B": 46_702_792_704,
    "Llama 2 13B": 13_015_864_320,
    "Llama 2 70B": 68_976_648_192,
    "Llama 3.2 3B": 3_212_749_824,
    "Llama 3.1 405B": 405_853_388_800,
    "Yi 34B": 34_388_917_248,
    "SmolLM2 1.7B": 1_711_376_384,
    "SmolLM3 3B": 3_075_098_624,
    "Mistral Nemo 12B": 12_247_782_400,
    "Mistral Small 24B": 23_572_403_200,
    "Mixtral 8x22B": 140_630_071_296,
    "Qwen2.5 32B": 32_763_876_352,
    "Qwen2.5 72B": 72_706_203_648,
    "Qwen3 0.6B": 596_049_920,
    "Qwen3 4B": 4_022_468_096,
    "Qwen3 14B": 14_768_307_200,
    "Qwen3 32B": 32_762_123_264,
    "Qwen3 235B-A22B": 235_093_634_560,
    "Qwen3-Next 80B-A3B": 79_674_391_296,
    "Gemma 7B": 8_537_680_896,
    "Gemma 2 9B": 9_241_705_984,
    "Gemma 2 27B": 27_227_128_320,
    "Gemma 3 1B": 999_885_952,
    "Gemma 3 4B": 4_300_079_472,
    "Gemma 3 12B": 12_187_325_040,
    "Gemma 3 27B": 27_432_406_640,
    "Phi-4": 14_659_507_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek V3": 671_026_419_200,
    "DeepSeek V2 Lite": 15_706_484_224,
    "DeepSeek V2": 235_741_434_880,
    "Kimi K2": 1_026_408_232_448,
    "Llama 4 Scout": 108_641_793_536,
    "Llama 4 Maverick": 401_583_781_376,
    "Jamba v0.1": 51_570_323_328,
    "Command R": 34_980_831_232,
    "OLMo 2 7B": 7_298_617_344,
    "OLMoE 1B-7B": 6_919_161_856,
    "StarCoder2 15B": 15_957_889_024,
    "GPT-2": 124_439_808,
}
CONFIGS: dict[str, dict[str, Any]] = read_table("models", dict[str, Any])
MODELS = tuple(Published(name, parameters, CONFIGS[name]) for name, parameters in COUNTED.items())

LONG = 131_072
HEADER = """| model | parameters in its files | counted | off by | cache at 8,192 | at 131,072 | shape as in |
|---|---:|---:|---:|---:|---:|---|"""


def rows() -> Iterator[str]:
    for model in MODELS:
        shape = parse_config(model.config, model.name).transformer
        off = shape.parameters / model.parameters - 1
        short, long = (size(compute_kv_cache(shape, tokens, 1, 2)) for tokens in (8192, LONG))
        figures = f"{model.parameters:,} | {shape.parameters:,} | {off:+.2%} | {short} | {long}"
        yield f"| {model.name} | {figures} | {SOURCES.get(model.name, '')} |"
