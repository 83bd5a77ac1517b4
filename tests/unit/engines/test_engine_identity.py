"""Test that reports of one thing count once, and that the fullest of several things counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from memwatch.core.engines import sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import Command
from memwatch.core.engines.records import Engine, ModelSizes
from memwatch.core.engines.requests import Answers
from memwatch.core.engines.server import Rates, build_engine
from memwatch.core.engines.text import EVERY_LABEL, MAX_SAMPLES, VLLM_CORE, Exposition
from memwatch.core.model import Absent
from memwatch.reporting.render.engine_view import describe_engine
from memwatch_monitor.alerts.rules import is_cache_full
from support import engine_texts as texts

GIB = 1 << 30
BLANK = Engine("vllm-8000", "vllm", "vLLM", "http://127.0.0.1:8000")


def vllm_text(*samples: tuple[int, int, float]) -> bytes:
    """vLLM 0.11.1 with --api-server-count: used fraction by engine and API server process (vllm PR #28792)."""
    lines = [
        f'vllm:kv_cache_usage_perc{{engine="{core}",model_name="m",pid="{pid}"}} {used}'
        for core, pid, used in samples
    ]
    return "\n".join([*lines, 'vllm:num_requests_waiting{engine="0",model_name="m"} 200']).encode()


def test_full_cache_of_one_api_server_among_eight_is_full() -> None:
    samples = [(0, pid, 0.998 if pid == 273 else 0.0) for pid in range(271, 279)]
    found = vllm.parse(Answers({"/metrics": vllm_text(*samples)}))

    assert (found.kv_cache_ratio, found.kv_cache_mean_ratio) == (0.998, 0.998)
    assert is_cache_full(build_engine(BLANK, found, Rates(), ModelSizes())) is True


def test_fullest_of_eight_engines_is_shown_and_alerts() -> None:
    samples = [(core, 1, 1.0 if core == 5 else 0.2) for core in range(8)]
    found = vllm.parse(Answers({"/metrics": vllm_text(*samples)}))
    engine = build_engine(BLANK, found, Rates(), ModelSizes(kv_cache_bytes=80 * GIB))

    assert found.kv_cache_ratio == 1.0
    assert found.kv_cache_mean_ratio == pytest.approx(0.3)
    assert engine.kv_cache_used_bytes == pytest.approx(24 * GIB, rel=1e-6)  # of all of them
    assert is_cache_full(engine) is True
    assert describe_engine(engine).endswith("KV 100%, mean 30% · 200 waiting")


def test_requests_and_blocks_of_several_processes_count_once() -> None:
    one = texts.vllm_metrics(running=3, waiting=2)
    both = b"".join(one.replace(b'engine="0"', b'engine="0",pid="%d"' % pid) for pid in (271, 272))
    assert vllm.parse(Answers({"/metrics": both})) == vllm.parse(Answers({"/metrics": one}))


def test_replicas_with_different_caches_are_summed() -> None:
    two = texts.vllm_metrics(blocks="100") + texts.vllm_metrics(blocks="300").replace(b'engine="0"', b'engine="1"')
    found = vllm.parse(Answers({"/metrics": two}))
    assert found.cache is not None
    assert (found.cache.blocks, found.cache.replicas, found.cache.splits_experts) == (400, 2, False)


def test_replica_without_its_blocks_makes_the_cache_unknown() -> None:
    two = texts.vllm_metrics() + texts.vllm_metrics(blocks="None").replace(b'engine="0"', b'engine="1"')
    assert vllm.parse(Answers({"/metrics": two})).cache is None


def test_experts_that_replicas_share_are_no_copies() -> None:
    command = Command(("vllm", "serve", "m", "--data-parallel-size", "2", "--enable-expert-parallel"))
    found = vllm.parse(Answers(texts.vllm(), command))
    assert found.cache is not None
    assert found.cache.splits_experts is True


def parse_sglang(count: int, **info: Any) -> tuple[Any, Any]:
    state = {"memory_usage": {"weight": 82.5, "kvcache": 24.1, "token_capacity": 400000}}
    body = {"version": "0.5.19", "model_path": "m", "internal_states": [state] * count, **info}
    found = sglang.parse(Answers({sglang.INFO: json.dumps(body).encode()}))
    return found.weights_bytes, found.kv_cache_bytes


@pytest.mark.parametrize(
    ("count", "info"),
    [
        (8, {"tp_size": 8, "dp_size": 8, "ep_size": 8, "enable_dp_attention": True}),
        (4, {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}),
        (1, {"tp_size": 8, "ep_size": 8}),
        (2, {"tp_size": 4, "dp_size": 2}),
        (2, {"tp_size": 2, "pp_size": 2, "dp_size": 2}),
        (1, {"tp_size": 4, "dp_size": 2}),  # of the first replica only
        (1, {"tp_size": 16, "nnodes": 2}),  # those of this machine
        (16, {"tp_size": 16, "dp_size": 16, "nnodes": 2, "enable_dp_attention": True}),
    ],
)
def test_sizes_of_sglang_count_each_of_eight_gpus_once(count: int, info: dict[str, Any]) -> None:
    """Ranks of dp-attention and of experts lie inside those of tensor parallelism (sglang #3359, #23933)."""
    weights, cache = parse_sglang(count, **info)
    assert weights == int(82.5 * 8 * GIB)
    assert cache == pytest.approx(24.1 * 8 * GIB, abs=2)


def sglang_text(**usage: Sequence[float]) -> bytes:
    lines = [
        f'sglang:{name}{{engine_type="unified",model_name="m",tp_rank="{rank}",dp_rank="{rank}"}} {used}'
        for name, ranks in usage.items()
        for rank, used in enumerate(ranks)
    ]
    return "\n".join(lines).encode()


def test_full_rank_of_eight_is_shown_and_alerts() -> None:
    text = sglang_text(token_usage=[0.1] * 7 + [0.99], num_queue_reqs=[0] * 7 + [12])
    found = sglang.parse(Answers({"/metrics": text}))
    assert found.kv_cache_ratio == 0.99
    assert found.kv_cache_mean_ratio == pytest.approx(1.69 / 8)
    assert is_cache_full(build_engine(BLANK, found, Rates(), ModelSizes())) is True


@pytest.mark.parametrize(
    ("usage", "ratio"),
    [
        ({"token_usage": [0.98], "full_token_usage": [0.3], "mamba_usage": [0.98]}, 0.3),
        ({"token_usage": [0.98], "full_token_usage": [0.3], "swa_token_usage": [0.5], "mamba_usage": [0.98]}, 0.5),
        ({"token_usage": [0.6], "full_token_usage": [0.6], "mamba_usage": [0.2]}, 0.6),
        ({"token_usage": [0.6], "full_token_usage": [0.0], "mamba_usage": [0.0]}, 0.6),  # no hybrid model
        ({"token_usage": [0.98], "mamba_usage": [0.98]}, Absent.NOT_AVAILABLE),
        ({"token_usage": [0.98, 0.1], "mamba_usage": [0.98, 0.0]}, Absent.NOT_AVAILABLE),
    ],
)
def test_pool_of_states_is_not_the_cache(usage: dict[str, list[float]], ratio: float | Absent) -> None:
    assert sglang.parse(Answers({"/metrics": sglang_text(**usage)})).kv_cache_ratio == ratio


def test_models_of_triton_are_told_apart() -> None:
    text = texts.triton()["/metrics"]
    other = text.replace(b'model="tensorrt_llm"', b'model="small"').replace(b"0.25", b"0.97")
    found = tensorrt_llm.parse_triton(Answers({"/metrics": text + other}))
    assert found.model == "tensorrt_llm, small"
    assert found.kv_cache_ratio == 0.97
    assert found.kv_cache_mean_ratio == pytest.approx(0.61)
    assert (found.requests_running, found.requests_waiting, found.cache) == (8, 2, None)


def test_counters_of_different_labels_add_up_and_those_of_processes_do_not() -> None:
    text = Exposition(b'a_total{user="x",pid="1"} 5\na_total{user="x",pid="2"} 4\na_total{pid="1",user="y"} 3\n')
    assert text.total("a_total", EVERY_LABEL) == 8


def test_more_samples_than_are_read_give_no_figure() -> None:
    """A part of them would be a wrong sum."""
    lines = [f'a{{engine="{number}"}} 1\n' for number in range(MAX_SAMPLES + 1)]
    assert Exposition("".join(lines[:-1]).encode()).total("a", VLLM_CORE) == MAX_SAMPLES
    assert Exposition("".join(lines).encode()).total("a", VLLM_CORE) is None
