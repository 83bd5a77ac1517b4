"""`memwatch engines`: model servers, their memory and their load."""

from __future__ import annotations

from collections.abc import Iterator

import click

from memwatch.cli.address import Address
from memwatch.cli.context import build_context, check_shape, common
from memwatch.cli.tables import columns
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.engine_view import describe_use
from memwatch.monitor.render.json import advice

NONE = "No model server runs here."
HEAD = ("engine", "model", "weights", "KV cache", "used", "rest", "requests", "tokens/s")
RIGHT = frozenset({2, 3, 4, 5, 7})


@click.command(short_help="Model servers: weights, KV cache, tokens per second.")
@common
def engines(url: Address | None, as_json: bool) -> int:
    """List model servers (vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, TensorRT-LLM) and their use of memory.

    Rates are those of the last 5 s: a direct reading without memwatchd has none.
    """
    context = build_context(url, as_json)
    answer = context.snapshot()
    with check_shape(context.address):
        found = answer.json["engines"] if context.as_json else None
    return context.show(found, lambda: engine_lines(answer.snapshot), answer.is_simulated)


def engine_lines(snapshot: Snapshot) -> Iterator[str]:
    found = snapshot.engines
    if not found:
        yield NONE
        return
    head, *lines = columns([HEAD, *map(_row, found)], right=RIGHT)
    yield head
    for one, line in zip(found, lines, strict=True):
        yield line
        where = " ".join(word for word in (one.title, one.version, one.url) if isinstance(word, str) and word)
        user = wording.DASH if isinstance(one.user, Absent) else one.user
        yield f"      {where}" + (f", PID {one.pid} of {user}" if isinstance(one.pid, int) else "")
        yield from (f"      {note}" for note in (*one.notes, advice(one, snapshot)) if note)
    if snapshot.engines_not_followed:
        yield f"and {snapshot.engines_not_followed} more are not followed"


def _row(one: Engine) -> tuple[str, ...]:
    part, rate = "", one.tokens_per_second
    if not isinstance(one.kv_cache_ratio, Absent):
        mean = None if isinstance(one.kv_cache_mean_ratio, Absent) else one.kv_cache_mean_ratio
        part = f" ({describe_use(one.kv_cache_ratio, mean, wording.ratio)})"
    used = one.kv_cache_used_bytes
    return (
        one.id,
        (wording.DASH if isinstance(one.model, Absent) else one.model)[:40],
        _size(one.weights_bytes),
        _size(one.kv_cache_bytes),
        (part.strip(" ()") or wording.DASH) if isinstance(used, Absent) else _size(used) + part,
        _size(one.remainder_bytes),
        _requests(one),
        wording.DASH if isinstance(rate, Absent) else f"{rate:.0f}",
    )


def _requests(one: Engine) -> str:
    waiting = wording.DASH if isinstance(one.requests_waiting, Absent) else one.requests_waiting
    running = one.requests_running
    return wording.DASH if isinstance(running, Absent) else f"{running} running, {waiting} waiting"


def _size(count: Bytes) -> str:
    return wording.DASH if isinstance(count, Absent) else wording.size(count)
