"""`memwatch engines`: model servers, their memory and their load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from memwatch.cli.address import Address
from memwatch.cli.context import build_context, check_shape, common
from memwatch.cli.tables import columns
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.engine_view import describe_use

Json = dict[str, Any]
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
        found = answer.json["engines"]
        more = answer.json.get("engines_not_followed", 0)
    return context.show(found, lambda: engine_lines(found, more), answer.is_simulated)


def engine_lines(found: list[Json], not_followed: int = 0) -> Iterator[str]:
    if not found:
        yield NONE
        return
    head, *lines = columns([HEAD, *map(_row, found)], right=RIGHT)
    yield head
    for one, line in zip(found, lines, strict=True):
        yield line
        where = " ".join(filter(None, (one["title"], one["version"], one["url"])))
        who = f", PID {one['pid']} of {one['user'] or wording.DASH}" if one["pid"] else ""
        yield f"      {where}{who}"
        yield from (f"      {note}" for note in (*one["notes"], *([one["advice"]] if one.get("advice") else ())))
    if not_followed:
        yield f"and {not_followed} more are not followed"


def _row(one: Json) -> tuple[str, ...]:
    ratio, mean = one["kv_cache_ratio"], one.get("kv_cache_mean_ratio")
    part = "" if ratio is None else f" ({describe_use(ratio, mean, wording.ratio)})"
    used = _size(one["kv_cache_used_bytes"]) + part if one["kv_cache_used_bytes"] is not None else part.strip(" ()")
    running, waiting = one["requests_running"], one["requests_waiting"]
    requests = wording.DASH if running is None else f"{running} running, {_count(waiting)} waiting"
    rate = one["tokens_per_second"]
    return (
        one["id"],
        str(one["model"] or wording.DASH)[:40],
        _size(one["weights_bytes"]),
        _size(one["kv_cache_bytes"]),
        used or wording.DASH,
        _size(one["remainder_bytes"]),
        requests,
        wording.DASH if rate is None else f"{rate:.0f}",
    )


def _size(count: int | None) -> str:
    return wording.DASH if count is None else wording.size(count)


def _count(number: int | None) -> str:
    return wording.DASH if number is None else str(number)
