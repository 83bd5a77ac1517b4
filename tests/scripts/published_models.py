"""Published checkpoints: the number of parameters in their files; models.json has the part of their config.json.

`python -m scripts.reference` writes the table to docs/reference/memwatch.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from memwatch.core.units import size
from memwatch.planning import read_table
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
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
# `make test-torch` builds these.
BUILT: dict[str, int] = {
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
# The hub's own counts of 12 May 2026: llmfit's hf_models.json at 5bdc9df9. Files with layers for multi-token
# prediction: without these, as their shape has them.
HUB: dict[str, int] = {
    "Gemma 4 31B": 31_273_086_512,
    "Qwen3.5 35B-A3B": 35_107_181_936,
    "Kimi Linear 48B-A3B": 49_122_681_728,
    "MiniMax-M2": 228_689_748_992,
    "Nemotron 3 Nano 30B-A3B": 31_577_937_344,
    "LFM2 8B-A1B": 8_339_929_856,
    "LFM2 1.2B": 1_170_340_608,
    "ERNIE 4.5 21B-A3B": 21_825_437_888,
    "A.X K1 519B-A33B": 518_983_059_456,
    "Qwen3 1.7B": 1_720_574_976,
    "Qwen2.5 1.5B": 1_543_714_304,
    "Qwen2.5 3B": 3_085_938_688,
    "Qwen2.5 14B": 14_770_033_664,
    "Qwen3-Coder 480B-A35B": 480_154_875_392,
    "Mistral 7B v0.2": 7_241_732_096,
    "Mistral 7B v0.3": 7_248_023_552,
    "SmolLM2 135M": 134_515_008,
    "SmolLM2 360M": 361_821_120,
    "OLMo 2 13B": 13_716_198_400,
    "OLMo 2 32B": 32_234_279_936,
    "StarCoder2 3B": 3_030_371_328,
    "StarCoder2 7B": 7_173_923_840,
    "EXAONE 4.0 32B": 32_003_216_384,
    "Seed-OSS 36B": 36_151_104_512,
    "Ling-mini 2.0 16B-A1B": 16_255_643_392,
    "dots.llm1 142B-A14B": 142_774_381_696,
    "Apertus 8B": 8_053_338_176,
    "DeepSeek R1 Distill Qwen 7B": 7_615_616_512,
    "Yi 6B": 6_061_035_520,
    "Granite 3.3 8B": 8_170_864_640,
    "InternLM2.5 7B": 7_737_708_544,
    "InternLM2.5 20B": 19_861_149_696,
    "GLM-5": 743_911_218_432,
    "DeepSeek V4 Flash": 284_333_146_519,
    "GLM-4.5-Air": 106_852_251_264,
    "GLM-4.5": 352_797_829_024,
    "DeepSeek V3.2": 671_877_944_064,
    "Qwen3.5 0.8B": 852_985_920,
    "Qwen3.5 2B": 2_213_241_664,
    "Qwen3.5 4B": 4_539_265_536,
    "Qwen3.5 9B": 9_409_813_744,
    "Qwen3.5 27B": 27_356_728_560,
    "Qwen3.5 122B-A10B": 122_562_817_776,
    "Qwen3.5 397B-A17B": 396_802_360_816,
    "Qwen3-VL 2B": 2_127_532_032,
    "Qwen3-VL 4B": 4_437_815_808,
    "Qwen3-VL 8B": 8_767_123_696,
    "Qwen3-VL 32B": 33_357_390_064,
    "Qwen3-VL 30B-A3B": 31_070_754_032,
    "Qwen3-VL 235B-A22B": 235_670_022_896,
    "Qwen2.5-VL 7B": 8_292_166_656,
    "Qwen2.5-VL 3B": 3_754_622_976,
    "Qwen2-VL 7B": 8_291_375_616,
    "Gemma 4 26B-A4B": 25_805_933_872,
}
COUNTED = {**BUILT, **HUB}
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
