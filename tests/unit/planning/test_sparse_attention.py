"""Caches of sparse and compressed attention: DeepSeek V3.2 and V4, GLM-5, from config.json and from GGUF keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.engines.records import Cache
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.config_keys import UnknownFamilyError
from memwatch.planning.gguf import parse_shape
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from memwatch.planning.served import read_served, size_served
from memwatch.planning.sparse_attention import count_indexers
from support.gguf_keys import attention, keys
from support.recent_models import DEEPSEEK_V4_FLASH, DEEPSEEK_V4_PRO, DEEPSEEK_V32, GLM_5, GLM_5_2

GIB = 1 << 30
LONG, MILLION = 131_072, 1 << 20
# An indexer's key: 128 numbers in fp8 and one 32-bit scale. Latent vectors: 512 numbers and 64 with positions, in
# fp8 with four 32-bit scales and 16-bit positions.
KEY, FP8_LATENT = 132, 512 + 16 + 128


def cache_of(config: dict[str, Any], tokens: int, dtype_bytes: float = 2, ranks: int = 1) -> int:
    return compute_kv_cache(parse_config(config, "config.json").transformer, tokens, 1, dtype_bytes, ranks)


def test_deepseek_v32_keeps_an_indexer_key_beside_each_latent_vector() -> None:
    """sgl-project/sglang#11309: 43.67 GiB for 975,424 tokens in fp8, 48,072 bytes each. Counted: 61 layers of 656
    and 132 bytes. In 16 bits, the latent vector takes 2 x 576 bytes, the key 132 as before."""
    assert cache_of(DEEPSEEK_V32, 1, 1) == 61 * (FP8_LATENT + KEY) == 48_068
    assert cache_of(DEEPSEEK_V32, 975_424, 1) == pytest.approx(43.67 * GIB, rel=0.0002)
    assert cache_of(DEEPSEEK_V32, LONG, 1) == pytest.approx(5.87 * GIB, rel=0.001)
    assert cache_of(DEEPSEEK_V32, LONG) == LONG * 61 * (2 * 576 + KEY)
    assert cache_of(DEEPSEEK_V32, LONG) == pytest.approx(9.56 * GIB, rel=0.001)


def test_latent_vectors_without_an_indexer_have_one_byte_a_number_in_fp8() -> None:
    """SGLang's calculate_mla_kv_cache_dim: only models with sparse attention have the format with scales."""
    plain = {key: value for key, value in DEEPSEEK_V32.items() if not key.startswith("index")}

    assert cache_of({**plain, "model_type": "deepseek_v3"}, LONG, 1) == LONG * 61 * 576


def test_indexer_is_counted_whatever_the_name_of_the_family() -> None:
    """SGLang decides by `index_topk` as well, for DeepseekV3ForCausalLM and others."""
    assert cache_of({**DEEPSEEK_V32, "model_type": "deepseek_v3"}, LONG, 1) == cache_of(DEEPSEEK_V32, LONG, 1)


def test_glm_5_is_planned_like_deepseek_v32() -> None:
    """78 layers with an indexer each (sgl-project/sglang#30546: 132 bytes per token and layer). 744 billion
    parameters by its name."""
    assert cache_of(GLM_5, LONG, 1) == LONG * 78 * (FP8_LATENT + KEY)
    assert parse_config(GLM_5, "").transformer.parameters == pytest.approx(744e9, rel=0.005)


PATTERN = "FFF" + "SSSF" * 18 + "SSS"


@pytest.mark.parametrize(
    "schedule",
    [
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_pattern": PATTERN},
        {"indexer_types": ["full" if one == "F" else "shared" for one in PATTERN]},
    ],
    ids=lambda schedule: next(iter(schedule)),
)
def test_layers_that_reuse_a_choice_keep_no_keys(schedule: dict[str, Any]) -> None:
    """GLM-5.2 and 5.3: 21 of 78 layers have an indexer (LMCache#5002: 78 latent and 21 indexer tensors;
    ikawrakow/ik_llama.cpp#2093: 672 MiB of 16-bit keys for 131,072 tokens in place of 2.5 GiB)."""
    assert count_indexers(GLM_5 | schedule, 78) * LONG * 256 == 672 << 20
    assert cache_of(GLM_5 | schedule, LONG, 1) == LONG * (78 * FP8_LATENT + 21 * KEY)


