"""Test that an answer which is not understood, or a placeholder, is shown as such: real HTTP, and the collector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.collectors.engines import Collector, EngineAddress
from memwatch.core.engines.kinds import KINDS, EngineKind
from memwatch.core.engines.llama_cpp import NO_METRICS
from memwatch.core.engines.ollama import MAX_MODELS
from memwatch.core.engines.records import Address, Engine
from memwatch.core.engines.requests import NOT_UNDERSTOOD
from memwatch.core.model import Absent
from support import engine_texts as texts
from support.engine_host import EngineHost
from support.engine_servers import Answer, EngineSite, engine_site
from support.open_things import close_at_end

GIB = 1 << 30
LOADED = {
    "name": "gemma4:31b",
    "size": 22 * GIB,
    "size_vram": 22 * GIB,
    "details": {"quantization_level": "Q4_K_M"},
    "context_length": 262144,
}
PLAN = "Ollama plans 22.0 GiB for gemma4:31b, weights and cache together."


def ask(tmp_path: Path, kind: str, answers: Mapping[str, Answer]) -> tuple[Engine, EngineSite]:
    with engine_site(answers) as site:
        one = EngineAddress(kind, "one", Address("127.0.0.1", site.port))
        collector = close_at_end(Collector(EngineHost(tmp_path).roots, False, (one,), None))
        for _ in range(2):
            (found,) = collector.collect().engines
    return found, site


def ask_ollama(tmp_path: Path, ps: object) -> Engine:
    body = ps if isinstance(ps, bytes) else json.dumps(ps).encode()
    return ask(tmp_path, "ollama", {**texts.ollama(), "/api/ps": body})[0]


@pytest.mark.parametrize(
    ("changed", "absent", "odd"),
    [
        ({"details": None}, "quantization", ""),
        ({"details": "Q4"}, "quantization", "details"),
        ({"details": {"quantization_level": 4}}, "quantization", "quantization_level"),
        ({"context_length": None}, "context_tokens", ""),
        ({"context_length": "long"}, "context_tokens", "context_length"),
    ],
)
def test_odd_field_of_a_loaded_model_costs_only_itself(
    tmp_path: Path, changed: dict[str, Any], absent: str, odd: str
) -> None:
    """Other servers with Ollama's API send null for objects (koboldcpp, and proxies)."""
    found = ask_ollama(tmp_path, {"models": [{**LOADED, **changed}]})
    sound = {"quantization": "Q4_K_M", "context_tokens": 262144, "model": "gemma4:31b", "sleeping": False}
    for name, value in sound.items():
        assert getattr(found, name) == (Absent.NOT_AVAILABLE if name == absent else value), name
    assert found.notes == (PLAN, *([f"/api/ps: {odd} in its answer was not understood."] if odd else []))


@pytest.mark.parametrize("size", [None, "22 GiB", {}])
def test_size_that_is_not_known_is_not_impossible(tmp_path: Path, size: object) -> None:
    found = ask_ollama(tmp_path, {"models": [{**LOADED, "size": size}]})
    assert found.notes[0] == "Ollama reports no size for gemma4:31b."
    assert (found.model, found.sleeping) == ("gemma4:31b", False)


