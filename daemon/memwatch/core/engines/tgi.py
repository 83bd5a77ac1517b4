"""Hugging Face TGI (text-generation-router). Names of backends/v3 and router, 2.0 to 3.3.

It reports the tokens that its cache has room for, at its start, and not how many of them are used.
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.engines.command import Command
from memwatch.core.engines.records import Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Request
from memwatch.core.engines.text import EVERY_LABEL, count_of, name_of
from memwatch.core.model import Absent

PORT = 3000


class Info(Struct, frozen=True):
    model_id: str = ""
    version: str = ""
    max_total_tokens: int | None = None


REQUESTS = (
    Request("/metrics", "every 5 s", "None: the router answers. It never unloads its model."),
    Request("/info", "once a minute", "None: the router answers.", form=Info),
    Request("/health", "never", "It generates a token unless the last request succeeded."),
)


def matches(command: Command) -> bool:
    return command.script in ("text-generation-launcher", "text-generation-router", "text-generation-router-v2")


def parse(answers: Answers) -> EngineReading:
    metrics, info = answers.metrics(), answers.json("/info", Info) or Info()
    room = metrics.one("tgi_batch_max_total_tokens")
    return EngineReading(
        version=name_of(info.version),
        model=name_of(info.model_id),
        model_path=info.model_id,
        context_tokens=count_of(info.max_total_tokens),
        kv_cache_ratio=Absent.NOT_SUPPORTED,
        kv_cache_mean_ratio=Absent.NOT_SUPPORTED,
        cache=Cache("blocks", blocks=int(room), block_tokens=1) if room and room < 1e12 else None,
        requests_running=count_of(metrics.one("tgi_batch_current_size")),
        requests_waiting=count_of(metrics.one("tgi_queue_size")),
        counters=Counters(
            metrics.total("tgi_request_input_length_sum", EVERY_LABEL),
            metrics.total("tgi_request_generated_tokens_sum", EVERY_LABEL),
        ),
        sleeping=Absent.NOT_SUPPORTED,
    )
