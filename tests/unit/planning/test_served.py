"""Sizes of served models: weights, and caches whose capacity an engine reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Cache, ModelSizes
from memwatch.core.model import Absent, Quality
from memwatch.planning.served import ServedModel, read_served, size_served
from support.recent_models import DEEPSEEK_V4_FLASH, GEMMA_4_31B, QWEN3_5_35B

QWEN3_32B = {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "torch_dtype": "bfloat16", "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "torch_dtype": "bfloat16",
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
}  # fmt: skip
TOKEN = 64 * 2 * 8 * 128 * 2  # bytes of one token in all layers of Qwen3 32B


def size_model(path: Path, cache: Cache) -> ModelSizes:
    return size_served(read_served(path), cache)


def model(folder: Path, config: dict[str, Any], **changed: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    return str(folder)


def blocks(**further: Any) -> Cache:
    return Cache("blocks", blocks=1000, block_tokens=16, **further)


def test_blocks_of_a_plain_model_have_the_bytes_of_its_tokens(tmp_path: Path) -> None:
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), blocks())
    assert found.kv_cache_bytes == 16_000 * TOKEN
    assert found.quality is Quality.DERIVED
    assert found.weights_bytes == pytest.approx(65.5e9, rel=0.01)  # the model card: 65.5 GB of files


@pytest.mark.parametrize(
    ("cache", "factor"),
    [
        (blocks(key_dtype="fp8", value_dtype="fp8"), 0.5),
        (blocks(parallel=8), 1.0),
        (blocks(parallel=16), 2.0),  # KV heads are copied
        (blocks(replicas=2), 1.0),  # their blocks are counted together
    ],
)
def test_cache_depends_on_its_format_and_on_its_gpus(tmp_path: Path, cache: Cache, factor: float) -> None:
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), cache)
    assert found.kv_cache_bytes == 16_000 * TOKEN * factor


@pytest.mark.parametrize(("splits", "weights"), [(False, 131e9), (True, Absent.NOT_AVAILABLE)])
def test_replicas_have_weights_of_their_own_without_shared_experts(
    tmp_path: Path, splits: bool, weights: float | Absent
) -> None:
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), blocks(replicas=2, splits_experts=splits))
    expected: object = weights if isinstance(weights, Absent) else pytest.approx(weights, rel=0.01)
    assert found.weights_bytes == expected


def test_blocks_of_windowed_and_full_layers_belong_to_one_group(tmp_path: Path) -> None:
    """gpt-oss-20b: 12 layers of each kind share the blocks, so that one token takes 12 layers' bytes."""
    found = size_model(Path(model(tmp_path / "g", GPT_OSS)), blocks())
    assert found.kv_cache_bytes == 16_000 * 12 * 2 * 8 * 64 * 2
    assert found.quality is Quality.ESTIMATED


def test_cells_of_sequences_have_the_bytes_of_their_tokens(tmp_path: Path) -> None:
    cells = Cache("cells", tokens=4096, sequences=4, key_dtype="q8_0", value_dtype="f16")
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), cells)
    assert found.kv_cache_bytes == 4 * 4096 * TOKEN * (8.5 + 16) // 32


def test_full_size_windows_keep_all_tokens(tmp_path: Path) -> None:
    """gpt-oss-20b with --swa-full (ggml-org/llama.cpp#13194): 24 layers, where 12 have a window of 128 tokens."""
    cells = Cache("cells", tokens=4096, key_dtype="f16", value_dtype="f16")
    path = Path(model(tmp_path / "g", GPT_OSS))
    small, full = (size_model(path, replace(cells, ignores_windows=one)) for one in (False, True))
    assert small.kv_cache_bytes == (4096 + 128 + 512) * 12 * 2 * 8 * 64 * 2
    assert (full.kv_cache_bytes, full.quality) == (4096 * 24 * 2 * 8 * 64 * 2, Quality.DERIVED)


