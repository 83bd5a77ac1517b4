"""config.json of models of 2025 and 2026, trimmed to the keys of their shape.

DeepSeek-V3.2, V4 and GLM-5 as in the published files; the others as in the classes of transformers 5.24.
"""

from __future__ import annotations

from typing import Any

from scripts.published_models import FP8, config

INDEXER = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
LATENT = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "topk_method": "noaux_tc",
}  # fmt: skip
DEEPSEEK_V32: dict[str, Any] = config(
    "deepseek_v32", 7168, 18432, 61, 129280, 128, 128, **LATENT, **INDEXER,
    quantization_config=FP8, num_nextn_predict_layers=1, max_position_embeddings=163840,
)  # fmt: skip
GLM_5: dict[str, Any] = config(
    "glm_moe_dsa", 6144, 12288, 78, 154880, 64, 64, **LATENT, **INDEXER,
    num_nextn_predict_layers=1, max_position_embeddings=202752,
) | {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32}  # fmt: skip
# Every fourth layer from the seventh on, and the first three, choose tokens; the others reuse their choice.
GLM_5_2: dict[str, Any] = GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3}


def deepseek_v4(hidden: int, layers: int, heads: int, experts: int, wide: int, **more: Any) -> dict[str, Any]:
    """DeepSeek V4, with fp4 experts and fp8 matrices."""
    return config(
        "deepseek_v4", hidden, wide, layers, 129280, heads, 1, head_dim=512, moe_intermediate_size=wide,
        n_routed_experts=experts, n_shared_experts=1, num_experts_per_tok=6, num_hash_layers=3, o_lora_rank=1024,
        qk_rope_head_dim=64, sliding_window=128, index_head_dim=128, index_n_heads=64, hc_mult=4,
        hc_sinkhorn_iters=20, compress_rope_theta=160000, topk_method="noaux_tc", expert_dtype="fp4",
        quantization_config={**FP8, "scale_fmt": "ue8m0"}, num_nextn_predict_layers=1,
        max_position_embeddings=1048576, **more,
    )  # fmt: skip


# The lists of both have an entry for each layer of multi-token prediction at their end.
DEEPSEEK_V4_FLASH = deepseek_v4(
    4096, 43, 64, 256, 2048, q_lora_rank=1024, o_groups=8, index_topk=512,
    compress_ratios=[0, 0, *[4, 128] * 20, 4, 0],
)  # fmt: skip
DEEPSEEK_V4_PRO = deepseek_v4(
    7168, 61, 128, 384, 3072, q_lora_rank=1536, o_groups=16, index_topk=1024,
    compress_ratios=[128, 128, *[4, 128] * 29, 4, 0],
)  # fmt: skip
