"""Ollama. Facts of server/routes.go and api/types.go, 0.1.33 to 0.33: /api/ps lists the loaded models.

It loads a model for any request but these. `size` has weights, cache and graphs together, as Ollama plans them. Its
runner (`ollama runner`, since 0.33 llama-server) has the model's file and the context on its command line.
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.engines.answers import Answers
from memwatch.engines.command import Command
from memwatch.engines.records import Cache, EngineReading
from memwatch.engines.requests import Request
from memwatch.engines.text import count_of, name_of
from memwatch.model import Absent
from memwatch.units import size

PORT = 11434
REQUESTS = (
    Request("/api/ps", "every 5 s", "None: it lists loaded models, and restarts no `keep_alive`."),
    Request("/api/version", "once a minute", "None."),
    Request("/api/generate", "never", "It loads a model, and so do `/api/chat`, `/api/embed` and `/v1/…`."),
)
NO = Absent.NOT_SUPPORTED
MAX_MODELS = 16


class Details(Struct, frozen=True):
    quantization_level: str = ""


class Loaded(Struct, frozen=True):
    name: str = ""
    size: int = 0
    size_vram: int = 0
    context_length: int | None = None
    details: Details = Details()


class Ps(Struct, frozen=True):
    models: list[Loaded] | None = None


def matches(command: Command) -> bool:
    return command.script == "ollama" and command.subcommand == "serve"


def parse(answers: Answers) -> EngineReading:
    found = answers.json("/api/ps", Ps)
    models = (found.models or [])[:MAX_MODELS] if found else []
    only = models[0] if len(models) == 1 else Loaded()
    is_empty = found is not None and not models
    return EngineReading(
        version=name_of(answers.version("/api/version")),
        model=name_of(", ".join(one.name for one in models)),
        model_path=answers.inner.option("--model", "-m") if len(models) == 1 else "",
        quantization=name_of(only.details.quantization_level),
        context_tokens=count_of(only.context_length or None),
        weights_bytes=0 if is_empty else Absent.NOT_AVAILABLE,
        kv_cache_bytes=0 if is_empty else Absent.NOT_AVAILABLE,
        kv_cache_ratio=NO,
        cache=find_cells(only, answers.inner),
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=is_empty,
        notes=tuple(describe(one) for one in models) or ("No model is loaded.",),
    )


def find_cells(model: Loaded, runner: Command) -> Cache | None:
    """Return the capacity of the cache: `-c` of the runner is that of all its sequences."""
    tokens = runner.number("-c", "--ctx-size") or model.context_length
    if not tokens or not runner.argv:
        return None
    sequences = runner.number("-np", "--parallel") or 1
    both = runner.option("--kv-cache-type")
    key, value = runner.option("--cache-type-k") or both or "f16", runner.option("--cache-type-v") or both or "f16"
    return Cache("cells", tokens=tokens // sequences, sequences=sequences, key_dtype=key, value_dtype=value)


def describe(model: Loaded) -> str:
    """Return the plan of Ollama for a model, which is no measurement."""
    if not 0 < model.size < 1 << 50 or not 0 <= model.size_vram <= model.size:
        return "Ollama reports impossible sizes."
    whole = f"Ollama plans {size(model.size)} for {name_of(model.name)}, weights and cache together"
    return f"{whole}." if model.size == model.size_vram else f"{whole}, {size(model.size_vram)} of it on GPUs."
