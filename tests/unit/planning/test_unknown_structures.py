"""Models with a cache that this version does not know: it is named, and the answer is never yes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.planning.answer import FitAnswer, answer_model, answer_request, answer_size
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint, describe_config, read_checkpoint
from memwatch.planning.gguf import parse_shape
from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.named_machines import without_load
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use, write_request
from memwatch_web.api.fit_query import parse_query
from memwatch_web.pages.fit_page import parse_config_fields
from scripts.published_models import MODELS
from support import recent_models
from support.checkpoint_files import LLAMA_KEYS, safetensors
from support.gguf_keys import GGUF_KEYS
from support.sample_snapshots import discrete_gpu, simulated

LLAMA = next(model.config for model in MODELS if model.name == "Llama 3.2 1B")
RECENT = [one for one in vars(recent_models).values() if isinstance(one, dict) and "model_type" in one]
SENTENCE = "This plan does not know index_topk of the config.json: its cache may be larger."


def unknown_of(config: dict[str, Any]) -> str:
    return parse_config(config, "config.json").unknown


@pytest.mark.parametrize("config", [*(one.config for one in MODELS), *RECENT])
def test_nothing_is_unknown_of_known_models(config: dict[str, Any]) -> None:
    assert unknown_of(config) == ""


@pytest.mark.parametrize("keys", GGUF_KEYS.values(), ids=GGUF_KEYS)
def test_nothing_is_unknown_of_known_files(keys: dict[str, Any]) -> None:
    assert parse_shape({**keys, f"{keys['general.architecture']}.vocab_size": 32})[1] == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("index_topk", 2048),
        ("compress_ratios", [4, 128]),
        ("sparse_attention_config", {"sparse_topk_blocks": 16}),
        ("indexer_compress_ratio", 4),
        ("kv_source_layers", [1, 3]),
        ("swa_num_key_value_heads", 8),
        ("local_layer_ids_window", 128),
        ("ssm_state_size", 128),
        ("engram_layer_ids", [3]),
    ],
)
def test_key_of_a_cache_that_a_family_does_not_read_is_named(key: str, value: object) -> None:
    """Keys of DeepSeek V3.2 and V4, MiniMax-M3, Qwen 4, Mistral Large 4 and Inkling, in a Llama."""
    assert unknown_of({**LLAMA, key: value}) == SENTENCE.replace("index_topk", key)


@pytest.mark.parametrize("value", [None, False, 0, [], {}, ""])
def test_key_without_a_value_is_not_named(value: object) -> None:
    assert unknown_of({**LLAMA, "index_topk": value}) == ""


@pytest.mark.parametrize(
    "key", ["attention_dropout", "use_cache", "attn_logit_softcapping", "cache_implementation", "image_token_index"]
)
def test_key_that_changes_no_size_is_not_named(key: str) -> None:
    assert unknown_of({**LLAMA, key: 3}) == ""


def test_layer_of_an_unknown_type_is_named() -> None:
    """A layer type counts as what its family knows, or not at all."""
    types = ["full_attention"] * 15 + ["retention"]

    assert "know the layer type 'retention' of the config.json" in unknown_of({**LLAMA, "layer_types": types})


def test_many_keys_are_counted() -> None:
    """Six are named."""
    found = unknown_of({**LLAMA, **{f"cache_{at}": 1 for at in range(8)}})

    assert "cache_0, cache_1, cache_2, cache_3, cache_4, cache_5 and 2 more of the config.json" in found


def test_key_of_a_gguf_file_is_named() -> None:
    """llama.cpp's keys of MiniMax-M3 and Qwen 4. Those of norms and rotary positions are not."""
    given: dict[str, Any] = {
        **LLAMA_KEYS, "llama.vocab_size": 32, "llama.attention.indexer.top_k": 16,
        "llama.attention.compress_x": (4, 0), "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count_swa": 64,
    }  # fmt: skip

    assert parse_shape(given)[1] == (
        "This plan does not know attention.indexer.top_k, attention.compress_x of the GGUF file: its cache may be "
        "larger."
    )


