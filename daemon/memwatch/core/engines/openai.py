"""Servers with OpenAI's API that report little more than their model, and Hugging Face TGI with some figures."""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.engines.command import Command
from memwatch.core.engines.records import Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Model, Models, Request
from memwatch.core.engines.text import EVERY_LABEL, count_of, name_of
from memwatch.core.listing import some_of
from memwatch.core.model import Absent

PORT, MAX_NAMES = 8000, 8
REQUESTS = (
    Request(
        "/v1/models",
        "once a minute",
        "None: a list of names, also from servers that load a model with its first request.",
        form=Models,
    ),
)
# They list all models of the machine's cache, loaded or not (Blaizzy/mlx-vlm#2073).
LIST_CACHE = frozenset({"mlx_lm.server", "mlx_vlm.server"})
MODULES = LIST_CACHE | {
    "llama_cpp.server", "mlc_llm.serve", "aphrodite.endpoints.openai.api_server", "atom.entrypoints.openai_server",
}  # fmt: skip
SCRIPTS = LIST_CACHE | {"lmdeploy", "koboldcpp", "mlc_llm", "aphrodite", "llamafile", "mistralrs-server"}
# Programs of a release and of a model: koboldcpp.py, koboldcpp-linux-x64, llamafile-0.9.3, Qwen3-8B.llamafile.
PREFIXES, SUFFIX = ("koboldcpp-", "llamafile-"), ".llamafile"
NO = Absent.NOT_SUPPORTED
NOT_LOADED = "It lists {count} models, and not which of them are loaded."
MAYBE_LOADED = "It lists a model of its cache, and not whether that is loaded."
NONE_LOADED = "None of its {count} models is loaded."
NOTHING_MORE = "It reports its model only: the API has no figures of memory and load."


def matches(command: Command) -> bool:
    is_part = command.script in ("mlx_lm", "mlx_vlm") and command.subcommand == "server"
    is_part = is_part or (command.script == "mistralrs" and command.subcommand == "serve")
    name = command.script.removesuffix(".py")
    is_named = name in SCRIPTS or name.startswith(PREFIXES) or name.endswith(SUFFIX)
    return is_part or command.module in MODULES or is_named


def parse(answers: Answers) -> EngineReading:
    listed, started = answers.models(), answers.command.option("--model")
    model, note = find_model(listed, started, lists_cache(answers.command))
    return EngineReading(
        version=NO,
        model=name_of(model.id or started),
        model_path=model.root or started,
        context_tokens=count_of(model.max_model_len),
        kv_cache_bytes=NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=NO,
        requests_waiting=NO,
        rate=NO,
        sleeping=NO,
        notes=(note, NOTHING_MORE) if note else (NOTHING_MORE,),
    )


def lists_cache(command: Command) -> bool:
    return command.script in (*LIST_CACHE, "mlx_lm", "mlx_vlm") or command.module in LIST_CACHE


def find_model(listed: list[Model], started: str, is_cache: bool) -> tuple[Model, str]:
    """Return the loaded model, and a note if it is not known. `is_cache`: the list has models of the cache too."""
    loaded = [one for one in listed if one.loaded]
    if len(loaded) == 1:
        return loaded[0], ""
    if len(loaded) > 1:
        return Model(), f"It has {len(loaded)} models loaded: {some_of([one.id for one in loaded], MAX_NAMES)}."
    if listed and all(one.loaded is False for one in listed):
        return Model(), NONE_LOADED.format(count=len(listed))
    if len(listed) == 1 and not is_cache:
        return listed[0], ""
    if not listed or started:
        return Model(id=started), ""
    return Model(), NOT_LOADED.format(count=len(listed)) if len(listed) > 1 else MAYBE_LOADED


# TGI: names of backends/v3 and router, 2.0 to 3.3. It reports the tokens that its cache has room for, at its start,
# and not how many of them are used.
TGI_PORT = 3000


class TgiInfo(Struct, frozen=True):
    model_id: str = ""
    version: str = ""
    max_total_tokens: int | None = None


TGI_REQUESTS = (
    Request("/metrics", "every 5 s", "None: the router answers. It never unloads its model."),
    Request("/info", "once a minute", "None: the router answers.", form=TgiInfo),
    Request("/health", "never", "It generates a token unless the last request succeeded."),
)


def matches_tgi(command: Command) -> bool:
    return command.script in ("text-generation-launcher", "text-generation-router", "text-generation-router-v2")


def parse_tgi(answers: Answers) -> EngineReading:
    metrics, info = answers.metrics(), answers.json("/info", TgiInfo) or TgiInfo()
    room = metrics.one("tgi_batch_max_total_tokens")
    return EngineReading(
        version=name_of(info.version),
        model=name_of(info.model_id),
        model_path=info.model_id,
        context_tokens=count_of(info.max_total_tokens),
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        cache=Cache("blocks", blocks=int(room), block_tokens=1) if room and room < 1e12 else None,
        requests_running=count_of(metrics.one("tgi_batch_current_size")),
        requests_waiting=count_of(metrics.one("tgi_queue_size")),
        counters=Counters(
            metrics.total("tgi_request_input_length_sum", EVERY_LABEL),
            metrics.total("tgi_request_generated_tokens_sum", EVERY_LABEL),
        ),
        sleeping=NO,
    )
