"""KV caches by kind of attention, against published figures, from config.json and from GGUF keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.gguf import parse_shape
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.layer_kinds import minimax_layers
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from memwatch.planning.transformer import Transformer
from scripts.published_models import MODELS, config
from support.checkpoint_files import LLAMA_KEYS, gguf, safetensors
from support.gguf_keys import GGUF_KEYS, attention, keys

GIB = 1 << 30
LONG = 131_072
CONFIGS = {model.name: model.config for model in MODELS}


def cache_of(model_config: dict[str, Any], tokens: int) -> int:
    return compute_kv_cache(parse_config(model_config, "config.json").transformer, tokens, 1, 2)


@pytest.mark.parametrize(
    ("name", "tokens", "published"),
    [
        ("Llama 3 8B", 8192, 1.07e9),
        ("gpt-oss-20b", LONG, 3.05 * GIB),  # gpustack/gguf-parser-go#32
        ("Gemma 3 27B", LONG, 10.4 * GIB),  # unslothai/unsloth#4757
    ],
)
def test_cache_equals_the_published_figure(name: str, tokens: int, published: float) -> None:
    assert cache_of(CONFIGS[name], tokens) == pytest.approx(published, rel=0.03)


def test_mla_keeps_one_latent_vector_per_token() -> None:
    """512 + 64 numbers in 61 layers, once, not for keys and values. 68.6 KiB a token at 16 bits."""
    assert cache_of(CONFIGS["DeepSeek V3"], 1000) == 61 * 576 * 2 * 1000


def test_chunked_attention_is_bounded_in_three_of_four_layers() -> None:
    """Llama 4: 12 layers see all tokens, 36 their chunk of 8,192."""
    per_layer = 2 * 8 * 128 * 2

    assert cache_of(CONFIGS["Llama 4 Scout"], LONG) == per_layer * (12 * LONG + 36 * 8192)


@pytest.mark.parametrize(
    ("name", "full", "width"), [("Qwen3-Next 80B-A3B", 12, 2 * 2 * 256), ("Jamba v0.1", 4, 2 * 8 * 128)]
)
def test_hybrid_models_cache_only_in_attention_layers(name: str, full: int, width: int) -> None:
    """The state of the other layers does not grow with the context."""
    state = cache_of(CONFIGS[name], 1) - full * width * 2

    assert cache_of(CONFIGS[name], LONG) == full * width * 2 * LONG + state
    assert 0 < state < GIB // 8


def test_state_of_jamba_has_twice_the_hidden_size_unless_given() -> None:
    """As in transformers' own class: a file need not repeat it."""
    given = {
        expand: parse_config({**CONFIGS["Jamba v0.1"], "mamba_expand": expand}, "").transformer
        for expand in (None, 1, 2, 4)
    }
    states = {expand: shape.state_bytes for expand, shape in given.items()}

    assert states[None] == states[2] == 2 * 4096 * (16 + 4) * 4
    assert (states[1], states[4]) == (states[2] // 2, states[2] * 2)
    assert given[None].parameters == given[2].parameters


@pytest.mark.parametrize(
    ("key", "default", "other"),
    [("attn_layer_period", 8, 4), ("expert_layer_period", 2, 4), ("mamba_dt_rank", 256, 128)],
)
def test_key_that_a_jamba_lacks_has_the_default_of_its_class(key: str, default: int, other: int) -> None:
    """The rank is a sixteenth of the hidden size."""
    lacking, plain, changed = (
        parse_config({**CONFIGS["Jamba v0.1"], key: value}, "").transformer for value in (None, default, other)
    )

    assert lacking == plain != changed


def test_state_is_kept_for_each_sequence() -> None:
    shape = parse_config(CONFIGS["Jamba v0.1"], "").transformer

    assert compute_kv_cache(shape, 100, 8, 2) == 8 * compute_kv_cache(shape, 100, 1, 2)


def test_layers_that_share_a_cache_are_counted_once() -> None:
    """Gemma 3n E4B: 20 of 35 layers own a cache, 4 of those see all tokens."""
    text = {"model_type": "gemma3n_text", "sliding_window": 512, "num_kv_shared_layers": 15}

    assert (
        cache_of({"model_type": "gemma3n", "text_config": text}, 32_768) == 2048 * 2 * (4 * 32_768 + 16 * 512) // 2
    )


@pytest.mark.parametrize(("layers", "shared", "full"), [(30, 0, 5), (35, 0, 6), (35, 20, 2), (48, 0, 8)])
def test_gemma_4_without_types_of_layers_has_those_of_its_class(layers: int, shared: int, full: int) -> None:
    """Every sixth layer and the last look back on all tokens, with larger heads."""
    found = config(
        "gemma4_text", 2304, 9216, layers, 262_144, 8, 4, head_dim=256, global_head_dim=512, sliding_window=512,
        num_kv_shared_layers=shared,
    )  # fmt: skip
    kinds = ["sliding_attention" if (at + 1) % 6 and at + 1 < layers else "full_attention" for at in range(layers)]
    bytes_of_layer = 2 * 4 * 256 * 2

    assert cache_of(found, 32_768) == cache_of({**found, "layer_types": kinds}, 32_768)
    assert cache_of(found, 32_768) == bytes_of_layer * (2 * full * 32_768 + (layers - shared - full) * 512)


def test_nemotron_h_counts_its_layers_by_letter() -> None:
    """4 attention, 24 Mamba 2 and 24 MLP layers: 16 KiB a token."""
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    found = config(
        "nemotron_h", 4096, 21504, 52, 131072, 32, 8, attention_head_dim=128, hybrid_override_pattern=pattern,
        mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
    )  # fmt: skip

    assert cache_of(found, 1001) - cache_of(found, 1) == 4 * 2 * 8 * 128 * 2 * 1000
    assert parse_config(found, "").transformer.parameters == pytest.approx(8.1e9, rel=0.02)


def test_nemotron_h_may_list_its_layers_in_words() -> None:
    """As transformers 5 writes it: no pattern, no number of layers, and experts that no layer has."""
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    old = config(
        "nemotron_h", 4096, 21504, 52, 131072, 32, 8, attention_head_dim=128, hybrid_override_pattern=pattern,
        mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
    )  # fmt: skip
    words = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
    new = {**old, "layers_block_type": [words[one] for one in pattern], "n_routed_experts": 8}
    del new["num_hidden_layers"], new["hybrid_override_pattern"]

    assert parse_config(new, "").transformer == parse_config(old, "").transformer


@pytest.mark.parametrize(("mamba", "attention"), [("mamba", "attention"), ("linear_attention", "full_attention")])
def test_granite_hybrid_is_read_with_old_and_new_words(mamba: str, attention: str) -> None:
    """Granite 4 H Tiny: 4 of 40 layers have attention."""
    found = config(
        "granitemoehybrid", 1536, 512, 40, 100352, 12, 4, layer_types=([mamba] * 9 + [attention]) * 4,
        mamba_n_heads=48, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, num_local_experts=64,
    )  # fmt: skip

    assert cache_of(found, 1001) - cache_of(found, 1) == 4 * 2 * 4 * 128 * 2 * 1000


def test_encoder_has_no_cache() -> None:
    """BERT base: 110 million parameters."""
    bert = config("bert", 768, 3072, 12, 30522, 12, 12, max_position_embeddings=512)

    assert cache_of(bert, 512) == 0
    assert parse_config(bert, "").transformer.parameters == pytest.approx(1.095e8, rel=0.02)


def test_layer_types_win_over_the_pattern_of_the_class() -> None:
    """Newer files list them. Here one layer in two looks back on all tokens."""
    text = {**CONFIGS["Gemma 3 27B"]["text_config"], "layer_types": ["sliding_attention", "full_attention"] * 31}
    found = {**CONFIGS["Gemma 3 27B"], "text_config": text}

    assert cache_of(found, LONG) == 2 * 16 * 128 * 2 * 31 * (LONG + 1024)


def read_gguf(tmp_path: Path, given: dict[str, Any]) -> Transformer:
    shape = read_checkpoint(gguf(tmp_path / "model.gguf", given, {"t": (0, [8], 0)}, 32)).transformer
    assert shape is not None
    return shape


@pytest.mark.parametrize("name", GGUF_KEYS)
def test_gguf_and_config_agree_on_the_cache(name: str, tmp_path: Path) -> None:
    """Within 2 %, at two lengths."""
    shape = read_gguf(tmp_path, GGUF_KEYS[name])

    for tokens in (8192, LONG):
        assert compute_kv_cache(shape, tokens, 1, 2) == pytest.approx(cache_of(CONFIGS[name], tokens), rel=0.02)


LENGTHS = re.compile(r"attention\.(?:key|value)_length")
OLD_MLA = {"key_length": 192, "value_length": 128}
NEW_MLA = {"key_length": 576, "value_length": 512, "key_length_mla": 192, "value_length_mla": 128}


@pytest.mark.parametrize("lengths", [OLD_MLA, NEW_MLA], ids=["a head", "the latent vector"])
def test_gguf_with_latent_attention_has_the_matrices_of_its_config(lengths: dict[str, int]) -> None:
    """Older files have a head's length as that of a key. Newer ones have it beside the latent vector's."""
    named = {f"deepseek2.attention.{name}": value for name, value in lengths.items()}
    kept = {name: value for name, value in GGUF_KEYS["DeepSeek V3"].items() if not LENGTHS.search(name)}
    shape, _ = parse_shape({**kept, **named, "deepseek2.vocab_size": 129_280})
    written = parse_config(CONFIGS["DeepSeek V3"], "").transformer

    assert (shape.head_dim, shape.v_head_dim) == (192, 128)
    assert shape.attention_matrices == written.attention_matrices
    assert shape.matrix_parameters == written.matrix_parameters


@pytest.mark.parametrize(
    ("family", "layers", "full"),
    [
        # The least period of the layers of each, and how often it repeats: llama.cpp's `set_swa_pattern`.
        ("gemma2", 42, 21),  # Gemma 2 9B: every other layer
        ("gemma3", 48, 8),  # Gemma 3 12B: one of 6
        ("gemma-embedding", 24, 4),
        ("gemma3n", 35, 7),  # Gemma 3n E4B: one of 5
        ("gpt-oss", 36, 18),  # gpt-oss-120b
        ("cohere2", 32, 8),  # Command R7B: one of 4
        ("llama4", 48, 12),
        ("exaone4", 64, 16),  # EXAONE 4.0 32B
        ("olmo2", 64, 16),  # Olmo 3 32B, as it is converted
        ("smallthinker", 52, 13),
    ],
)
def test_gguf_without_a_pattern_has_that_of_its_architecture(family: str, layers: int, full: int) -> None:
    """As many layers look back on all tokens, the others on a window."""
    shape, _ = parse_shape(
        keys(family, **attention(layers, 512, 1024, 8, 4), attention__sliding_window=4096, vocab_size=32_000)
    )

    assert (shape.sliding_window, shape.full_layers) == (4096, full)


@pytest.mark.parametrize("family", ["phi3", "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "starcoder2"])
def test_gguf_of_an_architecture_without_windows_caches_all_tokens(family: str) -> None:
    """llama.cpp reads the key of some of them, and uses no window."""
    shape, _ = parse_shape(
        keys(family, **attention(32, 512, 1024, 8, 4), attention__sliding_window=4096, vocab_size=32_000)
    )

    assert shape.sliding_window == 0


def test_gguf_with_a_flag_for_each_layer_is_read(tmp_path: Path) -> None:
    """`sliding_window_pattern` as a list wins over the pattern of the architecture."""
    given = {**GGUF_KEYS["Gemma 3 27B"], "gemma3.attention.sliding_window_pattern": [True, False] * 31}

    assert read_gguf(tmp_path, given).full_layers == 31


def test_gguf_with_an_unknown_window_is_named(tmp_path: Path) -> None:
    """The weights are counted, and the note names the architecture and what would help."""
    given = keys("novel", **attention(2, 64, 128, 4, 2), attention__sliding_window=64)
    found = read_checkpoint(gguf(tmp_path / "model.gguf", given, {"t": (0, [8], 0)}, 32))

    assert (found.transformer, found.weights_bytes) == (None, 32)
    assert "'novel': has a sliding window of 64 tokens" in compute_checkpoint_need(found, Use()).note


def test_llama_cpp_ignores_the_window_of_other_architectures(tmp_path: Path) -> None:
    """Its Mistral files are of the architecture llama, which caches all tokens."""
    shape = read_gguf(tmp_path, {**LLAMA_KEYS, "llama.attention.sliding_window": 64})

    assert shape.sliding_window == 0


def test_folder_of_deepseek_is_read(tmp_path: Path) -> None:
    """Index, shards and config with MLA."""
    safetensors(tmp_path / "model-1.safetensors", {"a": ("BF16", [3, 5])})
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["DeepSeek V3"]))

    need = compute_checkpoint_need(read_checkpoint(tmp_path), Use(context=1000))

    assert (need.parts["weights"], need.parts["kv_cache"]) == (30, 61 * 576 * 2 * 1000)


def test_folder_of_an_unknown_family_is_counted_with_a_note(tmp_path: Path) -> None:
    """Its weights are known. config.json alone is refused by name."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["Llama 3 8B"], "model_type": "novel"}))
    with pytest.raises(InvalidInputError, match="the model_type 'novel' is not known"):
        read_checkpoint(tmp_path)
    safetensors(tmp_path / "model.safetensors", {"a": ("BF16", [3, 5])})

    need = compute_checkpoint_need(read_checkpoint(tmp_path), Use())

    assert need.parts["weights"] == 30
    assert "(the model_type 'novel' is not known)" in need.note


@pytest.mark.parametrize(
    "kinds",
    [{"attn_type_list": [0, 0, 0, 1] * 3}, {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 3}],
    ids=["MiniMax-Text-01", "transformers"],
)
def test_lightning_attention_has_a_state_instead_of_a_cache(kinds: dict[str, Any]) -> None:
    """One layer in four has a cache."""
    text = {"num_hidden_layers": 12, "hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, **kinds}
    found = minimax_layers(text)

    assert (found["attention_layers"], found["linear_layers"]) == (3, 9)
    assert found["state_bytes"] == 8 * 64 * 64 * 4
