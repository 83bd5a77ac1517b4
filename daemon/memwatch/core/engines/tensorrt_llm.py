"""TensorRT-LLM: `trtllm-serve` (1.0 to 1.3, /prometheus/metrics), and Triton's backend of it (port 8002).

All figures are those of the first rank. With attention DP (`--enable_attention_dp` since PR #12105, or an option in
a file) each rank has its own KV cache, of which the others are not reported (PR #13221).

/metrics of `trtllm-serve` is not asked: each answer takes its statistics from the queue, so that another reader
would miss them.
"""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.engines.command import GRPC_ONLY, Command
from memwatch.core.engines.records import Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Models, Request, VersionAnswer
from memwatch.core.engines.text import (
    EVERY_LABEL,
    TRITON_MODEL,
    TRTLLM_ENGINE,
    Exposition,
    count_of,
    label,
    name_of,
    note_impossible,
    number_in,
    worst_and_mean,
)
from memwatch.core.listing import some_of
from memwatch.core.model import Absent

SERVE_PORT, TRITON_PORT, MAX_NAMES = 8000, 8002, 8
SERVE_METRICS = "/prometheus/metrics"
SERVE_REQUESTS = (
    Request(SERVE_METRICS, "every 5 s", "None: the HTTP server answers."),
    Request("/version", "once a minute", "None.", form=VersionAnswer),
    Request("/v1/models", "once a minute", "None.", form=Models),
    Request("/metrics", "never", "Each answer takes its statistics from a queue: another reader misses them."),
)
TRITON_REQUESTS = (
    Request("/metrics", "every 5 s", "None: the port of metrics loads no model."),
    Request("/v2/repository/index", "never", "It reads the repository of models, which may be remote."),
)
USE = "trtllm_kv_cache_utilization"
BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
REQUESTS = "nv_trt_llm_request_metrics"
# Of every model of any backend, since TensorRT Inference Server, whose program was `trtserver`.
SERVED = "nv_inference_request_success"
PARALLEL = "trtllm_parallel_config_info"
# A worker of NVIDIA Dynamo (ai-dynamo/dynamo#6469).
DYNAMO = "dynamo.trtllm"
# Ranks of `trtllm-llmapi-launch`, a shell for each of them, and the ancestor that they share with their server: the
# first one has the same shell, the others the same program that started all shells (mpirun, slurmstepd).
RANKS = {"tensorrt_llm.llmapi.mgmn_leader_node": 1, "tensorrt_llm.llmapi.mgmn_worker_node": 2}
UNASKED_DYNAMO = "It is a worker of NVIDIA Dynamo, whose figures are at a port that its environment names."
# Commands of `trtllm-serve`: the first is the one without a name until 1.0. The router holds no model.
COMMANDS, ROUTER, RANK = ("serve", "mm_embedding_serve"), "disaggregated", "disaggregated_mpi_worker"
UNASKED_RANK = "It is a part of several servers that trtllm-serve starts at once: their addresses are in its file."
NO_TOKENS = "It reports no count of tokens."
VLLM_BACKEND = "Its models of vLLM report tokens, and neither a KV cache nor requests that run."
NOT_TRTLLM = "None of its models is one of TensorRT-LLM: it reports neither a KV cache nor requests that run."
# openai_server.py serves metrics with return_perf_metrics only, and fills those of the cache with the other option.
NO_METRICS = (
    "Set return_perf_metrics and enable_iter_perf_stats in its file of options for its KV cache and requests."
)
NO_PATH = (
    "Its KV cache and requests are not known: before 1.0 its only metrics are a queue that each reader empties "
    "(/metrics), which is not asked."
)
NO_CACHE_METRICS = (
    "Its metrics have no KV cache; those of newer versions do, with enable_iter_perf_stats in its options."
)
FIRST_RANK = "Its use is that of the first of {count} ranks: with attention DP each has its own KV cache."
MAYBE_FIRST_RANK = (
    "The size of its KV cache is not known: if its file of options enables attention DP, the figures are those of "
    "the first of {count} ranks."
)
OPTIONS_FILES = ("--extra-llm-api-options", "--extra-options", "--config")


def matches_serve(command: Command) -> bool:
    is_part = command.script == "trtllm-serve" or command.module == "tensorrt_llm.commands.serve"
    return command.module == DYNAMO or (is_part and command.subcommand != ROUTER)


def rank_depth(command: Command) -> int | None:
    """Return how many generations above a rank its server has an ancestor too, None for other processes."""
    return RANKS.get(command.module)


def why_unasked(command: Command) -> str:
    """Return why a server is not asked. The path of a worker of Dynamo is the one never asked of `trtllm-serve`."""
    if command.module == DYNAMO:
        return UNASKED_DYNAMO
    if command.has("--grpc"):
        return GRPC_ONLY
    return UNASKED_RANK if command.subcommand == RANK else ""


def matches_triton(command: Command) -> bool:
    return command.script in ("tritonserver", "trtserver")


