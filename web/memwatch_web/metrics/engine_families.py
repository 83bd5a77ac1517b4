"""Metrics of model servers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import counter, gauge, info

ENGINE = ("engine",)


def engine_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the memory and the load of each model server."""
    engines = snapshot.engines
    rows = [(one.id, one.kind, one.version, one.model) for one in engines]
    yield info(
        "engine", "Kind, version and model of each model server.", rows, ("engine", "kind", "version", "model")
    )
    more = [((), snapshot.engines_not_followed)] if engines else []
    yield gauge("engines_not_followed", "Model servers beyond the limit of those that are followed.", more, ())
    for name, text in (
        ("weights_bytes", "Weights of a model server in bytes, part of the memory of its processes."),
        ("kv_cache_bytes", "Memory in bytes that a model server reserved for its KV cache."),
        ("kv_cache_used_bytes", "Part of the KV cache in bytes that holds tokens."),
        ("kv_cache_ratio", "Used fraction of the KV cache of the fullest replica or rank, 0–1."),
        ("kv_cache_mean_ratio", "Mean used fraction of the KV caches of all replicas or ranks, 0–1."),
        ("remainder_bytes", "Memory of a model server in bytes without weights and KV cache."),
    ):
        yield gauge(f"engine_{name}", text, [((one.id,), getattr(one, name)) for one in engines], ENGINE)
    requests = [
        ((one.id, state), figure)
        for one in engines
        for state, figure in (("running", one.requests_running), ("waiting", one.requests_waiting))
    ]
    yield gauge("engine_requests", "Requests of a model server now.", requests, ("engine", "state"))
    tokens = [
        ((one.id, kind), figure)
        for one in engines
        for kind, figure in (("prompt", one.prompt_tokens_total), ("generation", one.generation_tokens_total))
    ]
    yield counter("engine_tokens", "Total tokens of a model server since it started.", tokens, ("engine", "kind"))
