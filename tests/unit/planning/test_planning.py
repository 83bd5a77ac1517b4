"""Test memory estimates of models against their published files, and rejection of impossible numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import memwatch
from memwatch.planning.arguments import InvalidInputError, parse_bytes
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import (
    compute_weights,
    estimate_inference,
    estimate_inference_memory,
    estimate_kv_cache,
)
from memwatch.planning.number_formats import bits_per_weight
from memwatch.planning.training import (
    TrainingPlan,
    compute_step,
    estimate_training_memory,
    layer_bytes,
    lora_parameters,
)
from memwatch.planning.transformer import Transformer
from scripts.published_models import MODELS, Published, rows
from scripts.published_sources import SOURCES
from support import paths

PAGE = (paths.ROOT / "docs" / "reference" / "memwatch.md").read_text()
MISTRAL = Transformer(4096, 14336, 32, 32000, 32, 8)
MIB, GIB = 1 << 20, 1 << 30
# Types with vectors that their rules round: scales of layers, gates and biases of routers.
NEAR = {
    "axk1": 1e-7, "gemma4": 1e-6, "nemotron_h": 1e-6, "minimax_m2": 1e-5, "deepseek_v4": 1e-5, "kimi_linear": 1e-4,
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_parameters_equal_those_of_the_published_files(model: Published) -> None:
    """Exact to the last parameter, except for some small vectors."""
    shape = parse_config(model.config, model.name).transformer

    assert shape.parameters == pytest.approx(model.parameters, rel=NEAR.get(model.config["model_type"], 0))
    assert compute_weights(shape, 2) == 2 * shape.parameters


def test_gemma_3_without_numbers_has_the_layers_of_gemma_2_2b() -> None:
    """The defaults of transformers' Gemma3TextConfig; the context is that of Gemma 3."""
    found = parse_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "")
    older = next(parse_config(model.config, "").transformer for model in MODELS if model.name == "Gemma 2 2B")
    names = ("hidden_size", "intermediate_size", "n_layers", "n_heads", "n_kv_heads", "head_dim", "sliding_window")

    assert [getattr(found.transformer, name) for name in names] == [getattr(older, name) for name in names]
    assert (found.context, found.transformer.vocab_size) == (131_072, 262_208)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "gemma4_text"])
def test_layers_of_gemma_have_norms_before_and_after_both_blocks(family: str) -> None:
    """Those of Gemma 3 and 4 also have norms of queries and keys, and Gemma 4 a number to scale each layer."""
    text = {**next(model.config for model in MODELS if model.name == "Gemma 2 2B"), "model_type": family}
    shape = parse_config(text, "").transformer
    heads = 0 if family == "gemma2" else 2 * shape.head_dim

    norms = shape.other_parameters - shape.vocab_size * shape.hidden_size - shape.hidden_size
    scales = family == "gemma4_text"
    assert norms == shape.n_layers * (4 * shape.hidden_size + heads + scales)


def test_table_has_at_least_forty_published_models() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS) >= 40


def test_page_counts_the_shapes_with_a_source() -> None:
    names = {model.name for model in MODELS}

    assert set(SOURCES) <= names
    assert f"{len(SOURCES)} of {len(names)} shapes" in PAGE


def test_documented_table_equals_the_estimates() -> None:
    """`python -m scripts.reference` writes it."""
    assert "\n".join(rows()) in PAGE


def test_mistral_7b_equals_its_published_sizes() -> None:
    """14.48 GB of weights and 128 KiB of cache a token, as in its index and its shape."""
    found = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, max_seq_len=8192, dtype_bytes=2)

    assert found.weights_bytes == 14_483_464_192
    assert found.kv_cache_bytes == 8192 * 128 * 1024 == estimate_kv_cache(32, 8, 128, 8192)
    assert found.total_bytes == found.weights_bytes + found.kv_cache_bytes + found.activations_bytes


def test_sliding_window_bounds_the_cache() -> None:
    """Tokens outside the attention window are not cached."""
    windowed = replace(MISTRAL, sliding_window=4096)

    assert estimate_inference(windowed, 32768).kv_cache_bytes == estimate_inference(MISTRAL, 4096).kv_cache_bytes


