"""SGLang's server. Names of sglang/srt/observability/metrics_collector.py, 0.4 to 0.5; metrics need
`--enable-metrics`.

`memory_usage` of /server_info (/get_server_info up to 0.5.3) has GiB on one GPU, rounded to 0.01 or 0.001.
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.engines.answers import Answers
from memwatch.engines.command import Command
from memwatch.engines.records import Counters, EngineReading
from memwatch.engines.requests import Request
from memwatch.engines.text import bytes_of, count_of, name_of, ratio_of
from memwatch.model import Quality

PORT = 30000
INFO = "/server_info|/get_server_info"
REQUESTS = (
    Request("/metrics", "every 5 s", "None: the HTTP server answers, without a scheduler."),
    Request(
        INFO,
        "once a minute",
        "Each scheduler answers between two steps, also with its memory released. With `--sleep-on-idle` that "
        "wakes an idle CPU core for a moment.",
    ),
    Request("/health", "never", "It may generate a token, as `/health_generate` does."),
)
GIB = 1 << 30
NO_METRICS = "Start it with --enable-metrics for requests and tokens."


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
    tp_size: int = 1
    pp_size: int = 1
    mem_fraction_static: float | None = None
    internal_states: list[State] = []


def matches(command: Command) -> bool:
    served = command.script == "sglang" and command.subcommand == "serve"
    return served or command.module == "sglang.launch_server"


def parse(answers: Answers) -> EngineReading:
    metrics, info = answers.metrics(), answers.json(INFO, Info) or Info()
    running = metrics.per_rank("sglang:num_running_reqs", "dp_rank")
    usage, gpus = [state.memory_usage for state in info.internal_states], max(1, info.tp_size * info.pp_size)
    return EngineReading(
        version=name_of(info.version),
        model=name_of(info.served_model_name or info.model_path or answers.command.option("--model-path")),
        model_path=info.model_path,
        quantization=name_of(info.quantization),
        context_tokens=count_of(info.context_length or metrics.mean("sglang:context_len")),
        weights_bytes=bytes_of(sum_gib([one.weight for one in usage], gpus)),
        kv_cache_bytes=bytes_of(sum_gib([one.kvcache for one in usage], gpus)),
        kv_cache_ratio=ratio_of(metrics.mean("sglang:token_usage")),
        requests_running=count_of(running),
        requests_waiting=count_of(metrics.per_rank("sglang:num_queue_reqs", "dp_rank")),
        counters=Counters(
            metrics.total("sglang:prompt_tokens_total"),
            metrics.total("sglang:generation_tokens_total"),
            metrics.total("sglang:time_to_first_token_seconds_sum"),
            metrics.total("sglang:time_to_first_token_seconds_count"),
        ),
        gpu_fraction=ratio_of(info.mem_fraction_static),
        quality=Quality.MEASURED if gpus == 1 else Quality.DERIVED,
        notes=() if running is not None else (NO_METRICS,),
    )


def sum_gib(sizes: list[float | None], gpus: int) -> float | None:
    """Return the bytes on all GPUs: each of them has the same part."""
    known = [size for size in sizes if size is not None]
    return sum(known) * gpus * GIB if known and len(known) == len(sizes) else None
