"""SGLang's server. Names of sglang/srt/observability/metrics_collector.py, 0.4 to 0.5; metrics need
`--enable-metrics`.

`memory_usage` of /server_info (/get_server_info up to 0.5.3) has GiB on one GPU, rounded to 0.01 or 0.001.
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.engines.command import DRAFT_CACHE, FURTHER_NODE, GRPC_ONLY, Command
from memwatch.core.engines.records import Counters, EngineReading
from memwatch.core.engines.requests import Answers, Request
from memwatch.core.engines.text import (
    EVERY_LABEL,
    SGLANG_POOL,
    SGLANG_REPLICA,
    Exposition,
    bytes_of,
    count_of,
    name_of,
    note_impossible,
    ratio_of,
    worst_and_mean,
)
from memwatch.core.model import Absent, Bytes, Quality
from memwatch.core.units import GIB

PORT = 30000
OPTIONS_FILES = ("--config",)
# A worker of NVIDIA Dynamo, see `vllm.DYNAMO`.
DYNAMO = "dynamo.sglang"
# The router of SGLang that starts its servers, each at a port that it chooses.
WITH_ROUTER = "sglang_router.launch_server"
MODULES = frozenset({"sglang.launch_server", "sglang.srt.entrypoints.http_server", WITH_ROUTER, DYNAMO})
UNASKED_ROUTER = (
    "It is a router and the servers that it started, whose ports it chooses. Name the address of each under "
    "[[engines]] to ask it."
)
# Speculative decoding without a model: the prompt proposes tokens.
NO_DRAFT = frozenset({"", "NGRAM", "LOOKAHEAD"})
SAME_FILES = "Its draft model is loaded from the same files: its weights and its KV cache are counted in the rest."
QUEUES = ("queue", "prefill_prealloc_queue", "decode_prealloc_queue")
INFO = "/server_info|/get_server_info"
MAX_GPUS = 4096
SOME_REPLICAS = "{count} of {replicas} replicas report: its requests and the use of its KV cache are theirs only."
NO_METRICS = "Start it with --enable-metrics for requests and tokens."
# Options that leave weights in System RAM: experts of KTransformers, and layers. The server reports those of GPUs.
OFFLOADING = ("--kt-weight-path", "--kt-amx-weight-path", "--cpu-offload-gb")
OFFLOADED = "Its weights are those on GPUs: the ones in System RAM ({option}) are counted in the rest."


class MemoryUsage(Struct, frozen=True):
    weight: float | None = None
    kvcache: float | None = None


class State(Struct, frozen=True):
    memory_usage: MemoryUsage = MemoryUsage()


class Info(Struct, frozen=True):
    """Fields of /server_info: the server's options, and the state of each replica."""

    version: str = ""
    model_path: str = ""
    served_model_name: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    tp_size: int | None = None
    pp_size: int | None = 1
    dp_size: int | None = 1
    nnodes: int | None = 1
    enable_dp_attention: bool | None = False
    mem_fraction_static: float | None = None
    speculative_algorithm: str | None = ""
    speculative_draft_model_path: str | None = ""
    internal_states: list[State] = []


REQUESTS = (
    Request("/metrics", "every 5 s", "None: the HTTP server answers, without a scheduler."),
    Request(
        INFO,
        "once a minute",
        "Each scheduler answers between two steps, also with its memory released. With `--sleep-on-idle` that "
        "wakes an idle CPU core for a moment.",
        form=Info,
    ),
    Request("/health", "never", "It may generate a token, as `/health_generate` does."),
)


def matches(command: Command) -> bool:
    served = command.script == "sglang" and command.subcommand == "serve"
    return served or command.module in MODULES


def why_unasked(command: Command) -> str:
    """Return why a server has no API, empty if it has. At a further node it only answers checks of its health."""
    if command.has("--grpc-mode"):
        return GRPC_ONLY
    if command.module == WITH_ROUTER:
        return UNASKED_ROUTER
    return FURTHER_NODE.format(option="--node-rank") if command.number("--node-rank") else ""


def has_own_port(command: Command) -> bool:
    return command.module != DYNAMO


