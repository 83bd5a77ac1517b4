"""LM Studio: the desktop program and `llmster`, its server without one. Facts of lmstudio.ai/docs, 0.3.6 to 0.4.

/api/v1/models (0.4) and /api/v0/models list all downloaded models, with the loaded ones marked. The weights are in
processes that it starts (lmstudio-ai/lms#502).
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.engines.command import Command
from memwatch.core.engines.records import EngineReading
from memwatch.core.engines.requests import Answers, Request
from memwatch.core.engines.text import bytes_of, count_of, name_of
from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Bytes, Quality, Words

PORT, MAX_NAMES = 1234, 16
# Websockets of its commands and libraries, one of which is open while its server is off: lmstudio-bug-tracker#1158,
# and default_api_ports of the Python library. The port of the server is a setting of the program.
INNER_PORTS = frozenset({41343, 52993, 16141, 39414, 22931})
NO, UNKNOWN = Absent.NOT_SUPPORTED, Absent.NOT_AVAILABLE
MODELS = "/api/v1/models|/api/v0/models"
LOADED = "loaded"
NOTHING_LOADED = "No model is loaded."
NOTHING_MORE = "It reports its loaded models only: the API has no figures of their KV cache and load."


class Config(Struct, frozen=True):
    context_length: int | None = None


class Instance(Struct, frozen=True):
    id: str | None = None
    config: Config = Config()


class Format(Struct, frozen=True):
    name: str | None = None


class Listed(Struct, frozen=True):
    """A model of /api/v1/models. `size_bytes`: that of its files."""

    key: str | None = None
    size_bytes: int | None = None
    quantization: Format | None = None
    loaded_instances: list[Instance] | None = None


class OldListed(Struct, frozen=True):
    """A model of /api/v0/models."""

    id: str | None = None
    quantization: str | None = None
    state: str | None = None
    loaded_context_length: int | None = None


class List(Struct, frozen=True):
    models: list[Listed] | None = None
    data: list[OldListed] | None = None


class Loaded(Struct, frozen=True):
    """A loaded model, or a further instance of one."""

    name: str | None
    weights_bytes: Bytes
    quantization: str | None
    context_tokens: int | None


REQUESTS = (
    Request(
        MODELS,
        "every 5 s",
        "None: it lists models. They are loaded by requests to generate, and unloaded some time after these.",
        form=List,
    ),
    Request("/v1/chat/completions", "never", "It loads a model, and so do the other paths that generate."),
)


def matches(command: Command) -> bool:
    """Match the program of the desktop, unpacked or from its AppImage, but no helper of its browser."""
    is_helper = any(one.startswith("--type=") for one in command.argv)
    return command.script in ("llmster", "lm-studio") and not is_helper


def parse(answers: Answers) -> EngineReading:
    loaded = find_loaded(answers.json(MODELS, List) or List())
    is_empty, only = loaded == [], loaded[0] if loaded and len(loaded) == 1 else None
    return EngineReading(
        version=NO,
        model=name_models(loaded),
        quantization=name_of(only.quantization if only else None),
        context_tokens=count_of(only.context_tokens if only else None),
        weights_bytes=add_weights(loaded),
        kv_cache_bytes=0 if is_empty else NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=UNKNOWN if loaded is None else is_empty,
        quality=Quality.DERIVED,
        notes=(NOTHING_LOADED,) if is_empty else (NOTHING_MORE,),
    )


def find_loaded(listed: List) -> list[Loaded] | None:
    """Return the loaded models, None if a list or a state in it was not read."""
    if listed.models is not None:
        if any(one.loaded_instances is None for one in listed.models):
            return None
        return [
            Loaded(each.id, _size(one), _format(one), each.config.context_length)
            for one in listed.models
            for each in one.loaded_instances or ()
        ]
    if listed.data is None or any(one.state is None for one in listed.data):
        return None
    return [
        Loaded(one.id, UNKNOWN, one.quantization, one.loaded_context_length)
        for one in listed.data
        if one.state == LOADED
    ]


def _size(listed: Listed) -> Bytes:
    """Return the size of a model's files. A loaded model has some."""
    return Absent.INCONSISTENT if listed.size_bytes == 0 else bytes_of(listed.size_bytes)


def _format(listed: Listed) -> str | None:
    return listed.quantization.name if listed.quantization else None


def name_models(loaded: list[Loaded] | None) -> Words:
    names = [one.name for one in loaded or () if one.name]
    return name_of(some_of(names, MAX_NAMES)) if names else UNKNOWN


def add_weights(loaded: list[Loaded] | None) -> Bytes:
    """Return the size of the files of the loaded models: each instance has its weights."""
    if loaded is None:
        return UNKNOWN
    sizes = [one.weights_bytes for one in loaded]
    unknown = next((one for one in sizes if isinstance(one, Absent)), None)
    return unknown or bytes_of(sum(one for one in sizes if isinstance(one, int)))