@pytest.mark.parametrize(
    "ps",
    [{}, {"models": None}, {"models": 3}, {"error": "busy"}, [], None, b"<html>It works!</html>", b"\xff", b"["],
)
def test_list_that_is_not_understood_is_not_empty(tmp_path: Path, ps: object) -> None:
    found = ask_ollama(tmp_path, ps)
    assert (found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert (found.sleeping, found.model) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert any(note.endswith(NOT_UNDERSTOOD) or "not understood" in note for note in found.notes)
    assert "No model is loaded." not in found.notes


def test_entry_that_is_not_understood_is_a_model(tmp_path: Path) -> None:
    found = ask_ollama(tmp_path, {"models": [None]})
    assert (found.sleeping, found.weights_bytes) == (False, Absent.NOT_AVAILABLE)
    assert found.notes[-1] == "/api/ps: an entry of a list in its answer was not understood."


def test_refused_list_is_not_empty(tmp_path: Path) -> None:
    answers = {"/api/version": texts.ollama()["/api/version"]}
    found, _ = ask(tmp_path, "ollama", answers)
    assert (found.version, found.sleeping, found.weights_bytes) == (
        "0.12.6",
        Absent.NOT_AVAILABLE,
        Absent.NOT_AVAILABLE,
    )
    assert "No model is loaded." not in found.notes


def test_models_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    models = [(f"m:{number}", GIB, GIB) for number in range(MAX_MODELS + 4)]
    found, _ = ask(tmp_path, "ollama", texts.ollama(*models))
    assert found.notes[-1] == "4 more models are loaded."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_answer_of_another_program_is_named(tmp_path: Path, kind: EngineKind) -> None:
    """A web server at the port of an engine."""
    page = b"<!DOCTYPE html>\n<html><title>It works!</title></html>\n"
    found, site = ask(tmp_path, kind.name, {path: page for one in kind.requests for path in one.path.split("|")})
    asked = {path for _, path in site.requests}
    first = {one.path.split("|")[0] for one in kind.requests} & asked
    assert {f"{path}: {NOT_UNDERSTOOD}" for path in first} <= set(found.notes)
    for name in ("weights_bytes", "kv_cache_bytes", "requests_running", "sleeping", "kv_cache_ratio"):
        assert isinstance(getattr(found, name), Absent), name


def test_understood_answers_have_no_such_note(tmp_path: Path) -> None:
    every = [
        ("vllm", texts.vllm()),
        ("sglang", texts.sglang()),
        ("llama.cpp", texts.llama_cpp()),
        ("tgi", texts.tgi()),
    ]
    every += [("tensorrt-llm", texts.trtllm_serve()), ("triton", texts.triton()), ("openai", texts.openai())]
    for kind, answers in [*every, ("ollama", texts.ollama())]:
        found, _ = ask(tmp_path / kind, kind, answers)
        assert not any("not understood" in note for note in found.notes), kind


def router(*states: object, **props: object) -> dict[str, bytes]:
    """A router of llama.cpp b9760: its /props has placeholders, so that its own web page works."""
    placeholder = {
        "role": "router",
        "max_instances": 4,
        "models_autoload": True,
        "model_alias": "llama-server",
        "model_path": "none",
        "default_generation_settings": {"params": None, "n_ctx": 0},
        "build_info": "b9760-6ee0f6579",
    }
    names = ("alpha-70b:Q4_K_M", "beta-8b:Q8_0", *(f"m{number}" for number in range(20)))
    listed = [
        {
            "id": name,
            "object": "model",
            "status": state if state is None else {"value": state, "args": ["llama-server"]},
        }
        for name, state in zip(names, states, strict=False)
    ]
    return {
        "/props": json.dumps({**placeholder, **props}).encode(),
        "/models": json.dumps({"data": listed}).encode(),
    }


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        (router("unloaded", "loaded"), "It is a router, 1 of 2 models loaded: beta-8b:Q8_0."),
        (router("unloaded", "loaded", role="proxy"), "It is a router, 1 of 2 models loaded: beta-8b:Q8_0."),
        (router("unloaded", "unloaded"), "It is a router, 0 of 2 models loaded."),
        (router("sleeping", "loaded"), "It is a router, 1 of 2 models loaded: beta-8b:Q8_0; 1 asleep."),
        (router("unloaded", None), "It is a router."),  # the state of one is not known
        (router(), "It is a router."),
        (
            router(*["loaded"] * 10),
            "It is a router, 10 of 10 models loaded: "
            "alpha-70b:Q4_K_M, beta-8b:Q8_0, m0, m1, m2, m3, m4, m5 and 2 more.",
        ),
    ],
)
def test_placeholder_of_a_router_is_no_model(tmp_path: Path, answers: dict[str, bytes], note: str) -> None:
    found, site = ask(tmp_path, "llama.cpp", answers)
    assert (found.model, found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_SUPPORTED,) * 3
    assert found.notes == (note,)
    assert NO_METRICS not in found.notes
    assert {path for _, path in site.requests} == {"/health", "/props", "/models"}


def test_llama_serve_is_found_by_its_process(tmp_path: Path) -> None:
    host = EngineHost(tmp_path)
    host.add(500, ("/home/ana/.local/bin/llama", "serve", "-m", "/models/tiny.gguf"))
    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        (found,) = close_at_end(Collector(host.roots, True, (), None, host.net)).collect().engines
    assert (found.kind, found.model, found.requests_running) == ("llama.cpp", "tiny.gguf", 1)
