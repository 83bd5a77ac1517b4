"""Ollama. Facts of server/routes.go and api/types.go, 0.1.33 to 0.33: /api/ps lists the loaded models.

It loads a model for any request but these. `size` has weights, cache and graphs together, as Ollama plans them.
Since 0.30 it adds up lines of llama-server's log. Of a model with windows (gemma) the smaller cache replaces the
larger one (PR #17037): it reported 12 GB of 90 (issue #17251) and 22 of 45 (issue #16763). Its runner (`ollama
runner`, then llama-server) has the model's file on its command line. That of 0.11 to 0.29 gets the rest by a
request, and a llama-server inherits variables: the environment decides on the cache as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import CACHE_VARIABLES, Command, Variable
from memwatch.core.engines.records import Cache, EngineReading
from memwatch.core.engines.requests import NOT_UNDERSTOOD, Answers, Request, VersionAnswer
from memwatch.core.engines.text import MAX_NAME_CHARACTERS, count_of, name_of
from memwatch.core.listing import some_of
from memwatch.core.model import Absent
from memwatch.core.printable import printable
from memwatch.core.units import size

PORT = 11434
# The binary of a release has its platform in its name. `ollama start` is `ollama serve`.
PROGRAM, COMMANDS = re.compile(r"ollama(?:-linux-[a-z0-9]+)?"), ("serve", "start")
# Its runner, which 0.1.32 to 0.5 had as a separate program.
RUNNER, EARLY_RUNNER = "runner", "ollama_llama_server"
NO = Absent.NOT_SUPPORTED
MAX_MODELS, MAX_TOKENS = 16, 10**9
# The first version that reads the sizes in the log of its runner.
LOG_VERSION = (0, 30)
VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")
BOTH = "--kv-cache-type"
# Its own two are for runners without these options on their command line.
VARIABLES: Mapping[str, Variable] = {
    "OLLAMA_KV_CACHE_TYPE": Variable(BOTH),
    "OLLAMA_NUM_PARALLEL": Variable("--parallel"),
    **CACHE_VARIABLES,
}
ASSUMED_CELLS = (
    "The size of its KV cache is an estimate: variables such as OLLAMA_KV_CACHE_TYPE decide on it, and its "
    "environment cannot be read here."
)
MAYBE_CELLS = "The size of its KV cache is an estimate: Ollama may not follow its variables for this model."
NO_LIST = "It gave no list of loaded models (/api/ps), which 0.1.38 and later have: its models are not known."
PLANS = "Ollama plans {size} for {name}, weights and cache together"
COUNTS = "Ollama counts {size} for {name}, and may leave out a part of its cache"


class Details(Struct, frozen=True):
    quantization_level: str | None = None


class Loaded(Struct, frozen=True):
    name: str = ""
    size: int | None = None
    size_vram: int | None = None
    context_length: int | None = None
    details: Details = Details()


class Ps(Struct, frozen=True):
    models: list[Loaded] | None = None


REQUESTS = (
    Request("/api/ps", "every 5 s", "None: it lists loaded models, and restarts no `keep_alive`.", form=Ps),
    Request("/api/version", "once a minute", "None.", form=VersionAnswer),
    Request("/api/generate", "never", "It loads a model, and so do `/api/chat`, `/api/embed` and `/v1/…`."),
)


def matches(command: Command) -> bool:
    return PROGRAM.fullmatch(command.script) is not None and command.subcommand in COMMANDS


def is_own_runner(command: Command) -> bool:
    """Return True for its own runner. Since 0.30 it starts a llama-server."""
    is_part = PROGRAM.fullmatch(command.script) is not None and command.subcommand == RUNNER
    return is_part or command.script == EARLY_RUNNER


def parse(answers: Answers) -> EngineReading:
    listed = (answers.json("/api/ps", Ps) or Ps()).models
    models = listed or []
    only = models[0] if len(models) == 1 else Loaded()
    is_empty, cells = listed == [], find_cells(only, answers.inner, answers.command)
    return EngineReading(
        version=name_of(answers.version("/api/version")),
        model=name_of(some_of([one.name for one in models], MAX_MODELS)),
        model_path=answers.inner.option("--model", "-m") if len(models) == 1 else "",
        quantization=name_of(only.details.quantization_level),
        context_tokens=count_of(only.context_length or None),
        weights_bytes=0 if is_empty else Absent.NOT_AVAILABLE,
        kv_cache_bytes=0 if is_empty else Absent.NOT_AVAILABLE,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        cache=cells,
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=Absent.NOT_AVAILABLE if listed is None else is_empty,
        notes=(*_notes(answers, listed), *_note_cells(cells, answers.command)),
    )


def reads_log(answers: Answers) -> bool:
    """Return True if the sizes are from the log of a runner. An unknown version may be new."""
    found = VERSION.match(answers.version("/api/version"))
    return found is None or (int(found[1]), int(found[2])) >= LOG_VERSION


def _notes(answers: Answers, listed: list[Loaded] | None) -> Iterator[str]:
    """Yield the plan for each model. No model is loaded only if the list is there, and empty."""
    is_from_log = reads_log(answers)
    if listed is None:
        yield f"/api/ps: {NOT_UNDERSTOOD}" if "/api/ps" in answers.bodies else NO_LIST
    elif not listed:
        yield "No model is loaded."
    for one in (listed or [])[:MAX_MODELS]:
        yield describe(one, is_from_log)
    if listed and len(listed) > MAX_MODELS:
        yield f"{len(listed) - MAX_MODELS} more models are loaded."


def find_cells(model: Loaded, runner: Command, server: Command) -> Cache | None:
    """Return the capacity of the cache: `-c` of the runner is that of all sequences, that of a model is of one."""
    given = runner.number("-c", "--ctx-size")
    tokens = given or model.context_length
    if not tokens or not 0 < tokens < MAX_TOKENS or not runner.argv:
        return None
    is_own, with_variables = is_own_runner(runner), replace(runner, from_environment=server.from_environment)
    told, inherited = runner if given else with_variables, runner if is_own else with_variables
    sequences = told.number("-np", "--parallel") or 1
    both = told.option(BOTH)
    key, value = (one or both for one in inherited.cache_types)
    # Ollama up to 0.10 gives its own runner each option that is set, and llama-server since 0.30.
    is_certain = given and (is_own or (key and value) or server.from_environment is not None)
    return Cache(
        "cells",
        tokens=tokens // sequences if given else tokens,
        sequences=sequences,
        key_dtype=key or "f16",
        value_dtype=value or "f16",
        is_assumed=not is_certain,
        ignores_windows=inherited.ignores_windows,
    )


def _note_cells(cells: Cache | None, server: Command) -> Iterator[str]:
    if cells is not None and cells.is_assumed:
        yield ASSUMED_CELLS if server.from_environment is None else MAYBE_CELLS


def describe(model: Loaded, is_from_log: bool) -> str:
    """Return the plan of Ollama for a model, or its sum of the runner's log. Neither is a measurement.

    A size on GPUs of 0 was left out by Ollama up to 0.1.41 (ollama/ollama#4840).
    """
    name = model.name or "a model"
    if model.size is None:
        return printable(f"Ollama reports no size for {name[:MAX_NAME_CHARACTERS]}.")
    on_gpus = model.size if model.size_vram is None else model.size_vram
    if not 0 < model.size < 1 << 50 or not 0 <= on_gpus <= model.size:
        return printable(f"Ollama reports impossible sizes for {name[:MAX_NAME_CHARACTERS]}.")
    whole = (COUNTS if is_from_log else PLANS).format(size=size(model.size), name=name_of(name))
    return f"{whole}." if model.size == on_gpus else f"{whole}, {size(on_gpus)} of it on GPUs."