def test_tokens_may_share_an_indexer_key() -> None:
    """`index_kpool`: SGLang's _compute_dsa_indexer_cell_size rounds 132 bytes for four tokens up to 33 each."""
    assert cache_of({**DEEPSEEK_V32, "index_kpool": 4}, LONG, 1) == LONG * 61 * (FP8_LATENT + 33)


def test_longcat_chooses_anew_every_few_layers() -> None:
    """`cli_factor` 2 (SGLang's dsa_layer_skips_topk): even layers have an indexer, 31 of 61."""
    assert count_indexers({**DEEPSEEK_V32, "cli_factor": 2}, 61) == 31


CSA_STATE, HCA_STATE = 8 * 4 * (512 + 128) * 4, 128 * 2 * 512 * 4


@pytest.mark.parametrize(
    ("config", "layers", "sparse", "heavy", "published"),
    [(DEEPSEEK_V4_FLASH, 43, 21, 20, 6.72), (DEEPSEEK_V4_PRO, 61, 30, 31, 9.62)],
    ids=["Flash", "Pro"],
)
def test_deepseek_v4_keeps_compressed_entries(
    config: dict[str, Any], layers: int, sparse: int, heavy: int, published: float
) -> None:
    """All layers keep 128 vectors of 512 numbers. CSA layers add one for 4 tokens with an indexer's key, HCA layers
    one for 128. Compressors keep 8 and 128 rows in 32 bits for each sequence (SGLang's DSV4PoolConfigurator,
    llama.cpp's llama_dsv4_comp_state). vLLM's page on V4: 6.72 and 9.62 GiB at 1,048,576 tokens, all in 16 bits,
    of which the keys take 256 bytes in place of 132, without windows and state."""
    entries = sparse * MILLION // 4 * 1024 + heavy * MILLION // 128 * 1024
    fixed = layers * 128 * 1024 + sparse * CSA_STATE + heavy * HCA_STATE

    assert cache_of(config, MILLION) == pytest.approx(entries + sparse * MILLION // 4 * KEY + fixed, abs=layers)
    assert entries + sparse * MILLION // 4 * 256 == pytest.approx(published * GIB, rel=0.001)


def test_deepseek_v4_in_fp8_has_584_bytes_an_entry() -> None:
    """448 numbers in fp8, 64 in 16 bits, 7 scales and a pad (SGLang's DeepSeekV4SingleKVPool)."""
    tokens = 128 * 1000
    state = 21 * CSA_STATE + 20 * HCA_STATE
    entries = 43 * 128 + 21 * tokens // 4 + 20 * tokens // 128

    assert cache_of(DEEPSEEK_V4_FLASH, tokens, 1) == pytest.approx(
        entries * 584 + 21 * tokens // 4 * KEY + state, abs=43
    )


@pytest.mark.parametrize(
    ("config", "parameters"), [(DEEPSEEK_V4_FLASH, 284.33e9), (DEEPSEEK_V4_PRO, 1572.6e9)], ids=["Flash", "Pro"]
)
def test_deepseek_v4_has_the_published_parameters(config: dict[str, Any], parameters: float) -> None:
    """Flash as llama.cpp prints it (ggml-org/llama.cpp#27680), Pro as its card, without multi-token prediction."""
    assert parse_config(config, "").transformer.parameters == pytest.approx(parameters, rel=0.001)


def test_deepseek_v4_has_experts_in_four_bits() -> None:
    """`expert_dtype` fp4 beside the method fp8: 4 bits and a scale of 8 for 32 weights. The other matrices, fp8 in
    the files, are 1.6 % of the parameters and counted in 16 bits."""
    config = parse_config(DEEPSEEK_V4_PRO, "")
    experts = 61 * 384 * 3 * 7168 * 3072

    assert config.dtype == "mxfp4:experts"
    assert compute_checkpoint_need(describe_config(config), Use()).parts["weights"] == pytest.approx(
        experts * 4.25 / 8 + (config.transformer.parameters - experts) * 2, abs=1
    )


def test_layer_that_no_list_has_counts_as_the_kind_with_the_largest_cache() -> None:
    short = {**DEEPSEEK_V4_FLASH, "compress_ratios": [0, 0]}

    assert cache_of(short, MILLION) == cache_of({**short, "compress_ratios": [0, 0, *[4] * 41]}, MILLION)


def test_layers_of_deepseek_v4_may_be_listed_by_type() -> None:
    """As transformers 5 writes them."""
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    typed = {**DEEPSEEK_V4_FLASH, "layer_types": [words[one] for one in DEEPSEEK_V4_FLASH["compress_ratios"][:43]]}
    del typed["compress_ratios"]

    assert parse_config(typed, "").transformer == parse_config(DEEPSEEK_V4_FLASH, "").transformer


def test_other_ratio_of_compression_is_refused_by_name() -> None:
    """V4.1 has ratios of 1 and 2, whose entries several layers share."""
    with pytest.raises(UnknownFamilyError, match="compress_ratios has 2, whose cache is not known"):
        parse_config({**DEEPSEEK_V4_FLASH, "compress_ratios": [0, 2] * 21}, "config.json")


@pytest.mark.parametrize("config", [DEEPSEEK_V32, GLM_5_2, DEEPSEEK_V4_FLASH], ids=["V3.2", "GLM-5.2", "V4"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_latent_vectors_are_copied_to_each_gpu(config: dict[str, Any], ranks: int) -> None:
    """Tensor parallelism divides heads, of which there is one (vllm-project/vllm#51454: eight GPUs hold no more
    tokens than one). Indexers and compressors are copied as well."""
    assert cache_of(config, LONG, 1, ranks) == cache_of(config, LONG, 1)


def test_blocks_of_a_served_model_have_indexer_keys(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V32))
    cache = Cache("blocks", blocks=1000, block_tokens=64, key_dtype="fp8_ds_mla", value_dtype="fp8_ds_mla")

    assert size_served(read_served(tmp_path), cache).kv_cache_bytes == 64_000 * 61 * (FP8_LATENT + KEY)


GGUF_GLM = keys(
    "glm-dsa", **attention(78, 6144, 12288, 64, 1), attention__key_length=576, attention__value_length=512,
    attention__key_length_mla=256, attention__value_length_mla=256, attention__kv_lora_rank=512,
    attention__q_lora_rank=2048, rope__dimension_count=64, attention__indexer__key_length=128,
    attention__indexer__head_count=32, attention__indexer__top_k=2048,
    vocab_size=154880,
)  # fmt: skip


@pytest.mark.parametrize(("types", "indexers"), [(None, 78), ([one == "F" for one in PATTERN], 21)])
def test_gguf_keeps_indexer_keys_in_the_format_of_the_cache(types: list[bool] | None, indexers: int) -> None:
    """llama-kv-cache-dsa.cpp: a second cache of 128 numbers a token, in layers with an indexer of their own
    (ggml-org/llama.cpp#26474). Files before GLM-5.2 have no list."""
    given = {**GGUF_GLM, **({"glm-dsa.attention.indexer.types": tuple(types)} if types else {})}

    found = compute_kv_cache(parse_shape(given)[0], LONG, 1, 2)

    assert found == LONG * 2 * (78 * 576 + indexers * 128)


def gguf_v4(ratios: tuple[int, ...]) -> dict[str, Any]:
    return keys(
        "deepseek4", **attention(43, 4096, 2048, 64, 1), attention__key_length=512, attention__value_length=512,
        attention__q_lora_rank=1024, attention__output_lora_rank=1024, attention__output_group_count=8,
        rope__dimension_count=64, attention__sliding_window=128, attention__indexer__key_length=128,
        attention__compress_ratios=ratios, expert_count=256, expert_used_count=6, expert_feed_forward_length=2048,
        vocab_size=129280,
    )  # fmt: skip


def test_gguf_of_deepseek_v4_has_the_cache_of_its_config() -> None:
    """llama-kv-cache-dsv4.cpp: entries and keys in the cache's format, state in 32 bits."""
    shape, _ = parse_shape(gguf_v4(tuple(DEEPSEEK_V4_FLASH["compress_ratios"])))
    keys_more = 21 * MILLION // 4 * (256 - KEY)

    assert compute_kv_cache(shape, MILLION, 1, 2) == cache_of(DEEPSEEK_V4_FLASH, MILLION) + keys_more


def test_gguf_with_another_ratio_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"'deepseek4': attention\.compress_ratios has 2"):
        parse_shape(gguf_v4((0, 2)))
