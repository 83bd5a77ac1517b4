"""Families against the code of transformers: parameters of models without memory, and caches of two prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from memwatch.planning import read_table
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.huggingface import find_family, parse_config
from memwatch.planning.layer_kinds import RULES
from support.paths import ROOT

# Written by tests/scripts/family_facts.py, transformers 5.24.0, torch 2.14.1, on 29 November 2026.
FACTS = [json.loads(line) for line in (ROOT / "tests/support/family_facts.jsonl").read_text().splitlines()]
# The caches of published models in models.json, by the same script. Left out: DeepSeek V4 Flash, which is counted
# 6 % above its class.
MODELS = [json.loads(line) for line in (ROOT / "tests/support/model_facts.jsonl").read_text().splitlines()]
IMAGES = [json.loads(line) for line in (ROOT / "tests/support/image_facts.jsonl").read_text().splitlines()]
WEIGHTS, CACHES = 0.001, 0.03
SHORT, LONG, BEYOND = 1000, 2000, 10_000
# Caches that are compared with those of classes, 112 of the defaults of types and 108 published, and the shapes of
# models among them that are not the same.
COMPARED, SHAPES = 220, 191
# Types whose class has other parameters than published files, and why.
OTHER_CLASS = {
    # The class has matrices for 256 experts that do nothing; the published model has 560 billion parameters.
    "longcat_flash",
}
# Least part of the types that are exact. The others are refused, or unknown with what is missing.
MIN_EXACT = 0.8


def is_known(facts: dict[str, Any]) -> bool:
    try:
        return not parse_config(facts["config"], facts["type"]).unknown
    except InvalidInputError:
        return False


KNOWN = [facts for facts in FACTS if is_known(facts)]
SEEING = [facts for facts in IMAGES if is_known(facts)]
# Types of models that see whose encoders are counted.
MIN_SEEING = 34


def by_type(facts: dict[str, Any]) -> str:
    return str(facts["type"])


@pytest.mark.parametrize("facts", [one for one in KNOWN if one["type"] not in OTHER_CLASS], ids=by_type)
def test_parameters_are_those_of_the_class(facts: dict[str, Any]) -> None:
    """Files of some families also have buffers, such as the correction biases of routers."""
    counted = parse_config(facts["config"], "").transformer.parameters
    classes = (facts["parameters"], facts["parameters"] + facts["buffers"])

    assert min(abs(counted / one - 1) for one in classes) <= WEIGHTS


@pytest.mark.parametrize("facts", [one for one in KNOWN if "cached" in one], ids=by_type)
def test_cache_grows_as_that_of_the_class(facts: dict[str, Any]) -> None:
    """State of linear layers does not grow. An indexer's keys have a format of their own in engines."""
    assert _find_error(facts["config"], facts["cached"], LONG) <= CACHES


@pytest.mark.parametrize("facts", MODELS, ids=lambda facts: str(facts["name"]))
def test_cache_of_a_published_model_grows_as_that_of_its_class(facts: dict[str, Any]) -> None:
    """From 1,000 to 10,000 tokens, beyond most windows."""
    config = read_table("models", Any)[facts["name"]]

    assert _find_error(config, facts["cached"], BEYOND) <= CACHES


def test_published_models_of_families_with_windows_state_theirs() -> None:
    """A window or null, where the family has no default. Without one, the cache would be that of all tokens."""
    silent = []
    for name, row in read_table("models", Any).items():
        text = {**row, **row.get("text_config", {})}
        family = find_family(str(text["model_type"]), row["model_type"])
        is_windowed = family is not None and family.windowed and "sliding_window" not in family.defaults
        if is_windowed and "sliding_window" not in text:
            silent.append(name)

    assert silent == []


@pytest.mark.parametrize(
    ("name", "window", "context"),
    [("Mistral 7B v0.1", 4096, 32768), ("Mistral 7B v0.2", 0, 32768), ("Phi-3 mini 4k", 2047, 4096)],
)
def test_window_of_a_published_model_is_that_of_its_file(name: str, window: int, context: int) -> None:
    """v0.2 of Mistral 7B has the shape of v0.1, and no window."""
    found = parse_config(read_table("models", Any)[name], name)

    assert (found.transformer.sliding_window, found.context) == (window, context)


def test_caches_of_many_configurations_are_compared() -> None:
    """All are within 3 % by the tests above."""
    rows = read_table("models", Any)
    compared = [one["config"] for one in KNOWN if "cached" in one]
    published = [rows[one["name"]] for one in MODELS]
    shapes = {parse_config(one, "").transformer for one in (*compared, *published)}

    assert len(compared) + len(published) == COMPARED
    assert len(shapes) == SHAPES


