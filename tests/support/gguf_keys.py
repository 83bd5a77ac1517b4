"""Keys of GGUF files by model, in the form that llama.cpp's converter writes them."""

from __future__ import annotations

from typing import Any


def keys(family: str, **numbers: Any) -> dict[str, Any]:
    own = {f"{family}.{name.replace('__', '.')}": value for name, value in numbers.items()}
    return {"general.architecture": family, "tokenizer.ggml.tokens": ["a"] * 8, **own}


def attention(layers: int, hidden: int, wide: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "block_count": layers, "embedding_length": hidden, "feed_forward_length": wide,
        "attention__head_count": heads, "attention__head_count_kv": kv, **more,
    }  # fmt: skip


GGUF_KEYS = {
    "Llama 3 8B": keys("llama", **attention(32, 4096, 14336, 32, 8)),
    "Gemma 3 27B": keys(
        "gemma3", **attention(62, 5376, 21504, 32, 16), attention__key_length=128, attention__value_length=128,
        attention__sliding_window=1024,
    ),
    "gpt-oss-20b": keys(
        "gpt-oss", **attention(24, 2880, 2880, 64, 8), attention__key_length=64, attention__value_length=64,
        attention__sliding_window=128, expert_count=32, expert_used_count=4, expert_feed_forward_length=2880,
    ),
    "DeepSeek V3": keys(
        "deepseek2", **attention(61, 7168, 18432, 128, 1), attention__key_length=576, attention__value_length=512,
        attention__key_length_mla=192, attention__value_length_mla=128, attention__kv_lora_rank=512,
        attention__q_lora_rank=1536, rope__dimension_count=64, leading_dense_block_count=3, expert_count=256,
        expert_used_count=8, expert_shared_count=1, expert_feed_forward_length=2048,
    ),
    "Llama 4 Scout": keys(
        "llama4", **attention(48, 5120, 16384, 40, 8), attention__key_length=128, attention__value_length=128,
        expert_count=16, expert_used_count=1, expert_feed_forward_length=8192, interleave_moe_layer_step=1,
    ),
    "Qwen3-Next 80B-A3B": keys(
        "qwen3next", **attention(48, 2048, 5120, 16, 2), attention__key_length=256, attention__value_length=256,
        ssm__inner_size=4096, ssm__state_size=128, ssm__group_count=16, ssm__conv_kernel=4, expert_count=512,
        expert_used_count=10, expert_feed_forward_length=512, expert_shared_feed_forward_length=512,
    ),
    "Jamba v0.1": keys(
        "jamba", **{**attention(32, 4096, 14336, 32, 8), "attention__head_count_kv": [0, 0, 0, 0, 8, 0, 0, 0] * 4},
        ssm__inner_size=8192, ssm__state_size=16, ssm__conv_kernel=4, expert_count=16, expert_used_count=2,
    ),
}  # fmt: skip
