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


def deepseek_v4(hidden: int, layers: int, heads: int, experts: int, wide: int, **more: Any) -> Any:
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

GEMMA_4_31B: dict[str, Any] = {
    "model_type": "gemma4",
    "torch_dtype": "bfloat16",
    "text_config": config(
        "gemma4_text", 5376, 21504, 60, 262144, 32, 16, head_dim=256, global_head_dim=512,
        num_global_key_value_heads=4, attention_k_eq_v=True, sliding_window=1024, num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, layer_types=[*["sliding_attention"] * 5, "full_attention"] * 10,
        max_position_embeddings=262144,
    ),
}  # fmt: skip
QWEN3_5_35B: dict[str, Any] = config(
    "qwen3_5_moe", 2048, 512, 40, 248320, 16, 2, head_dim=256, full_attention_interval=4, attn_output_gate=True,
    linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
    linear_value_head_dim=128, mamba_ssm_dtype="float32", moe_intermediate_size=512, num_experts=256,
    num_experts_per_tok=8, shared_expert_intermediate_size=512,
)  # fmt: skip
KIMI_LINEAR: dict[str, Any] = config(
    "kimi_linear", 2304, 9216, 27, 163840, 32, 32, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, num_experts=256, num_shared_experts=1, num_experts_per_token=8,
    moe_intermediate_size=1024, first_k_dense_replace=1, moe_layer_freq=1, mla_use_nope=True,
    linear_attn_config={
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    },
)  # fmt: skip
MINIMAX_M2: dict[str, Any] = config(
    "minimax_m2", 3072, 1536, 62, 200064, 48, 8, head_dim=128, attn_type_list=[1] * 62, num_local_experts=256,
    num_experts_per_tok=8, use_qk_norm=True, shared_intermediate_size=0, max_position_embeddings=196608,
)  # fmt: skip
NEMOTRON_3_NANO: dict[str, Any] = config(
    "nemotron_h", 2688, 1856, 52, 131072, 32, 2, head_dim=128,
    hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", mamba_num_heads=64,
    mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4, chunk_size=128, n_routed_experts=128,
    n_shared_experts=1, num_experts_per_tok=6, moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712, mamba_ssm_cache_dtype="float32",
)  # fmt: skip
FALCON_H1_34B: dict[str, Any] = config(
    "falcon_h1", 5120, 21504, 72, 261120, 20, 4, head_dim=128, mamba_d_ssm=4096, mamba_n_heads=32, mamba_d_head=128,
    mamba_d_state=256, mamba_n_groups=2, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=128,
)  # fmt: skip
# The list has three more layers, for multi-token prediction.
STEP_3_5: dict[str, Any] = {
    key: value
    for key, value in config(
        "step3p5", 4096, 11264, 45, 128896, 64, 8, num_attention_groups=8, head_dim=128, sliding_window=512,
        layer_types=["full_attention", *["sliding_attention"] * 3] * 12, moe_num_experts=288, moe_top_k=8,
        moe_intermediate_size=1280, share_expert_dim=1280, num_nextn_predict_layers=3,
        moe_layers_enum=",".join(map(str, range(3, 45))),
        attention_other_setting={
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
            "head_dim": 128,
        },
    ).items()
    if key != "num_key_value_heads"
}  # fmt: skip
LONGCAT_FLASH: dict[str, Any] = {
    "model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "vocab_size": 131072,
    "num_attention_heads": 64, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512,
    "zero_expert_num": 256, "moe_topk": 12, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
MIMO_V2_FLASH: dict[str, Any] = config(
    "mimo_v2_flash", 4096, 16384, 48, 152576, 64, 4, head_dim=192, v_head_dim=128, swa_num_attention_heads=64,
    swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128, sliding_window=128, sliding_window_size=128,
    hybrid_layer_pattern=[int(bool(at and (at + 1) % 6)) for at in range(48)], moe_layer_freq=[0, *[1] * 47],
    attention_chunk_size=128, n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
    attention_value_scale=0.707, add_swa_attention_sink_bias=True, quantization_config=FP8,
)  # fmt: skip
LFM2_TYPES = ["full_attention" if at in (2, 6, 10, 14, 18, 21) else "conv" for at in range(24)]
LFM2_8B_A1B: dict[str, Any] = config(
    "lfm2_moe", 2048, 7168, 24, 65536, 32, 8, layer_types=LFM2_TYPES, conv_L_cache=3, moe_intermediate_size=1792,
    num_dense_layers=2, num_experts=32, num_experts_per_tok=4, use_expert_bias=True, max_position_embeddings=128000,
)  # fmt: skip
LFM2_1_2B: dict[str, Any] = config(
    "lfm2", 2048, 12288, 16, 65536, 32, 8, full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3, block_dim=2048,
    block_ff_dim=12288, block_auto_adjust_ff_dim=True, block_multiple_of=256, block_ffn_dim_multiplier=1.0,
    max_position_embeddings=128000,
)  # fmt: skip
