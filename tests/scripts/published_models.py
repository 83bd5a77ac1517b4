"""Published checkpoints: the relevant part of their config.json, and the number of parameters in their files.

`python -m scripts.reference` writes the table to docs/reference/memwatch.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from memwatch.core.units import size
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


GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}

GEMMA3_VISION = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
# As in its config.json: no vocabulary, no pattern; the 4B also lacks the heads. The class has the rest.
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": GEMMA3_VISION,
}
GEMMA3_12B = {
    **GEMMA3_27B,
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    },
}
GEMMA3_4B = {
    **GEMMA3_27B,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def gpt_oss(layers: int, experts: int) -> Any:
    more = {"head_dim": 64, "num_local_experts": experts, "experts_per_token": 4, "num_experts_per_tok": 4}
    types = ["sliding_attention", "full_attention"] * (layers // 2)
    quantization = {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    }
    return config(
        "gpt_oss", 2880, 2880, layers, 201088, 64, 8,
        attention_bias=True, sliding_window=128, layer_types=types, max_position_embeddings=131072,
        quantization_config=quantization, **more,
    )  # fmt: skip


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def latent(hidden: int, wide: int, layers: int, vocab: int, heads: int, experts: int, moe: int, **more: Any) -> Any:
    """DeepSeek's configs, with MLA."""
    return config(
        "deepseek_v3", hidden, wide, layers, vocab, heads, heads,
        **{
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "n_routed_experts": experts, "n_shared_experts": 1, "moe_intermediate_size": moe,
            "moe_layer_freq": 1, "topk_method": "noaux_tc", "num_experts_per_tok": 8, **more,
        },
    )  # fmt: skip


def llama4(experts: int, step: int) -> dict[str, Any]:
    text = config(
        "llama4_text", 5120, 8192, 48, 202048, 40, 8,
        attention_chunk_size=8192, head_dim=128, interleave_moe_layer_step=step, intermediate_size_mlp=16384,
        max_position_embeddings=10485760, no_rope_layers=[1, 1, 1, 0] * 12, num_experts_per_tok=1,
        num_local_experts=experts,
    )  # fmt: skip
    vision = {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "vision_output_dim": 4096,
    }
    return {"model_type": "llama4", "text_config": text, "torch_dtype": "bfloat16", "vision_config": vision}


QWEN3_NEXT = config(
    "qwen3_next", 2048, 5120, 48, 151936, 16, 2,
    head_dim=256, full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128,
    linear_num_key_heads=16, linear_num_value_heads=32, linear_value_head_dim=128, decoder_sparse_step=1,
    moe_intermediate_size=512, num_experts=512, num_experts_per_tok=10, shared_expert_intermediate_size=512,
)  # fmt: skip
JAMBA = config(
    "jamba", 4096, 14336, 32, 65536, 32, 8,
    attn_layer_offset=4, attn_layer_period=8, expert_layer_offset=1, expert_layer_period=2, mamba_d_conv=4,
    mamba_d_state=16, mamba_dt_rank=256, mamba_expand=2, num_experts=16, num_experts_per_tok=2,
)  # fmt: skip
TIE = {"tie_word_embeddings": True}

