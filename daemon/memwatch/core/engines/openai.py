"""Servers with OpenAI's API that report little more than their model, and Hugging Face TGI with some figures.

LMDeploy, Aphrodite, FastDeploy and NVIDIA NIM have metrics of vLLM's form with a prefix of their own, or none.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import Command
from memwatch.core.engines.records import FULL, HALF, Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Model, Models, Request, VersionAnswer
from memwatch.core.engines.text import (
    EVERY_LABEL,
    VLLM_CORE,
    Exposition,
    Identity,
    count_of,
    name_of,
    note_impossible,
    worst_and_mean,
)
from memwatch.core.listing import some_of
from memwatch.core.model import Absent

PORT, MAX_NAMES = 8000, 8
PORT_OPTIONS = ("--port", "-p", "--server-port", "--start-port", "--http-port")
LMDEPLOY, APHRODITE, FASTDEPLOY = "lmdeploy", "aphrodite", "fastdeploy"
# Programs of NVIDIA NIM for language models, 1.0 to 1.15; its metrics have names without a prefix.
NIM_MODULES = frozenset({
    "nim_llm_sdk.entrypoints.launch", "nim_llm_sdk.entrypoints.openai.api_server",
    "vllm_nvext.entrypoints.openai.api_server",
})  # fmt: skip
# LocalAI and TabbyAPI list the models that they could load; Xinference only those that it has loaded.
LOCAL_AI, TABBY_API, XINFERENCE = "local-ai", "tabbyapi", ("xinference-local", "xinference-supervisor")
EXO = "exo"
# Its programs are named after a release: koboldcpp.py, koboldcpp-linux-x64, koboldcpp_cu12.
KOBOLD = "koboldcpp"
# KServe's server for models of Hugging Face: vLLM with other paths, or transformers without metrics.
KSERVE = "huggingfaceserver"
# Workers that answer a controller of their own program only, by the protocol of that.
WORKERS: Mapping[str, str] = {
    "xinference-worker": "Xinference",
    **{f"fastchat.serve.{one}_worker": "FastChat" for one in ("model", "multi_model", "vllm", "sglang", "mlx")},
}
WORKER = "It is a worker of {name}, whose controller has the API: it reports no figures itself."
# Servers of embeddings: Hugging Face TEI has no list of models, Infinity one below its --url-prefix.
TEI, INFINITY = "text-embeddings-router", "infinity_emb"


def is_nim(command: Command) -> bool:
    return command.module in NIM_MODULES


def is_local_ai(command: Command) -> bool:
    """Match its server, and none of its other commands such as `local-ai models install`."""
    is_named = command.script == LOCAL_AI or command.script.startswith(f"{LOCAL_AI}-")  # with release and platform
    return is_named and is_run(command)


def is_run(command: Command) -> bool:
    """Return True for a program that serves without a command, or with `run`."""
    return command.subcommand in ("", "run") or command.subcommand.startswith("-")


def is_exo(command: Command) -> bool:
    """Match its server. The client of the cloud Exoscale has the same name: `exo compute instance list`."""
    return command.script == EXO and is_run(command)


def is_tabby_api(command: Command) -> bool:
    return command.script in ("main.py", "start.py") and command.folder.lower() == TABBY_API


def is_program(name: str, command: Command) -> bool:
    return command.script == name or command.module.partition(".")[0] == name


def prefix_of(command: Command) -> str | None:
    """Return what comes before the names of a server's metrics, None for one without metrics of vLLM's form."""
    if is_nim(command):
        return ""
    if is_program(KSERVE, command):
        return "vllm:"
    return next((f"{one}:" for one in (LMDEPLOY, APHRODITE, FASTDEPLOY) if is_program(one, command)), None)


def has_metrics(answers: Answers) -> bool:
    """Return True for a server whose /metrics is read (LMDeploy: #3534, by default since #4108)."""
    return bool(prefix_of(answers.command)) or is_tei(answers.command)


def is_tei(command: Command) -> bool:
    return command.script == TEI


def is_infinity(command: Command) -> bool:
    """Match its server: `infinity_emb v2`, and without a command until 2024."""
    return command.script == INFINITY and (command.subcommand == "v2" or command.subcommand.startswith("-"))


def has_bare_list(command: Command) -> bool:
    is_prefixed = command.subcommand != "v2" or command.option("--url-prefix").strip("/")
    return is_infinity(command) and not is_prefixed


def is_kobold(command: Command) -> bool:
    return command.script.startswith(KOBOLD)


def worker_of(command: Command) -> str | None:
    """Return the program of which this is a worker, None for a server."""
    return WORKERS.get(command.script) or WORKERS.get(command.module)


def why_unasked(command: Command) -> str:
    name = worker_of(command)
    return WORKER.format(name=name) if name else ""


class KoboldContext(Struct, frozen=True):
    value: int | None = None


class KoboldPerf(Struct, frozen=True):
    """/api/extra/perf: requests that wait, and 1 while it generates nothing. It runs one at a time."""

    queue: int | None = None
    idle: int | None = None


class LoadedModel(Struct, frozen=True):
    id: str = ""


class System(Struct, frozen=True):
    """/system of LocalAI."""

    loaded_models: list[LoadedModel] | None = None


class TeiInfo(Struct, frozen=True):
    """/info of TEI, 1.2 to 1.8."""

    model_id: str = ""
    version: str = ""
    max_input_length: int | None = None


SYSTEM, NIM_METRICS, BARE_LIST, INFO = "/system", "/v1/metrics", "/models", "/info"
LIST, KSERVE_LIST = "/v1/models", "/openai/v1/models"
KOBOLD_PERF, KOBOLD_VERSION = "/api/extra/perf", "/api/extra/version"
KOBOLD_CONTEXT = "/api/extra/true_max_context_length"
REQUESTS = (
    Request(
        "/metrics",
        "every 5 s",
        "None: the HTTP server answers. Asked of LMDeploy, Aphrodite, FastDeploy, KServe and TEI only.",
        has_metrics,
    ),
    Request(
        NIM_METRICS,
        "every 5 s",
        "None: the HTTP server answers. Asked of NVIDIA NIM only.",
        lambda answers: is_nim(answers.command),
    ),
    Request(
        KOBOLD_PERF,
        "every 5 s",
        "None: the HTTP server answers. Asked of KoboldCpp only.",
        lambda answers: is_kobold(answers.command),
        KoboldPerf,
    ),
    Request(
        KOBOLD_CONTEXT,
        "once a minute",
        "None: the HTTP server answers. Asked of KoboldCpp only.",
        lambda answers: is_kobold(answers.command),
        KoboldContext,
    ),
    Request(
        KOBOLD_VERSION,
        "once a minute",
        "None: the HTTP server answers. Asked of KoboldCpp only.",
        lambda answers: is_kobold(answers.command),
        VersionAnswer,
    ),
    Request(
        LIST,
        "once a minute",
        "None: a list of names, also from servers that load a model with its first request.",
        lambda answers: not is_tei(answers.command) and list_path(answers.command) == LIST,
        Models,
    ),
    Request(
        KSERVE_LIST,
        "once a minute",
        "None: a list of names. Asked of KServe only.",
        lambda answers: list_path(answers.command) == KSERVE_LIST,
        Models,
    ),
    Request(
        BARE_LIST,
        "once a minute",
        "None: a list of names. Asked of Infinity only.",
        lambda answers: has_bare_list(answers.command),
        Models,
    ),
    Request(
        INFO,
        "once a minute",
        "None: the HTTP server answers. Asked of TEI only.",
        lambda answers: is_tei(answers.command),
        TeiInfo,
    ),
    Request(
        SYSTEM,
        "once a minute",
        "None: it lists loaded models. Asked of LocalAI only.",
        lambda answers: is_local_ai(answers.command),
        System,
    ),
)
# They list all models of the machine's cache, loaded or not (Blaizzy/mlx-vlm#2073).
LIST_CACHE = frozenset({"mlx_lm.server", "mlx_vlm.server"})
MODULES = LIST_CACHE | {
    "llama_cpp.server", "mlc_llm.serve", "aphrodite.endpoints.openai.api_server", "atom.entrypoints.openai_server",
    "fastdeploy.entrypoints.openai.api_server", "fastdeploy.entrypoints.openai.multi_api_server",
    "rtp_llm.start_server", "maga_transformer.start_server", "lightllm.server.api_server", KSERVE, "mlc_llm.rest",
    "mlc_llm.serve.server", "mlc_chat.rest", "lmdeploy.serve.openai.api_server", "ktransformers.server.main",
    "mii.entrypoints.openai_api_server",
}  # fmt: skip
# server_vllm.py and server_sglang.py are those of MeetKai's functionary.
SCRIPTS = LIST_CACHE | {
    KOBOLD, APHRODITE, "llamafile", "llamafiler", "mistralrs-server", "llama-box", TEI, *XINFERENCE,
    "ktransformers", "server_vllm", "server_sglang",
}  # fmt: skip
# Programs of which one command is the server.
SERVE = frozenset({
    "mistralrs", "sglang-omni", FASTDEPLOY, "rtp-llm", "max", "max-pipelines", "max.entrypoints.pipelines",
    "openllm", "transformers", "flm", "nexa", "mlc_llm",
})  # fmt: skip
# Servers that list models which they could load.
LIST_EVERY = frozenset({EXO, "transformers", "flm", "nexa", "mlx_lm", "mlx_vlm"}) | LIST_CACHE
# Programs of a release and of a model: llamafile-0.9.3, Qwen3-8B.llamafile.
PREFIXES, SUFFIX = (KOBOLD, "llamafile-"), ".llamafile"
# Options that name the model, and the word before it where it is an argument.
NAMED = ("--model", "--model-name", "--model-id", "--model-path", "--model-dir", "--model-name-or-path")
NAMED_AFTER: Mapping[str, str] = {
    APHRODITE: "run", LMDEPLOY: "api_server", "flm": "serve", "mlc_llm": "serve", "openllm": "serve",
    "rtp-llm": "serve",
}  # fmt: skip
NO = Absent.NOT_SUPPORTED
NOT_LOADED = "It lists {count} models, and not which of them are loaded."
MAYBE_LOADED = "It lists a model of its cache, and not whether that is loaded."
NONE_LOADED = "None of its {count} models is loaded."
NO_SIZES = "The use of its KV cache is read from its metrics, and no sizes."
OWN_PORT = "Its requests and the use of its KV cache are at the port of --metrics-port, which is not asked."
# Beginnings of names that metrics of vLLM's form have.
FORM = ("num_requests_", "gpu_cache_usage_perc", "kv_cache_usage_perc")
# Requests that wait for the engine, and those that wait for a handle of LMDeploy's.
QUEUES = ("num_requests_waiting", "num_api_requests_waiting")
NO_MEMORY = "It reports its context and its requests: the API has no figures of memory and tokens."
NOTHING_MORE = "It reports its model only: the API has no figures of memory and load."


def matches(command: Command) -> bool:
    is_part = command.script in ("mlx_lm", "mlx_vlm") and command.subcommand == "server"
    is_part = is_part or (command.script in SERVE and command.subcommand == "serve")
    is_part = is_part or (is_program(LMDEPLOY, command) and "serve" in command.argv and "proxy" not in command.argv)
    is_part = is_part or (command.script == "openllm" and command.subcommand == "start") or is_dynamo_run(command)
    is_part = is_part or command.path.endswith("ktransformers/server/main.py") or bool(worker_of(command))
    is_part = is_part or is_nim(command) or is_local_ai(command) or is_tabby_api(command) or is_infinity(command)
    is_part = is_part or is_exo(command)
    name = command.script.removesuffix(".py")
    is_named = name in SCRIPTS or name.startswith(PREFIXES) or name.endswith(SUFFIX)
    return is_part or command.module in MODULES or is_named


def is_dynamo_run(command: Command) -> bool:
    """Match NVIDIA Dynamo of 2025, with API and engine in one program: `dynamo-run in=http out=vllm MODEL`."""
    is_named = command.script == "dynamo-run" or (command.script == "dynamo" and command.subcommand == "run")
    return is_named and "in=http" in command.argv


def has_http_port(command: Command) -> bool:
    """Return False for Xinference, whose parts have sockets of another protocol."""
    return command.script not in XINFERENCE


def parse(answers: Answers) -> EngineReading:
    if is_tei(answers.command):
        return parse_tei(answers)
    command, prefix = answers.command, prefix_of(answers.command)
    started = command.option(*NAMED) or command.word_after(NAMED_AFTER.get(command.script, "?"))
    model, note = find_model(list_models(answers), started, lists_cache(command))
    is_apart = is_program(FASTDEPLOY, command) and "/metrics" not in answers.bodies
    found = EngineReading(
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
        converts_from=HALF if command.option("--quantization", "--isq") else None,
        notes=tuple(filter(None, (note, OWN_PORT if is_apart else NOTHING_MORE))),
    )
    if is_kobold(command):
        return with_perf(found, answers, note)
    metrics = answers.metrics("/metrics" if prefix else NIM_METRICS)
    if prefix is None or not any(metrics.has(f"{prefix}{one}") for one in FORM):
        return found
    return with_metrics(found, metrics, prefix, note)


def with_perf(found: EngineReading, answers: Answers, note: str) -> EngineReading:
    """Add the figures of KoboldCpp. Versions without /api/extra/perf report their context only."""
    context = answers.json(KOBOLD_CONTEXT, KoboldContext) or KoboldContext()
    found = replace(
        found, version=name_of(answers.version(KOBOLD_VERSION)), context_tokens=count_of(context.value or None)
    )
    perf = answers.json(KOBOLD_PERF, KoboldPerf)
    if perf is None:
        return found
    return replace(
        found,
        requests_running=count_of(None if perf.idle is None else 1 - perf.idle),
        requests_waiting=count_of(perf.queue),
        notes=tuple(filter(None, (note, NO_MEMORY))),
    )


def parse_tei(answers: Answers) -> EngineReading:
    """TEI has a queue and no KV cache. Its weights follow from the model's files."""
    info, command = answers.json(INFO, TeiInfo) or TeiInfo(), answers.command
    started = info.model_id or command.option("--model-id")
    return EngineReading(
        version=name_of(info.version),
        model=name_of(started),
        model_path=started,
        converts_from=None if command.option("--dtype") == "float32" else FULL,
        context_tokens=count_of(info.max_input_length),
        kv_cache_bytes=NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=NO,
        requests_waiting=count_of(answers.metrics().one("te_queue_size")),
        rate=NO,
        sleeping=NO,
    )


def with_metrics(found: EngineReading, metrics: Exposition, prefix: str, note: str) -> EngineReading:
    """Add the figures of metrics in vLLM's form. Bytes and blocks of the KV cache are not read."""
    running = f"{prefix}num_requests_running"
    use = (f"{prefix}kv_cache_usage_perc", f"{prefix}gpu_cache_usage_perc")
    pools, impossible = metrics.cache_use(use, running)
    worst, mean = worst_and_mean(pools, impossible)
    return replace(
        found,
        kv_cache_ratio=worst,
        kv_cache_mean_ratio=mean,
        requests_running=count_of(metrics.total(running, VLLM_CORE)),
        requests_waiting=metrics.count_all({f"{prefix}{name}": VLLM_CORE for name in QUEUES}),
        counters=Counters(
            metrics.total(f"{prefix}prompt_tokens_total", EVERY_LABEL),
            metrics.total(f"{prefix}generation_tokens_total", EVERY_LABEL),
            metrics.total(f"{prefix}time_to_first_token_seconds_sum", EVERY_LABEL),
            metrics.total(f"{prefix}time_to_first_token_seconds_count", EVERY_LABEL),
        ),
        rate=Absent.NOT_AVAILABLE,
        notes=tuple(filter(None, (note, *note_impossible(pools, impossible), NO_SIZES))),
    )


def list_models(answers: Answers) -> list[Model]:
    """Return the listed models, each with whether it is loaded, where the server reports that."""
    listed = answers.models(list_path(answers.command))
    if answers.command.script in XINFERENCE or is_infinity(answers.command):
        return [replace(one, loaded=True) for one in listed]
    system = answers.json(SYSTEM, System) if is_local_ai(answers.command) else None
    if system is None or system.loaded_models is None:
        return listed
    loaded = [Model(id=one.id, loaded=True) for one in system.loaded_models]
    return loaded or [replace(one, loaded=False) for one in listed]


def list_path(command: Command) -> str:
    """Return the path of a server's list of models."""
    if is_program(KSERVE, command):
        return KSERVE_LIST
    return BARE_LIST if has_bare_list(command) else LIST


def lists_cache(command: Command) -> bool:
    lists_every = command.script in LIST_EVERY or command.module in LIST_CACHE
    return lists_every or is_local_ai(command) or is_tabby_api(command)


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
# The last two are its routers with llama.cpp and TensorRT-LLM in them.
TGI_PROGRAMS = frozenset({
    "text-generation-launcher", "text-generation-router", "text-generation-router-v2",
    "text-generation-router-llamacpp", "text-generation-backends-trtllm",
})  # fmt: skip


class TgiInfo(Struct, frozen=True):
    """`max_batch_total_tokens`: the room of the cache, until its metrics have it (2.0, not 3.3)."""

    model_id: str = ""
    version: str = ""
    max_total_tokens: int | None = None
    max_batch_total_tokens: int | None = None


TGI_REQUESTS = (
    Request("/metrics", "every 5 s", "None: the router answers. It never unloads its model."),
    Request("/info", "once a minute", "None: the router answers.", form=TgiInfo),
    Request("/health", "never", "It generates a token unless the last request succeeded."),
)


def matches_tgi(command: Command) -> bool:
    return command.script in TGI_PROGRAMS


def parse_tgi(answers: Answers) -> EngineReading:
    metrics, info = answers.metrics(), answers.json("/info", TgiInfo) or TgiInfo()
    room = metrics.one("tgi_batch_max_total_tokens") or info.max_batch_total_tokens
    started = answers.command.option("--model-id")
    return EngineReading(
        version=name_of(info.version),
        model=name_of(info.model_id or started),
        model_path=info.model_id or started,
        converts_from=HALF if answers.command.option("--quantize") else FULL,
        context_tokens=count_of(info.max_total_tokens),
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        cache=Cache("blocks", blocks=int(room), block_tokens=1) if room and 0 < room < 1e12 else None,
        requests_running=count_of(metrics.one("tgi_batch_current_size")),
        requests_waiting=count_of(metrics.one("tgi_queue_size")),
        counters=Counters(
            metrics.total("tgi_request_input_length_sum", EVERY_LABEL),
            metrics.total("tgi_request_generated_tokens_sum", EVERY_LABEL),
        ),
        sleeping=NO,
    )


# OpenVINO Model Server: names of src/metric_config.cpp, 2024 to 2026. It reports requests of text generation as
# graphs, and neither its KV cache nor tokens. --port is that of gRPC; a port for HTTP and metrics are both options.
OVMS_PORT, OVMS_PORT_OPTIONS = 8000, ("--rest-port",)
OVMS_REQUESTS = (
    Request("/metrics", "every 5 s", "None: the HTTP server answers. It loads its models at its start."),
)
# A request of text generation runs a graph; one to a model without a graph is counted apart.
RUNNING: Mapping[str, Identity] = {"ovms_current_graphs": ("name",), "ovms_current_requests": ("name", "version")}
OVMS_NO_METRICS = "Start it with --metrics_enable for its requests."
OVMS_NO_SIZES = "It reports its requests, and no sizes of weights and KV cache."


def matches_ovms(command: Command) -> bool:
    return command.script == "ovms"


def has_own_port(_: Command) -> bool:
    return False


def parse_ovms(answers: Answers) -> EngineReading:
    metrics, command = answers.metrics(), answers.command
    started = command.option("--model-name") or command.option("--source-model")
    listed = [name for each in RUNNING.items() for name, *_ in metrics.by(*each) if name]
    names = list(dict.fromkeys(sorted(listed)))
    return EngineReading(
        version=NO,
        model=name_of(some_of(names, MAX_NAMES) if names else started),
        kv_cache_bytes=NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=metrics.count_all(RUNNING),
        requests_waiting=NO,
        rate=NO,
        sleeping=NO,
        notes=(OVMS_NO_SIZES,) if listed else (OVMS_NO_METRICS, OVMS_NO_SIZES),
    )