def parse(answers: Answers) -> EngineReading:
    metrics, info, command = answers.metrics(), answers.json(INFO, Info) or Info(), answers.command
    running = metrics.total("sglang:num_running_reqs", SGLANG_REPLICA)
    usage, gpus = [state.memory_usage for state in info.internal_states], count_gpus(info)
    pools, impossible = find_cache_use(metrics), metrics.count_impossible("sglang:token_usage")
    worst, mean = worst_and_mean(pools, impossible)
    missing = note_missing(metrics, info)
    draft, is_same = find_draft(info, command)
    return EngineReading(
        version=name_of(info.version),
        model=name_of(info.served_model_name or info.model_path or command.option("--model-path", "--model")),
        model_path=info.model_path,
        draft_path=draft,
        draft_weights_bytes=Absent.NOT_AVAILABLE if draft else Absent.NOT_SUPPORTED,
        quantization=name_of(info.quantization),
        context_tokens=count_of(
            info.context_length or metrics.one("sglang:context_len") or command.number("--context-length")
        ),
        weights_bytes=find_bytes([one.weight for one in usage], gpus),
        kv_cache_bytes=find_bytes([one.kvcache for one in usage], gpus),
        kv_cache_ratio=worst,
        kv_cache_mean_ratio=Absent.NOT_AVAILABLE if missing else mean,
        requests_running=count_of(running),
        requests_waiting=find_waiting(metrics),
        counters=Counters(
            metrics.total("sglang:prompt_tokens_total", EVERY_LABEL),
            metrics.total("sglang:generation_tokens_total", EVERY_LABEL),
            metrics.total("sglang:time_to_first_token_seconds_sum", EVERY_LABEL),
            metrics.total("sglang:time_to_first_token_seconds_count", EVERY_LABEL),
        ),
        gpu_fraction=ratio_of(info.mem_fraction_static),
        quality=Quality.MEASURED if gpus == 1 else Quality.DERIVED,
        notes=(
            *((DRAFT_CACHE,) if draft else (SAME_FILES,) if is_same else ()),
            *(OFFLOADED.format(option=one) for one in OFFLOADING if command.option(one) not in ("", "0")),
            *((*note_impossible(pools, impossible), *missing) if "/metrics" in answers.bodies else (NO_METRICS,)),
        ),
    )


def find_draft(info: Info, command: Command) -> tuple[str, bool]:
    """Return the draft model, and whether it is that of the same files (zai-org/GLM-4.5#3).

    The server reports the weights and the KV cache of the model alone.
    """
    algorithm = info.speculative_algorithm or command.option("--speculative-algorithm")
    if algorithm.upper() in NO_DRAFT:
        return "", False
    draft = info.speculative_draft_model_path or command.option(
        "--speculative-draft-model-path", "--speculative-draft-model"
    )
    return ("", True) if draft in ("", info.model_path) else (draft, False)


def note_missing(metrics: Exposition, info: Info) -> tuple[str, ...]:
    """Return a sentence if replicas do not report; nothing without. Replicas of other nodes report there.

    Each has its own rank, `dp_rank`, or `tp_rank` alone, and reports from its first request on. Versions of
    2025 gave all the same labels with `--enable-dp-attention`; the last one that wrote counted (sglang#6892).
    """
    count, replicas = len(metrics.by("sglang:token_usage", ("dp_rank", "tp_rank"))), info.dp_size or 1
    if not 0 < count < replicas <= MAX_GPUS or info.nnodes != 1:
        return ()
    return (SOME_REPLICAS.format(count=count, replicas=replicas),)


def find_waiting(metrics: Exposition) -> int | Absent:
    """Return the requests that wait: also those for a place in the KV cache, with prefill and decode apart.

    A decoding server has them in separate queues, and none in the other (sglang PR #13203).
    """
    return metrics.count_all({f"sglang:num_{name}_reqs": SGLANG_REPLICA for name in QUEUES})


def count_gpus(info: Info) -> int | None:
    """Return the GPUs of the server on this machine, None if a factor is not known.

    Replicas have GPUs of their own, unless they share those of tensor parallelism (`--enable-dp-attention`). Expert
    parallelism is always inside. With `--nnodes`, the processes here are those of a part of the GPUs.
    """
    tensor, stages, copies, nodes = info.tp_size, info.pp_size, info.dp_size, info.nnodes
    if tensor is None or stages is None or copies is None or nodes is None or info.enable_dp_attention is None:
        return None
    if not all(0 < one <= MAX_GPUS for one in (tensor, stages, copies, nodes)):
        return None
    replicas = 1 if info.enable_dp_attention else max(copies, len(info.internal_states))
    return max(1, tensor * stages * replicas // nodes)


def find_bytes(sizes: list[float | None], gpus: int | None) -> Bytes:
    """Return the bytes on all GPUs, of the GiB on the first one of each replica: all have the same part.

    0 is a size that was never set, as of the caches with several pools of DeepSeek V4 (sglang #37852).
    """
    known = [size for size in sizes if size is not None]
    if not gpus or not known or len(known) < len(sizes):
        return Absent.NOT_AVAILABLE
    return bytes_of(sum(known) / len(known) * gpus * GIB) if all(known) else Absent.INCONSISTENT


def find_cache_use(metrics: Exposition) -> dict[tuple[str, ...], float]:
    """Return the used fraction of the KV cache of each rank.

    `token_usage` is that of the fullest pool. For models with state-space layers that may be the pool of their
    states, and the pools of attention count. A rank whose pools are not known makes all unknown.
    """
    states = metrics.by("sglang:mamba_usage", SGLANG_POOL)
    attention = [metrics.by(f"sglang:{name}", SGLANG_POOL) for name in ("full_token_usage", "swa_token_usage")]
    found = metrics.by("sglang:token_usage", SGLANG_POOL)
    for pool in [pool for pool, used in found.items() if 0 < used <= states.get(pool, 0.0)]:
        if pool not in attention[0]:
            return {}
        found[pool] = max(one[pool] for one in attention if pool in one)
    return found
