"""Caches of models of 2025 and 2026, on one GPU and with tensor parallelism, against what engines allocate."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from memwatch.planning.checkpoint import describe_config
from memwatch.planning.config_keys import UnknownFamilyError
from memwatch.planning.gguf import parse_shape
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from scripts.published_models import MODELS
from support import recent_models
from support.gguf_keys import attention, keys
from support.recent_models import DEEPSEEK_V32, GEMMA_4_31B, KIMI_LINEAR, MINIMAX_M2

GIB = 1 << 30
LONG = 131_072
CONFIGS = {model.name: model.config for model in MODELS}


def cache_of(config: dict[str, Any], tokens: int, ranks: int = 1) -> int:
    return compute_kv_cache(parse_config(config, "config.json").transformer, tokens, 1, 2, ranks)


class Known(NamedTuple):
    """`token_bytes`: bytes that each further token takes, beyond all windows, in 16 bits. `fixed_bytes`: windows
    and state of one sequence. `parameters`: in billions, by the model's name or card."""

    name: str
    token_bytes: int
    fixed_bytes: int
    parameters: float


# State-space layers: 32-bit state, and inputs of their convolutions (transformers 5.24 keeps `kernel` of them).
DELTA = (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 4) * 4
KNOWN = (
    # 10 of 60 layers without a window: 4 heads of 512; 50 with 16 of 256, 1,024 tokens. vllm-project/vllm#43308:
    # 81,920 bytes a token. Keys and values are stored apart, though one matrix makes both.
    Known("GEMMA_4_31B", 10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2 * 1024, 31),
    # A quarter of 40 layers has attention: 2 heads of 256. The others have a state of 32 heads of 128 x 128.
    Known("QWEN3_5_35B", 10 * 2 * 2 * 256 * 2, 30 * DELTA, 35),
    # 7 of 27 layers have MLA, 512 + 64 numbers; 20 have Kimi Delta Attention, 32 heads of 128 x 128.
    Known("KIMI_LINEAR", 7 * 576 * 2, 20 * 32 * 128 * (128 + 12) * 4, 48),
    # 62 layers of 8 heads of 128. Its page: 62.0 GiB at 262,144 tokens.
    Known("MINIMAX_M2", 62 * 2 * 8 * 128 * 2, 0, 230),
    # 6 of 52 layers have attention, 23 Mamba 2: 64 heads of 64 x 128, 8 groups, four inputs of the convolution.
    Known("NEMOTRON_3_NANO", 6 * 2 * 2 * 128 * 2, 23 * (64 * 64 * 128 + (4096 + 2 * 8 * 128) * 4) * 4, 31.6),
    # All 72 layers have both: 4 heads of 128, and Mamba 2 with 4,096 channels, a state of 256, 2 groups.
    Known("FALCON_H1_34B", 72 * 2 * 4 * 128 * 2, 72 * (4096 * 256 + (4096 + 2 * 2 * 256) * 4) * 4, 34),
    # 12 of 45 layers look back on all tokens, 33 on 512: 8 heads of 128 in both.
    Known("STEP_3_5", 12 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2 * 512, 196),
    # 28 layers with two caches of 576 numbers each (transformers: `layer_idx * 2 + i`).
    Known("LONGCAT_FLASH", 56 * 576 * 2, 0, 560),
    # 9 of 48 layers have 4 heads of 192 + 128 numbers, 39 have 8 of them for 128 tokens.
    Known("MIMO_V2_FLASH", 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2 * 128, 309),
    # 6 layers with attention, 8 heads of 64; the others keep three tokens. Cards: 8.3 and 1.17 billion.
    Known("LFM2_8B_A1B", 6 * 2 * 8 * 64 * 2, 18 * 2048 * 3 * 4, 8.34),
    Known("LFM2_1_2B", 6 * 2 * 8 * 64 * 2, 10 * 2048 * 3 * 4, 1.17),
)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_cache_has_the_bytes_that_engines_allocate(known: Known) -> None:
    """The derivations are in KNOWN. Engines: SGLang's model_config.py, vLLM's mamba_utils.py, transformers 5.24."""
    config = getattr(recent_models, known.name)

    assert cache_of(config, LONG) - cache_of(config, LONG - 1000) == 1000 * known.token_bytes
    assert cache_of(config, LONG) == LONG * known.token_bytes + known.fixed_bytes


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_parameters_are_those_of_its_name(known: Known) -> None:
    """A vision tower is not in these configs."""
    config = getattr(recent_models, known.name)

    assert parse_config(config, "").transformer.parameters == pytest.approx(known.parameters * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "tokens", "published"), [("GEMMA_4_31B", 262_144, 20.8), ("MINIMAX_M2", 262_144, 62.0)]
)
def test_cache_equals_the_published_figure(name: str, tokens: int, published: float) -> None:
    """vllm-project/vllm#43308 and the page of MiniMax-M2.5."""
    assert cache_of(getattr(recent_models, name), tokens) == pytest.approx(published * GIB, rel=0.005)