def test_quantization_leaves_embeddings_alone() -> None:
    """4.5 bits for matrices, 16 for the rest, as in bitsandbytes."""
    weights = compute_weights(MISTRAL, bits_per_weight("nf4") / 8)

    assert weights == MISTRAL.matrix_parameters * 9 // 16 + 2 * MISTRAL.other_parameters
    assert 4.1e9 < weights < 4.5e9


def test_full_training_takes_sixteen_bytes_a_parameter() -> None:
    """Mixed precision with AdamW: weights 2, gradients 2, copy 4, moments 8 (arXiv 1910.02054, 3.1)."""
    found = estimate_training_memory(MISTRAL)

    states = found.weights_bytes + found.gradients_bytes + found.optimizer_bytes
    assert states == 16 * MISTRAL.parameters
    assert found.total_bytes == states + found.activations_bytes - found.apart_bytes == found.device_bytes


# Plan, and peak in MiB of Hugging Face's Trainer (transformers 5.17, PyTorch 2.11, H100) for a Llama of 0.49
# billion parameters with 1,024 tokens, without the CUDA context.
SMALL = Transformer(2048, 5632, 8, 32000, 16, 4)
MEASURED: dict[str, tuple[dict[str, Any], int]] = {
    "autocast, batch 1": ({}, 7712),
    "autocast, batch 4": ({"batch_size": 4}, 11418),
    "accumulation, batch 4": ({"batch_size": 4, "accumulate": True}, 13295),
    "checkpointing, batch 8": ({"batch_size": 8, "checkpointing": True}, 9679),
    "16 bits only, batch 4": ({"batch_size": 4, "master_weights": False}, 7138),
    "adafactor, batch 1": ({"optimizer": "adafactor"}, 4299),
    "LoRA, batch 4": ({"batch_size": 4, "lora_rank": 16}, 5520),
    "LoRA, checkpointing, batch 8": ({"batch_size": 8, "lora_rank": 16, "checkpointing": True}, 4315),
}


@pytest.mark.parametrize("name", MEASURED)
def test_training_agrees_with_peaks_measured_on_a_gpu(name: str) -> None:
    """Within 11 %. Before this was measured, it was 14 % below with accumulation, and 29 % above without copies."""
    options, measured = MEASURED[name]

    found = estimate_training_memory(SMALL, TrainingPlan(seq_len=1024, **options))

    assert found.device_bytes / MIB == pytest.approx(measured, rel=0.11)


@pytest.mark.parametrize(
    ("optimizer", "moments", "width"),
    [("adamw", 2, 4), ("adamw_8bit", 2, 1), ("lion", 1, 4), ("momentum", 1, 4), ("adafactor", 0, 4), ("sgd", 0, 4)],
)
@pytest.mark.parametrize("master_weights", [True, False])
def test_optimizer_keeps_its_moments(optimizer: str, moments: int, width: int, master_weights: bool) -> None:
    """In 32 bits, 8-bit AdamW in 8. Without copies moments have the weights' 16 bits. Rows and columns are few."""
    found = estimate_training_memory(MISTRAL, TrainingPlan(optimizer=optimizer, master_weights=master_weights))
    each = moments * (width if master_weights else min(width, 2)) + 4 * master_weights
    few = 0.1 if optimizer == "adafactor" else 0

    assert found.optimizer_bytes == pytest.approx((each + few) * MISTRAL.parameters, abs=1)


def test_update_of_adafactor_has_the_measured_bytes() -> None:
    """8.3 for each number of the largest matrix, here the table of embeddings, with PyTorch 2.11 on an H100."""
    plan, table = TrainingPlan(seq_len=1, optimizer="adafactor"), SMALL.vocab_size * SMALL.hidden_size

    assert compute_step(SMALL, plan) / table == pytest.approx(8.3, rel=0.05)
    assert compute_step(SMALL, replace(plan, optimizer="adamw")) < table / 100