def parse_serve(answers: Answers) -> EngineReading:
    metrics, model, command = answers.metrics(SERVE_METRICS), answers.model(), answers.command
    pools, impossible = metrics.by(USE, TRTLLM_ENGINE), metrics.count_impossible(USE)
    worst, mean = worst_and_mean(pools, impossible)
    ranks, has_caches = count_ranks(metrics, command), has_cache_per_rank(command)
    notes = list(note_impossible(pools, impossible))
    started = find_started(command)
    cache = _cache(
        metrics.total("trtllm_kv_cache_max_blocks", TRTLLM_ENGINE),
        metrics.one("trtllm_kv_cache_tokens_per_block"),
        ranks,
    )
    if ranks > 1 and has_caches:
        mean = Absent.NOT_AVAILABLE
        cache = cache and replace(
            cache, blocks=cache.blocks * ranks, parallel=1, replicas=ranks, splits_experts=True
        )
        notes.append(FIRST_RANK.format(count=ranks))
    elif ranks > 1 and has_caches is None and cache:
        cache = None
        notes.append(MAYBE_FIRST_RANK.format(count=ranks))
    generated = metrics.total("trtllm_generation_tokens_total", EVERY_LABEL)
    if SERVE_METRICS not in answers.bodies:
        notes.append(NO_PATH if answers.version().startswith("0.") else NO_METRICS)
    elif generated is None:
        notes += [NO_TOKENS] if pools or impossible else [NO_TOKENS, NO_CACHE_METRICS]
    return EngineReading(
        version=name_of(answers.version()),
        model=name_of(model.id or started),
        model_path=started or model.id,
        kv_cache_ratio=worst,
        kv_cache_mean_ratio=mean,
        cache=cache,
        requests_running=count_of(metrics.total("trtllm_num_requests_running", TRTLLM_ENGINE)),
        requests_waiting=count_of(metrics.total("trtllm_num_requests_waiting", TRTLLM_ENGINE)),
        counters=Counters(
            metrics.total("trtllm_prompt_tokens_total", EVERY_LABEL),
            generated,
            metrics.total("trtllm_time_to_first_token_seconds_sum", EVERY_LABEL),
            metrics.total("trtllm_time_to_first_token_seconds_count", EVERY_LABEL),
        ),
        rate=Absent.NOT_SUPPORTED if generated is None else Absent.NOT_AVAILABLE,
        sleeping=Absent.NOT_SUPPORTED,
        notes=tuple(notes),
    )


def find_started(command: Command) -> str:
    """Return the model of the command line: `trtllm-serve MODEL` and, since 1.0, `trtllm-serve serve MODEL`."""
    first = command.subcommand
    named = (
        command.word_after(first) if first in COMMANDS else "" if first.startswith("-") or first == RANK else first
    )
    return named or command.option("--model-path", "--model")


def count_ranks(metrics: Exposition, command: Command) -> int:
    """Return the ranks of tensor parallelism. The server reports them since PR #12545 (March 2026)."""
    info = next(iter(metrics.infos(PARALLEL, TRTLLM_ENGINE)), b"")
    told = number_in(label(info, "tensor_parallel_size"))
    return told or command.number("--tp-size", "--tensor-parallel-size") or 1


def has_cache_per_rank(command: Command) -> bool | None:
    """Return True with attention DP, None if a file of options decides that, and nothing of it was read."""
    if command.has("--enable-attention-dp"):
        return True
    is_unread = not command.from_file and any(command.has_option(name) for name in OPTIONS_FILES)
    return None if is_unread else False


def parse_triton(answers: Answers) -> EngineReading:
    metrics = answers.metrics()
    models = [label(one, "model") or "" for one in metrics.infos(BLOCKS, TRITON_MODEL)]
    of_vllm = metrics.has("vllm:")
    others = [label(one, "model") or "" for one in metrics.infos(SERVED, TRITON_MODEL)]
    worst, mean = worst_and_mean(metrics.by(BLOCKS, TRITON_MODEL, kv_cache_block_type="fraction"))
    return EngineReading(
        model=name_of(some_of(list(dict.fromkeys(models or others)), MAX_NAMES)),
        kv_cache_ratio=worst,
        kv_cache_mean_ratio=mean,
        cache=_cache(_block(metrics, "max"), _block(metrics, "tokens_per"), 1) if len(models) == 1 else None,
        requests_running=count_of(metrics.total(REQUESTS, TRITON_MODEL, request_type="active")),
        requests_waiting=count_of(metrics.total(REQUESTS, TRITON_MODEL, request_type="waiting")),
        counters=Counters(
            metrics.total("vllm:prompt_tokens_total", EVERY_LABEL),
            metrics.total("vllm:generation_tokens_total", EVERY_LABEL),
            metrics.total("vllm:time_to_first_token_seconds_sum", EVERY_LABEL),
            metrics.total("vllm:time_to_first_token_seconds_count", EVERY_LABEL),
        ),
        rate=Absent.NOT_AVAILABLE if of_vllm else Absent.NOT_SUPPORTED,
        sleeping=Absent.NOT_SUPPORTED,
        notes=() if models and of_vllm else (NO_TOKENS if models else VLLM_BACKEND if of_vllm else NOT_TRTLLM,),
    )


def _block(metrics: Exposition, kind: str) -> float | None:
    return metrics.one(BLOCKS, kv_cache_block_type=kind)


def _cache(blocks: float | None, tokens: float | None, parallel: int) -> Cache | None:
    if not blocks or not tokens or blocks > 1e12 or tokens > 1e6:
        return None
    return Cache("blocks", blocks=int(blocks), block_tokens=int(tokens), parallel=parallel)