@pytest.mark.parametrize(("dtype", "number_bytes"), [("bfloat16", 2.0), ("float32", 4.0)])
def test_bytes_of_a_number_are_those_of_the_files(tmp_path: Path, dtype: str, number_bytes: float) -> None:
    found = size_model(Path(model(tmp_path / "q", {**QWEN3_32B, "torch_dtype": dtype})), blocks())
    assert found.number_bytes == number_bytes


def test_assumed_options_of_a_cache_make_it_an_estimate(tmp_path: Path) -> None:
    cells = Cache("cells", tokens=4096, is_assumed=True)
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), cells)
    assert (found.kv_cache_bytes, found.quality) == (4096 * TOKEN, Quality.ESTIMATED)


def test_unknown_family_has_no_cache_and_a_reason(tmp_path: Path) -> None:
    found = size_model(Path(model(tmp_path / "x", QWEN3_32B, model_type="unheard_of")), blocks())
    assert found.kv_cache_bytes is Absent.NOT_AVAILABLE
    assert "unheard_of" in found.note


def test_unknown_format_of_the_cache_gives_a_reason_and_keeps_the_weights(tmp_path: Path) -> None:
    cache = blocks(key_dtype="int3_odd", value_dtype="int3_odd")
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), cache)
    assert isinstance(found.weights_bytes, int)
    assert found.kv_cache_bytes is Absent.NOT_AVAILABLE
    assert "int3_odd" in found.note


def test_missing_folder_gives_a_reason() -> None:
    found = size_model(Path("/nowhere/at/all"), blocks())
    assert (found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert "/nowhere/at/all" in found.note


def test_sizes_that_no_machine_has_are_inconsistent(tmp_path: Path) -> None:
    """Any user may write such files, and report such a cache."""
    huge = Cache("blocks", blocks=10**15, block_tokens=10**15)
    found = size_model(Path(model(tmp_path / "q", QWEN3_32B)), huge)
    assert (found.weights_bytes, found.kv_cache_bytes) == (Absent.INCONSISTENT, Absent.INCONSISTENT)
    assert "more bytes than any machine has" in found.note


@pytest.mark.parametrize("config", [QWEN3_32B, GPT_OSS])
def test_model_is_the_same_after_its_way_from_the_child(tmp_path: Path, config: dict[str, Any]) -> None:
    read = read_served(Path(model(tmp_path / "q", config)))
    sent = msgspec.json.decode(msgspec.json.encode(read), type=ServedModel)
    assert sent == read
    assert size_served(sent, blocks()) == size_served(read, blocks())


GPT_OSS_120B = GPT_OSS | {
    "num_hidden_layers": 36, "layer_types": ["sliding_attention", "full_attention"] * 18, "num_local_experts": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "groups", "tokens", "gib"),
    [
        pytest.param(GEMMA_4_31B, 6, 26_800, 24.54, id="alvarobartt/hf-mem#61"),
        pytest.param(GPT_OSS_120B, 2, 78_384, 5.38, id="alvarobartt/hf-mem#60"),
    ],
)
def test_blocks_have_the_bytes_that_vllm_logged(
    config: dict[str, Any], groups: int, tokens: int, gib: float, tmp_path: Path
) -> None:
    """Blocks of 16 tokens, each of the layers of one group."""
    found = size_model(Path(model(tmp_path / "m", config)), Cache("blocks", tokens * groups // 16, 16))
    assert found.kv_cache_bytes == pytest.approx(gib * (1 << 30), rel=0.001)


@pytest.mark.parametrize(
    ("config", "block_tokens"),
    [
        pytest.param(QWEN3_5_35B, 16, id="vllm-project/vllm#42966"),  # 528 in truth
        pytest.param(DEEPSEEK_V4_FLASH, 4, id="vllm-project/vllm#51163"),  # the smallest of four groups
    ],
)
def test_blocks_whose_size_is_that_of_another_group_have_no_bytes(
    config: dict[str, Any], block_tokens: int, tmp_path: Path
) -> None:
    found = size_model(Path(model(tmp_path / "m", config)), Cache("blocks", 3305, block_tokens))
    assert (found.kv_cache_bytes, bool(found.note)) == (Absent.NOT_AVAILABLE, True)
