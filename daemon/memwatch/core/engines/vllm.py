"""vLLM's OpenAI server. Names of vllm/v1/metrics/loggers.py, 0.8 to 0.21; `gpu_cache_usage_perc` up to 0.10.

It reports blocks of its cache and not their bytes, and nothing of its weights: both follow from the model's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import DRAFT_CACHE, FURTHER_NODE, GRPC_ONLY, UNIX_SOCKET, Command
from memwatch.core.engines.records import FULL, HALF, Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Models, Request, VersionAnswer, decode
from memwatch.core.engines.text import (
    EVERY_LABEL,
    VLLM_CORE,
    Exposition,
    Identity,
    bytes_of,
    count_of,
    label,
    name_of,
    note_impossible,
    number_in,
    worst_and_mean,
)
from memwatch.core.model import Absent
from memwatch.core.printable import printable

PORT = 8000
OPTIONS_FILES = ("--config",)
# A worker of NVIDIA Dynamo. Its figures are at the port that a variable names (ai-dynamo/dynamo#4441).
DYNAMO = "dynamo.vllm"
# Further forms of its server: of IBM with gRPC beside HTTP, of Intel, and a file of vLLM that is run by itself.
# With a gateway of another program it listens for gRPC only. Its first server answers /generate only.
API_SERVER, API_FILE = "vllm.entrypoints.openai.api_server", "vllm/entrypoints/openai/api_server.py"
GRPC, DEMONSTRATION = "vllm.entrypoints.grpc_server", "vllm.entrypoints.api_server"
MODULES = frozenset({
    API_SERVER, GRPC, DEMONSTRATION, DYNAMO, "vllm_tgis_adapter", f"ipex_llm.vllm.xpu.{API_SERVER[5:]}",
    f"ipex_llm.vllm.cpu.{API_SERVER[5:]}",
})  # fmt: skip
# Modules of the program `vllm`; the second one until 0.8.
PROGRAMS = ("vllm.entrypoints.cli.main", "vllm.scripts")
UNASKED: Mapping[str, str] = {
    GRPC: GRPC_ONLY,
    DEMONSTRATION: "It is vLLM's server for demonstrations (vllm.entrypoints.api_server): it has no figures.",
}
NO_CORE = "None, at any level of sleep: the API server answers, without its engine."
REQUESTS = (
    Request("/metrics", "every 5 s", NO_CORE),
    Request("/version", "once a minute", NO_CORE, form=VersionAnswer),
    Request("/v1/models", "once a minute", NO_CORE, form=Models),
    Request("/is_sleeping", "never", "It asks the engine core; `/metrics` has the same, without it."),
)
USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
RUNNING = "vllm:num_requests_running"
CONFIG = "vllm:cache_config_info"
PREFIX = "vllm:"
FRACTION = "--gpu-memory-utilization"
# Speculative decoding: a JSON, its fields as options, or the option of versions before 0.9.
SPECULATIVE, DRAFT_FILE = "--speculative-config", ("--speculative-config.model", "--speculative-model")
SLEEP = "vllm:engine_sleep_state"
OFFLOADED = "It sleeps: its weights are in System RAM, and its KV cache is released."
RELEASED = "It sleeps: its KV cache is released."
NO_FIGURES = "Its /metrics has no figures of vLLM: they are off (--disable-log-stats), or another process has them."
DISCARDED = "It sleeps: its weights and its KV cache are released."


class Speculative(Struct, frozen=True):
    """Without a model, the tokens are proposed by layers of the model itself, or by its prompt."""

    model: str | None = None


def matches(command: Command) -> bool:
    served = command.script in ("vllm", "vllm-omni") and command.subcommand == "serve"
    by_module = command.module in PROGRAMS and command.word_after(command.module) == "serve"
    return served or by_module or command.module in MODULES or command.path.endswith(API_FILE)


def has_own_port(command: Command) -> bool:
    return command.module != DYNAMO


def why_unasked(command: Command) -> str:
    """Return why a server has no HTTP API, empty if it has. The engine of a further node has sockets for others."""
    if command.has("--headless"):
        return FURTHER_NODE.format(option="--headless")
    if command.has("--grpc"):
        return GRPC_ONLY
    if command.module in UNASKED:
        return UNASKED[command.module]
    path = command.option("--uds")
    return UNIX_SOCKET.format(path=printable(path)) if path else ""


def parse(answers: Answers) -> EngineReading:
    metrics, model, command = answers.metrics(), answers.model(), answers.command
    started = command.word_after("serve") or command.option("--model")
    info = next(iter(metrics.infos(CONFIG, VLLM_CORE)), b"")
    pools, impossible = find_cache_use(metrics)
    worst, mean = worst_and_mean(pools, impossible)
    draft = find_draft(command, started)
    found = EngineReading(
        version=name_of(answers.version()),
        model=name_of(model.id or started),
        model_path=model.root or started,
        draft_path=draft,
        draft_weights_bytes=Absent.NOT_AVAILABLE if draft else Absent.NOT_SUPPORTED,
        quantization=name_of(command.option("--quantization", "-q")),
        context_tokens=count_of(model.max_model_len or command.number("--max-model-len")),
        kv_cache_ratio=worst,
        kv_cache_mean_ratio=mean,
        requests_running=count_of(metrics.total(RUNNING, VLLM_CORE)),
        requests_waiting=count_of(metrics.total("vllm:num_requests_waiting", VLLM_CORE)),
        counters=Counters(
            metrics.total("vllm:prompt_tokens_total", EVERY_LABEL),
            metrics.total("vllm:generation_tokens_total", EVERY_LABEL),
            metrics.total("vllm:time_to_first_token_seconds_sum", EVERY_LABEL),
            metrics.total("vllm:time_to_first_token_seconds_count", EVERY_LABEL),
        ),
        gpu_fraction=parse_fraction(label(info, "gpu_memory_utilization") or command.option(FRACTION)),
        converts_from=HALF if command.option("--quantization", "-q") else find_dtype(command),
        notes=(*note_impossible(pools, impossible), *note_missing(answers), *((DRAFT_CACHE,) if draft else ())),
    )
    return with_sleep(with_cache(found, metrics, command), metrics)


def find_dtype(command: Command) -> float | None:
    """Return the bytes a number from which on weights are halved: by default those of 32 bits, or never."""
    return None if command.option("--dtype") in ("float", "float32") else FULL


def find_draft(command: Command, started: str) -> str:
    """Return the draft model, empty without one. `[ngram]` was the name of none."""
    options, _ = decode(command.option(SPECULATIVE).encode(), Speculative)
    draft = (options.model if options else "") or command.option(*DRAFT_FILE)
    return "" if draft in (started, "[ngram]", "ngram") else draft


def note_missing(answers: Answers) -> tuple[str, ...]:
    """Return a sentence if the answer has samples, and none of vLLM (PR #3938, with Ray)."""
    return (NO_FIGURES,) if "/metrics" in answers.bodies and not answers.metrics().has(PREFIX) else ()


def find_cache_use(metrics: Exposition) -> tuple[dict[Identity, float], int]:
    """Return the used fraction of each cache, and the number of those whose use cannot be true.

    Models without attention have one block, and use none.
    """
    counts = _numbers(metrics.infos(CONFIG, VLLM_CORE), "num_gpu_blocks")
    has_blocks = not counts or any(blocks != 1 for blocks in counts)
    return metrics.cache_use(USE, RUNNING, has_blocks)


def with_cache(found: EngineReading, metrics: Exposition, command: Command) -> EngineReading:
    """Add the capacity of the cache. Replicas (data parallel) have one sample each."""
    infos = metrics.infos(CONFIG, VLLM_CORE)
    if not infos:
        return found
    parallel, told = command.number("--tensor-parallel-size", "-tp") or 1, _numbers(infos, "kv_cache_memory_bytes")
    if all(told):
        stages = command.number("--pipeline-parallel-size", "-pp") or 1
        return replace(found, kv_cache_bytes=bytes_of(sum(told) * parallel * stages))
    blocks, tokens = _numbers(infos, "num_gpu_blocks"), _numbers(infos, "block_size")
    if not all(blocks) or not all(tokens) or len(set(tokens)) > 1:
        return found
    dtype = label(infos[0], "cache_dtype") or "auto"
    splits = command.has("--enable-expert-parallel", "-ep")
    cache = Cache("blocks", sum(blocks), tokens[0], 0, 1, dtype, dtype, parallel, len(infos), splits)
    return replace(found, cache=cache)


def _numbers(infos: Sequence[bytes], name: str) -> list[int]:
    """Return a label of each replica, 0 where it is no number."""
    return [number_in(label(info, name)) or 0 for info in infos]


def with_sleep(found: EngineReading, metrics: Exposition) -> EngineReading:
    """Level 1 moves the weights to System RAM, level 2 drops them; both release the cache."""
    awake = metrics.one(SLEEP, sleep_state="awake")
    if awake is None:
        return found
    if awake:
        return replace(found, sleeping=False)
    note = OFFLOADED if metrics.one(SLEEP, sleep_state="weights_offloaded") else RELEASED
    note = DISCARDED if metrics.one(SLEEP, sleep_state="discard_all") else note
    weights = 0 if note == DISCARDED else Absent.NOT_AVAILABLE
    return replace(
        found,
        sleeping=True,
        weights_bytes=weights,
        kv_cache_bytes=0,
        cache=None,
        model_path="",
        draft_path="",
        draft_weights_bytes=weights if found.draft_path else found.draft_weights_bytes,
        notes=(*found.notes, note),
    )


def parse_fraction(text: str | None) -> float | Absent:
    try:
        value = float(text or "")
    except ValueError:
        return Absent.NOT_AVAILABLE
    return value if 0 < value <= 1 else Absent.INCONSISTENT
