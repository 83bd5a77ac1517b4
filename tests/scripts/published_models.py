"""Published checkpoints: the relevant part of their config.json, and the number of parameters in their files.

`PYTHONPATH=tests python -m scripts.published_models` prints the table of docs/howto/training.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.units import size


class Published(Struct, frozen=True):
    """`parameters`: sum of the tensors in its safetensors files, from its index or its card. Tied embeddings are in
    the files once."""

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
    Published("GPT-2", 124_439_808, GPT2),
)


def rows() -> Iterator[str]:
    for model in MODELS:
        shape = parse_config(model.config, model.name).transformer
        off = shape.parameters / model.parameters - 1
        cache = size(compute_kv_cache(shape, 8192, 1, 2))
        yield f"| {model.name} | {model.parameters:,} | {shape.parameters:,} | {off:+.2%} | {cache} |"


if __name__ == "__main__":
    print("\n".join(rows()))