@given(st.sampled_from(RECENT), st.data())
def test_config_with_an_odd_value_is_read_or_refused(config: dict[str, Any], data: st.DataObject) -> None:
    """A key of another kind of value, size or sign, or a key of another family, is no crash."""
    inner = config.get("text_config", config)
    others = ["layer_types", "indexer_types", "index_topk_pattern", "compress_rates", "cli_factor", "index_kpool"]
    key = data.draw(st.sampled_from([*inner, *others]))
    value = data.draw(
        st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none() | st.integers())
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    )  # fmt: skip
    changed = {**inner, key: value}

    with suppress(InvalidInputError):
        found = parse_config({**config, "text_config": changed} if "text_config" in config else changed, "")
        assert compute_kv_cache(found.transformer, 4096, 1, 1) >= 0


def small(**more: Any) -> Checkpoint:
    return describe_config(parse_config({**LLAMA, **more}, "config.json"))


def answer(checkpoint: Checkpoint) -> FitAnswer:
    return answer_model(checkpoint, Use(context=4096), without_load(simulated()), ("vllm",))


def test_plan_with_an_unknown_cache_is_never_a_yes() -> None:
    """There is room for what is known. Nothing is promised: no device, no greatest context, no launch line."""
    known, found = answer(small()), answer(small(index_topk=2048))

    assert known.fits
    assert known.fit.unknown == ""
    assert not found.fits
    assert (found.fit.best, found.fit.split, found.greatest, found.launches.lines) == (None, None, None, ())
    assert {verdict.fits for verdict in found.fit.verdicts} <= {Absent.NOT_AVAILABLE, False}
    assert found.fit.unknown.startswith("There is room for ")
    assert found.fit.unknown.endswith(SENTENCE)
    assert (
        found.launches.refused == {"vllm": "the plan does not fit"} or "not known" in found.launches.refused["vllm"]
    )


def test_plan_with_an_unknown_cache_may_be_a_no() -> None:
    """A lower bound that has no room."""
    found = answer_model(small(index_topk=2048), Use(context=1 << 28), simulated())

    assert (found.fit.best, found.fit.unknown, found.change) == (None, "", None)
    assert {verdict.fits for verdict in found.fit.verdicts} == {False}


def test_weights_without_a_shape_are_a_lower_bound(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"a": ("BF16", [3, 5])})
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "novel"}))
    found = answer(read_checkpoint(tmp_path))

    assert not found.fits
    assert "the model_type 'novel' is not known" in found.fit.unknown


def test_daemon_answers_as_the_client() -> None:
    """The sentence is a parameter of the request, and of the page's own."""
    asked = small(index_topk=2048)
    fields = write_request(asked, Use(context=4096))
    pasted = parse_config_fields(json.dumps({**LLAMA, "index_topk": 2048}))

    found = answer_request(parse_query(fields), without_load(simulated()))

    assert found.fit.unknown == answer(asked).fit.unknown != ""
    assert pasted["unknown"] == SENTENCE == compute_checkpoint_need(asked, Use()).note


def test_size_is_unknown_where_the_headroom_is() -> None:
    """A GPU without a figure may have room; that System RAM has none is no answer for it."""
    snapshot = discrete_gpu()
    device = replace(snapshot.devices[0], headroom_after_reclaim_bytes=Absent.NOT_PERMITTED)
    found = answer_size(1 << 50, "1PiB", replace(snapshot, devices=(device,)))

    assert not found.fits
    assert found.fit.unknown == f"{device.id}: its headroom is not known (not permitted)."


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "novel"}, "the model_type 'novel' is not known"),
        ({"architectures": ["Novel"]}, "does not describe a transformer: no readable hidden_size"),
        ({"model_type": "llama"}, "does not describe a transformer: no readable hidden_size"),
    ],
)
def test_config_without_the_needed_keys_is_named_by_what_it_is(config: dict[str, Any], words: str) -> None:
    """A family that is not known may have other names for them."""
    with pytest.raises(InvalidInputError, match=words):
        parse_config(config, "config.json")
