"""Plans beside what a server of the same model reports here."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import EngineReport, answer_model, answer_request, names_of, report_sentence
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.huggingface import parse_config
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch.reporting.render.fit_json import fit_json
from memwatch_web.api.fit_query import parse_query
from memwatch_web.pages.fit_page import build_form
from scripts.published_models import MODELS
from support.sample_snapshots import discrete_gpu

GIB = 1 << 30
MODEL = describe_config(parse_config(next(one.config for one in MODELS if one.name == "Llama 3 8B"), ""))
NAME = "meta/Llama-3-8B"


def serving(**changes: Any) -> Snapshot:
    known = {"model": NAME, "footprint_bytes": 40 * GIB, "kv_cache_bytes": 20 * GIB, **changes}
    engine = Engine("vllm-8000", "vllm", "vLLM", "http://127.0.0.1:8000", **known)
    return replace(discrete_gpu(), engines=(engine,))


def reports(snapshot: Snapshot, name: str = NAME, **use: Any) -> tuple[EngineReport, ...]:
    return answer_model(MODEL, Use(**use), snapshot, name=name).engines


def test_plan_has_the_cache_that_the_server_reserves() -> None:
    """Weights of 15.0 GiB, activations, the runtime, and the server's cache of 20 in place of 1 GiB."""
    (found,) = reports(serving())
    need = answer_model(MODEL, Use(), serving()).need

    assert found.planned_bytes == need.bytes - need.parts["kv_cache"] + 20 * GIB
    assert report_sentence(found) == (
        "vLLM (vllm-8000) runs this model: planned 35.7 GiB with its cache of 20.0 GiB, reports 40.0 GiB."
    )


def test_plan_is_that_of_the_request_where_the_cache_is_not_known() -> None:
    (found,) = reports(serving(kv_cache_bytes=Absent.NOT_SUPPORTED))

    assert found.planned_bytes == answer_model(MODEL, Use(), serving()).need.bytes
    assert report_sentence(found) == "vLLM (vllm-8000) runs this model: planned 16.7 GiB, reports 40.0 GiB."


@pytest.mark.parametrize(
    ("held", "cpu_layers", "reported"),
    [
        ({"gpu0": 36 * GIB}, 0, (36, True)),
        ({"gpu0": 30 * GIB, "gpu1": 6 * GIB}, 0, (36, True)),
        ({"gpu0": 30 * GIB}, 16, (40, False)),
        ({}, 0, (40, False)),
    ],
)
def test_plan_of_gpus_is_compared_with_what_is_held_of_them(
    held: dict[str, int], cpu_layers: int, reported: tuple[int, bool]
) -> None:
    """The resident memory of llama.cpp, 6 GiB beside its GPU's, has the pages of the file that it maps."""
    (found,) = reports(serving(held_bytes=held), cpu_layers=cpu_layers)

    assert (found.reported_bytes, found.on_gpus) == (reported[0] * GIB, reported[1])
    assert report_sentence(found).endswith(" of GPU memory.") is found.on_gpus


def test_unknown_part_of_gpu_memory_is_not_compared() -> None:
    assert reports(serving(held_bytes={"gpu0": Absent.NOT_PERMITTED})) == ()


def test_bytes_in_system_ram_count_in_the_plan() -> None:
    """A server's processes hold both."""
    plain, moved = (
        reports(serving(kv_cache_bytes=Absent.NOT_SUPPORTED), cpu_layers=layers)[0].planned_bytes
        for layers in (0, 16)
    )
    assert plain == moved


@pytest.mark.parametrize(
    ("changes", "use"),
    [
        ({"model": "meta/Llama-3-70B"}, {}),
        ({"model": Absent.NOT_PERMITTED}, {}),
        ({"footprint_bytes": Absent.NOT_PERMITTED}, {}),
        ({"sleeping": True}, {}),
        ({}, {"training": TrainingPlan()}),
    ],
)
def test_server_without_a_comparable_figure_is_left_out(changes: dict[str, Any], use: dict[str, Any]) -> None:
    assert reports(serving(**changes), **use) == ()


def test_lower_bound_is_not_compared() -> None:
    found = answer_model(replace(MODEL, unknown="A part is not counted."), Use(), serving(), name=NAME)
    assert found.engines == ()


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B@main", "qwen3-8b"),
        ("/home/a/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "Qwen/Qwen3-8B"),
        ("./models/Qwen3-8B-Q4_K_M.gguf", "/srv/Qwen3-8B-Q4_K_M.gguf"),
        ("./Qwen3-8B/", "Qwen/Qwen3-8B"),
        ("ollama:qwen3", "qwen3:latest"),
        ("qwen3:8b", "qwen3:8b"),
    ],
)
def test_names_of_one_model_are_the_same(asked: str, served: str) -> None:
    assert names_of(asked) == names_of(served) != frozenset()


@pytest.mark.parametrize("name", ["", "model", "./model", "/models/", "a/config.json", "x/model.gguf"])
def test_word_that_means_any_model_finds_none(name: str) -> None:
    assert names_of(name) == frozenset()


def test_api_and_page_have_the_report_of_the_command() -> None:
    query = {"model": NAME} | write_request(MODEL, Use())
    of_api = answer_request(parse_query(query), serving())
    page = build_form(query, serving())

    assert of_api.engines == reports(serving())
    assert page.reports == [report_sentence(one) for one in of_api.engines]
    assert fit_json(of_api)["engines"] == [
        {
            "engine": "vllm-8000",
            "title": "vLLM",
            "planned_bytes": of_api.engines[0].planned_bytes,
            "reported_bytes": 40 * GIB,
            "kv_cache_bytes": 20 * GIB,
            "on_gpus": False,
        }
    ]