MODELS = (
    Published("Mistral 7B v0.1", 7_241_732_096, config("mistral", 4096, 14336, 32, 32000, 32, 8)),
    Published("Llama 2 7B", 6_738_415_616, config("llama", 4096, 11008, 32, 32000, 32, 32)),
    Published("Llama 3 8B", 8_030_261_248, config("llama", 4096, 14336, 32, 128256, 32, 8)),
    Published("Llama 3 70B", 70_553_706_496, config("llama", 8192, 28672, 80, 128256, 64, 8)),
    Published(
        "Llama 3.2 1B",
        1_235_814_400,
        config("llama", 2048, 8192, 16, 128256, 32, 8, head_dim=64, tie_word_embeddings=True),
    ),
    Published("TinyLlama 1.1B", 1_100_048_384, config("llama", 2048, 5632, 22, 32000, 32, 4)),
    Published("Qwen2.5 7B", 7_615_616_512, config("qwen2", 3584, 18944, 28, 152064, 28, 4)),
    Published("Qwen2.5 0.5B", 494_032_768, config("qwen2", 896, 4864, 24, 151936, 14, 2, tie_word_embeddings=True)),
    Published("Qwen3 8B", 8_190_735_360, config("qwen3", 4096, 12288, 36, 151936, 32, 8, head_dim=128)),
    Published(
        "Qwen3 30B-A3B",
        30_532_122_624,
        config(
            "qwen3_moe", 2048, 6144, 48, 151936, 32, 4, head_dim=128, num_experts=128, moe_intermediate_size=768
        ),
    ),
    Published("Gemma 2B", 2_506_172_416, config("gemma", 2048, 16384, 18, 256000, 8, 1, head_dim=256)),
    Published("Gemma 2 2B", 2_614_341_888, config("gemma2", 2304, 9216, 26, 256000, 8, 4, head_dim=256)),
    Published("Phi-3 mini 4k", 3_821_079_552, config("phi3", 3072, 8192, 32, 32064, 32, 32)),
    Published(
        "Mixtral 8x7B", 46_702_792_704, config("mixtral", 4096, 14336, 32, 32000, 32, 8, num_local_experts=8)
    ),
    Published("Llama 2 13B", 13_015_864_320, config("llama", 5120, 13824, 40, 32000, 40, 40)),
    Published("Llama 2 70B", 68_976_648_192, config("llama", 8192, 28672, 80, 32000, 64, 8)),
    Published("Llama 3.2 3B", 3_212_749_824, config("llama", 3072, 8192, 28, 128256, 24, 8, head_dim=128, **TIE)),
    Published("Llama 3.1 405B", 405_853_388_800, config("llama", 16384, 53248, 126, 128256, 128, 8)),
    Published("Yi 34B", 34_388_917_248, config("llama", 7168, 20480, 60, 64000, 56, 8)),
    Published("SmolLM2 1.7B", 1_711_376_384, config("llama", 2048, 8192, 24, 49152, 32, 32, **TIE)),
    Published("SmolLM3 3B", 3_075_098_624, config("smollm3", 2048, 11008, 36, 128256, 16, 4, **TIE)),
    Published("Mistral Nemo 12B", 12_247_782_400, config("mistral", 5120, 14336, 40, 131072, 32, 8, head_dim=128)),
    Published("Mistral Small 24B", 23_572_403_200, config("mistral", 5120, 32768, 40, 131072, 32, 8, head_dim=128)),
    Published(
        "Mixtral 8x22B", 140_630_071_296, config("mixtral", 6144, 16384, 56, 32768, 48, 8, num_local_experts=8)
    ),
    Published("Qwen2.5 32B", 32_763_876_352, config("qwen2", 5120, 27648, 64, 152064, 40, 8)),
    Published("Qwen2.5 72B", 72_706_203_648, config("qwen2", 8192, 29568, 80, 152064, 64, 8)),
    Published("Qwen3 0.6B", 596_049_920, config("qwen3", 1024, 3072, 28, 151936, 16, 8, head_dim=128, **TIE)),
    Published("Qwen3 4B", 4_022_468_096, config("qwen3", 2560, 9728, 36, 151936, 32, 8, head_dim=128, **TIE)),
    Published("Qwen3 14B", 14_768_307_200, config("qwen3", 5120, 17408, 40, 151936, 40, 8, head_dim=128)),
    Published("Qwen3 32B", 32_762_123_264, config("qwen3", 5120, 25600, 64, 151936, 64, 8, head_dim=128)),
    Published(
        "Qwen3 235B-A22B",
        235_093_634_560,
        config(
            "qwen3_moe", 4096, 12288, 94, 151936, 64, 4, head_dim=128, num_experts=128, moe_intermediate_size=1536
        ),
    ),
    Published("Qwen3-Next 80B-A3B", 79_674_391_296, QWEN3_NEXT),
    Published("Gemma 7B", 8_537_680_896, config("gemma", 3072, 24576, 28, 256000, 16, 16, head_dim=256)),
    Published(
        "Gemma 2 9B",
        9_241_705_984,
        config("gemma2", 3584, 14336, 42, 256000, 16, 8, head_dim=256, sliding_window=4096),
    ),
    Published(
        "Gemma 2 27B",
        27_227_128_320,
        config("gemma2", 4608, 36864, 46, 256000, 32, 16, head_dim=128, sliding_window=4096),
    ),
    Published(
        "Gemma 3 1B",
        999_885_952,
        config(
            "gemma3_text", 1152, 6912, 26, 262144, 4, 1, head_dim=256, sliding_window=512, sliding_window_pattern=6
        ),
    ),
    Published("Gemma 3 4B", 4_300_079_472, GEMMA3_4B),
    Published("Gemma 3 12B", 12_187_325_040, GEMMA3_12B),
    Published("Gemma 3 27B", 27_432_406_640, GEMMA3_27B),
    Published("Phi-4", 14_659_507_200, config("phi3", 5120, 17920, 40, 100352, 40, 10, sliding_window=None)),
    Published("gpt-oss-20b", 20_914_757_184, gpt_oss(24, 32)),
    Published("gpt-oss-120b", 116_829_156_672, gpt_oss(36, 128)),
    Published(
        "DeepSeek V3",
        671_026_419_200,
        latent(7168, 18432, 61, 129280, 128, 256, 2048, first_k_dense_replace=3, quantization_config=FP8),
    ),
    Published(
        "DeepSeek V2 Lite",
        15_706_484_224,
        latent(
            2048,
            10944,
            27,
            102400,
            16,
            64,
            1408,
            first_k_dense_replace=1,
            q_lora_rank=None,
            n_shared_experts=2,
            topk_method="greedy",
            num_experts_per_tok=6,
        ),
    ),
    Published(
        "DeepSeek V2",
        235_741_434_880,
        latent(
            5120,
            12288,
            60,
            102400,
            128,
            160,
            1536,
            first_k_dense_replace=1,
            n_shared_experts=2,
            topk_method="group_limited_greedy",
            num_experts_per_tok=6,
        ),
    ),
    Published(
        "Kimi K2",
        1_026_408_232_448,
        latent(7168, 18432, 61, 163840, 64, 384, 2048, first_k_dense_replace=1, model_type="kimi_k2"),
    ),
    Published("Llama 4 Scout", 108_641_793_536, llama4(16, 1)),
    Published("Llama 4 Maverick", 401_583_781_376, llama4(128, 2)),
    Published("Jamba v0.1", 51_570_323_328, JAMBA),
    Published("Command R", 34_980_831_232, config("cohere", 8192, 22528, 40, 256000, 64, 64)),
    Published("OLMo 2 7B", 7_298_617_344, config("olmo2", 4096, 11008, 32, 100352, 32, 32)),
    Published(
        "OLMoE 1B-7B",
        6_919_161_856,
        config("olmoe", 2048, 1024, 16, 50304, 16, 16, num_experts=64, num_experts_per_tok=8),
    ),
    Published(
        "StarCoder2 15B",
        15_957_889_024,
        config("starcoder2", 6144, 24576, 40, 49152, 48, 4, sliding_window=4096, tie_word_embeddings=False),
    ),
    Published("GPT-2", 124_439_808, GPT2),
)


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