@pytest.mark.parametrize(
    ("dtype_bytes", "rank", "each"), [(4, 0, 4), (2, 0, 2), (4, 16, 4), (2, 16, 2), (1, 16, 2), (0.5, 16, 2)]
)
def test_gradients_have_the_type_of_the_trained_weights(dtype_bytes: float, rank: int, each: int) -> None:
    """Adapters of quantized weights have 16 bits."""
    found = estimate_training_memory(MISTRAL, TrainingPlan(dtype_bytes=dtype_bytes, lora_rank=rank))

    assert found.gradients_bytes == each * found.trained_parameters
    assert found.trained_parameters == (lora_parameters(MISTRAL, rank) if rank else MISTRAL.parameters)


def test_weights_of_32_bits_need_no_copy() -> None:
    found = estimate_training_memory(MISTRAL, TrainingPlan(dtype_bytes=4))

    assert found.optimizer_bytes == 8 * MISTRAL.parameters


@pytest.mark.parametrize("swapped", [31, 32, 33])
def test_all_layers_may_be_swapped_but_no_more(swapped: int) -> None:
    plan = TrainingPlan(swapped_blocks=swapped)
    if swapped > 32:
        with pytest.raises(InvalidInputError, match="swapped_blocks is 33, but the model has 32 layers"):
            estimate_training_memory(MISTRAL, plan)
    else:
        assert estimate_training_memory(MISTRAL, plan).ram_bytes == 2 * MISTRAL.matrix_parameters * swapped // 32


def test_checkpointing_lora_offload_and_swapping_reduce_gpu_memory() -> None:
    """Each reduces its own part, and device plus System RAM still add up to the total."""
    plain = estimate_training_memory(MISTRAL)
    again = estimate_training_memory(MISTRAL, TrainingPlan(checkpointing=True))
    lora = estimate_training_memory(MISTRAL, TrainingPlan(lora_rank=16, dtype_bytes=0.5))
    away = estimate_training_memory(MISTRAL, TrainingPlan(offload_optimizer=True))
    swapped = estimate_training_memory(MISTRAL, TrainingPlan(swapped_blocks=16))
    slow = estimate_training_memory(MISTRAL, TrainingPlan(flash_attention=False))

    assert again.activations_bytes < plain.activations_bytes / 4
    assert lora.trained_parameters == lora_parameters(MISTRAL, 16) == 41_943_040
    assert away.ram_bytes == plain.optimizer_bytes
    assert swapped.ram_bytes == MISTRAL.matrix_parameters  # half of it, two bytes each
    assert slow.activations_bytes - plain.activations_bytes == 5 * 32 * 2048 * 2048 * 32
    for found in (plain, again, lora, away, swapped):
        assert found.device_bytes + found.ram_bytes == found.total_bytes


@pytest.mark.parametrize(("wide", "kv_heads", "saved"), [(1792, 2, 25_128), (1376, 8, 23_336)])
def test_activations_match_tensors_saved_by_pytorch(wide: int, kv_heads: int, saved: int) -> None:
    """Within 1 % of what PyTorch 2.13 kept of a token in a layer, counted with its saved_tensors_hooks."""
    layer = Transformer(512, wide, 1, 1, 8, kv_heads)

    assert layer_bytes(layer, 2) == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_size": -1}, "hidden_size is -1, which is not a whole number from 1"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"n_kv_heads": 5}, "n_kv_heads is 5, which does not divide n_heads (32); for example 4"),
        ({"n_heads": 33, "n_kv_heads": 33}, "n_heads is 33, which does not divide hidden_size (4096)"),
        ({"n_layers": 10**400}, "n_layers is a number of 1329 bits"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"max_seq_len": 0}, "max_seq_len is 0"),
        ({"n_experts": 1 << 28}, "n_experts is 268435456, which is not a whole number from 1 to 16384"),
        ({"dtype_bytes": 0}, "dtype_bytes is 0, which is not from 0.125 to 16 bytes; for example 2"),
        ({"dtype_bytes": float("nan")}, "dtype_bytes is nan"),
        ({"batch_size": True}, "batch_size is True"),
    ],
)
def test_impossible_numbers_are_rejected_by_name(changed: dict[str, Any], words: str) -> None:
    """The message has the name, its value, and an example that works."""
    good = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "n_layers": 32,
        "vocab_size": 32000,
        "n_heads": 32,
        "n_kv_heads": 8,
        "max_seq_len": 8192,
    }

    with pytest.raises(InvalidInputError) as rejected:
        estimate_inference_memory(**{**good, **changed})

    assert words in str(rejected.value)
    assert "for example" in str(rejected.value) or "give head_dim" in str(rejected.value)