def _find_error(config: dict[str, Any], cached: Sequence[int], most: int) -> float:
    """Return by which part the counted growth of a cache differs from that of a class."""
    shape = parse_config(config, "").transformer
    indexers = shape.side_bytes * 128 // 132
    counted = shape.count_cached_numbers(most) - shape.count_cached_numbers(SHORT)
    short, long = cached
    # Some classes have an indexer's keys in the cache, others beside it.
    both = (counted, counted + indexers * (most - SHORT))
    return min(abs(one / (long - short) - 1) if long > short else one for one in both)


def test_most_families_are_exact() -> None:
    """Types of transformers' mapping of causal language models whose defaults build a model, without encoders."""
    exact = [one for one in KNOWN if one["type"] not in OTHER_CLASS]

    assert len(exact) >= MIN_EXACT * len(FACTS)


@pytest.mark.parametrize("facts", SEEING, ids=by_type)
def test_models_that_see_have_the_parameters_of_the_class(facts: dict[str, Any]) -> None:
    counted = parse_config(facts["config"], "").transformer.parameters

    assert counted == pytest.approx(facts["parameters"], rel=WEIGHTS)


def test_many_types_of_models_that_see_are_counted() -> None:
    assert len(SEEING) >= MIN_SEEING


@pytest.mark.parametrize("part", ["vision_config", "audio_config"])
def test_encoder_without_a_rule_is_named(part: str) -> None:
    """Without its encoder a model would be a lower bound."""
    row = {**read_table("models", Any)["Llama 3 8B"], part: {"hidden_size": 64, "num_hidden_layers": 2}}

    assert parse_config(row, "").unknown.startswith("The rule for the")


def test_structure_beside_an_image_encoder_is_named() -> None:
    """Reading the encoder leaves the keys of the text model that no rule reads."""
    row = {**read_table("models", Any)["Qwen3-VL 8B"], "attention_memory_slots": 4}

    assert "attention_memory_slots" in parse_config(row, "").unknown


@pytest.mark.parametrize("facts", [one for one in FACTS if not is_known(one)], ids=by_type)
def test_type_that_is_not_exact_says_which_rule_is_missing(facts: dict[str, Any]) -> None:
    try:
        words = parse_config(facts["config"], facts["type"]).unknown
    except InvalidInputError as error:
        words = str(error)

    assert re.search(r"[Tt]he rule for .+ is missing", words)


def test_tower_of_mistral_small_has_the_parameters_of_its_files() -> None:
    """Mistral Small 3.1: 24,011,361,280 in its index, of which the text model has 23,572,403,200."""
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "image_size": 1540}
    text = {**read_table("models", Any)["Mistral Small 24B"], "model_type": "mistral"}
    config = {"model_type": "mistral3", "text_config": text, "vision_config": {**vision, "patch_size": 14}}

    assert parse_config(config, "").transformer.parameters == 24_011_361_280


# Types that people ran in the autumn of 2026, by the model_type of public files.
AUTUMN = """
afmoe apertus bailing_hybrid bailing_moe_v2 deepseek_v32 deepseek_v4 dots1 ernie4_5_moe exaone4 exaone_moe
falcon_h1 gemma3 gemma3n gemma4 glm4_moe glm4v_moe glm_moe_dsa gpt_oss granitemoehybrid hunyuan_v1_moe kimi_k2
kimi_k25 kimi_linear lfm2_moe llada2_moe llama4 longcat_flash mimo_v2_flash minimax_m2 ministral3 mistral3 mistral4
nemotron_h phi4mm qwen3_5 qwen3_5_moe qwen3_moe qwen3_omni_moe solar_open step3p5 step3p7
"""


def test_types_of_this_season_have_a_row() -> None:
    """Two are unknown, with the parts that are not counted."""
    families = {name: find_family(name) for name in AUTUMN.split()}

    assert [name for name, one in families.items() if one is None] == []
    assert [name for name, one in families.items() if one and one.missing] == ["phi4mm", "qwen3_omni_moe"]


def test_row_names_a_rule_or_another_row() -> None:
    rows = read_table("families", Any)

    for name in rows:
        family = find_family(name)
        assert family is not None
        assert family.rule in RULES or (family.rule == "" and family.missing)
    assert list(rows) == sorted(rows)