def test_kimi_linear_may_list_its_layers_by_type() -> None:
    """As transformers 5 writes it: no `linear_attn_config`."""
    flat = {key: value for key, value in KIMI_LINEAR.items() if key != "linear_attn_config"}
    types = ["full_attention" if at in (3, 7, 11, 15, 19, 23, 26) else "linear_attention" for at in range(27)]
    new = flat | {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "layer_types": types}

    assert parse_config(new, "").transformer == parse_config(KIMI_LINEAR, "").transformer


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({}, 8192),
        ({"block_multiple_of": 1000}, 9000),
        ({"block_ffn_dim_multiplier": 0.5}, 4096),
        ({"block_ffn_dim_multiplier": "wide"}, 8192),
        ({"block_auto_adjust_ff_dim": False}, 12288),
    ],
)
def test_lfm2_narrows_the_written_width_of_its_mlp(more: dict[str, Any], width: int) -> None:
    """transformers' Lfm2MLP: two thirds, times a factor, rounded up."""
    assert parse_config(recent_models.LFM2_1_2B | more, "").transformer.intermediate_size == width


def test_minimax_with_other_layers_is_refused() -> None:
    with pytest.raises(UnknownFamilyError, match="attn_type_list has other layers than full attention"):
        parse_config({**MINIMAX_M2, "attn_type_list": [1, 0] * 31}, "config.json")


@pytest.mark.parametrize(
    ("config", "ranks", "token_bytes"),
    [
        # 8 KV heads over 4 GPUs: two each; over 16: copied.
        (CONFIGS["Llama 3 70B"], 4, 80 * 2 * 2 * 128 * 2),
        (CONFIGS["Llama 3 70B"], 16, 80 * 2 * 1 * 128 * 2),
        # Full layers have 4 heads, one for each two of 8 GPUs; windows of 16 heads do not grow.
        (GEMMA_4_31B, 8, 10 * 2 * 1 * 512 * 2),
        # Two heads for 8 GPUs.
        (recent_models.QWEN3_5_35B, 8, 10 * 2 * 1 * 256 * 2),
        (recent_models.MIMO_V2_FLASH, 8, 9 * 1 * (192 + 128) * 2),
        # Latent vectors are copied: 8 GPUs hold as many tokens as one.
        (CONFIGS["DeepSeek V3"], 8, 61 * 576 * 2),
        (KIMI_LINEAR, 8, 7 * 576 * 2),
        (recent_models.LONGCAT_FLASH, 8, 56 * 576 * 2),
        (DEEPSEEK_V32, 8, 61 * (576 * 2 + 132)),
    ],
)
def test_tensor_parallelism_divides_heads_and_copies_latent_vectors(
    config: dict[str, Any], ranks: int, token_bytes: int
) -> None:
    """vLLM's get_num_kv_heads: at least one head on each GPU. MLA has one (vllm-project/vllm#51454)."""
    assert cache_of(config, LONG, ranks) - cache_of(config, LONG - 1000, ranks) == 1000 * token_bytes


@pytest.mark.parametrize(
    ("name", "ranks", "token_bytes", "layers"),
    [
        ("QWEN3_5_35B", 8, 10 * 2 * 1 * 256 * 2, 30),
        ("NEMOTRON_3_NANO", 2, 6 * 2 * 1 * 128 * 2, 23),
        ("KIMI_LINEAR", 8, 7 * 576 * 2, 20),
    ],
)
def test_tensor_parallelism_divides_recurrent_state(name: str, ranks: int, token_bytes: int, layers: int) -> None:
    """SGLang's Mamba2StateShape and KimiLinearStateShape: heads of the state by GPU, also where MLA is copied."""
    config = getattr(recent_models, name)
    state = layers * parse_config(config, "").transformer.state_bytes

    assert cache_of(config, 1000, ranks) == 1000 * token_bytes + -(-state // ranks)


def test_gguf_of_gemma_4_has_the_heads_of_both_kinds_of_layers() -> None:
    """A KV head count for each layer, as in its config.json."""
    near = ([True] * 5 + [False]) * 10
    given = keys(
        "gemma4", **attention(60, 5376, 21504, 32, 16), attention__key_length=512, attention__key_length_swa=256,
        attention__sliding_window=1024, vocab_size=262144, attention__sliding_window_pattern=tuple(near),
    ) | {"gemma4.attention.head_count_kv": tuple(16 if one else 4 for one in near)}  # fmt: skip

    for ranks in (1, 8):
        assert compute_kv_cache(parse_shape(given)[0], LONG, 1, 2, ranks) == cache_of(GEMMA_4_31B, LONG, ranks)


def test_need_on_each_gpu_has_the_cache_of_one_rank() -> None:
    """DeepSeek V3 on 8 GPUs in fp8: an eighth of the weights, and all of the cache. In a pipeline, its layers."""
    model = describe_config(parse_config(CONFIGS["DeepSeek V3"], ""))
    use = Use(context=LONG, kv_dtype="fp8", parallel="tensor")
    whole, tensor = (compute_checkpoint_need(model, use, gpus).parts for gpus in (1, 8))
    pipeline = compute_checkpoint_need(model, Use(context=LONG, kv_dtype="fp8", parallel="pipeline"), 8).parts

    assert tensor["kv_cache"] == whole["kv_cache"] == LONG * 61 * 576
    assert tensor["weights"] == -(-whole["weights"] // 8)
    assert pipeline["kv_cache"] == LONG * 8 * 576