def test_examples_of_rejected_numbers_are_one_model() -> None:
    """Each message proposes a value, and all of them together are Mistral 7B, with 8 experts Mixtral 8x7B."""
    names = ("hidden_size", "intermediate_size", "n_layers", "vocab_size", "n_heads", "n_kv_heads", "head_dim")
    proposed = {name: _example_of(name) for name in (*names, "n_experts", "norms_per_layer")}
    mixtral = Transformer(**proposed)  # type: ignore[arg-type]
    mistral = replace(mixtral, n_experts=1)

    assert {mistral.parameters, mixtral.parameters} == {
        model.parameters for model in MODELS if model.name in ("Mistral 7B v0.1", "Mixtral 8x7B")
    }
    assert mistral.norms_per_layer == 2


def _example_of(name: str) -> int:
    with pytest.raises(InvalidInputError) as rejected:
        replace(MISTRAL, **{name: -1})
    found = re.search(rf"{name} is -1, .*; for example (\d+)", str(rejected.value))
    assert found, rejected.value
    return int(found[1])


@pytest.mark.parametrize("text", ["20 potatoes", "", "-5GiB", "0", "GiB", "1e9", "9" * 400 + "GiB", True])
def test_invalid_sizes_are_rejected(text: object) -> None:
    """One message with an example."""
    with pytest.raises(InvalidInputError, match='which is not a size above zero; for example "20GiB"'):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1EiB", "2000PB", "1048576TiB", "9" * 26, 1 << 60])
def test_too_large_sizes_are_rejected_with_the_limit(text: object) -> None:
    with pytest.raises(InvalidInputError, match='which is not below the limit of 1EiB; for example "20GiB"'):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20GiB", 20 * GIB),
        ("24GB", 24 * 10**9),
        ("512 MiB", GIB // 2),
        ("1.5G", 15 * 10**8),
        ("0.5 PiB", 1 << 49),
        (7, 7),
    ],
)
def test_sizes_are_parsed_with_their_units(text: object, count: int) -> None:
    """Binary units have an i, decimal ones have none."""
    assert parse_bytes(text) == count


def test_unknown_dtype_is_rejected() -> None:
    """The known ones are listed."""
    with pytest.raises(InvalidInputError, match=r'dtype is "int3", which is not one of .*; for example bfloat16'):
        bits_per_weight("int3")


def test_unknown_family_is_rejected_by_name() -> None:
    """Its layers may be of any kind. The message says what would help."""
    with pytest.raises(InvalidInputError, match=r"model_type 'novel' is not known.*give its GGUF file, its folder"):
        parse_config({**MODELS[0].config, "model_type": "novel"}, "config.json")


def test_training_of_quantized_weights_is_rejected() -> None:
    """Quantized weights cannot be trained; adapters on them can."""
    with pytest.raises(InvalidInputError, match="also give lora_rank"):
        TrainingPlan(dtype_bytes=0.5)
    with pytest.raises(InvalidInputError, match="swapped_blocks is 33, but the model has 32 layers"):
        estimate_training_memory(MISTRAL, TrainingPlan(swapped_blocks=33))


@given(
    st.dictionaries(
        st.sampled_from([*MODELS[0].config, "head_dim", "sliding_window", "num_experts", "text_config", "dtype"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers()),
    )
)
def test_arbitrary_config_is_read_or_rejected(changed: dict[str, Any]) -> None:
    """Any config.json yields a shape with at least one parameter, or is rejected."""
    try:
        found = parse_config({**MODELS[0].config, **changed}, "config.json")
    except InvalidInputError:
        return
    assert found.transformer.parameters > 0


def test_estimates_are_exported_by_memwatch() -> None:
    """They are public names of the package."""
    assert memwatch.estimate_inference_memory is estimate_inference_memory
    assert memwatch.estimate_kv_cache is estimate_kv_cache
