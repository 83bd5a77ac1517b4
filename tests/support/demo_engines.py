"""Model servers of the simulated machines: what they report at each second of the story."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Quality
from support.demo_host import Scene

GIB, MIB = 1 << 30, 1 << 20
# Servers are asked every 5 s.
PERIOD = 5
LOADED_AT = 96
NO = Absent.NOT_SUPPORTED


def spark(scene: Scene) -> Engine:
    """vLLM with a model of 32 billion weights in 8 bits. It listens when its model is loaded."""
    blank = Engine("vllm-3921", "vllm", "vLLM", Absent.NOT_AVAILABLE, 3921, (3921,), "root")
    if scene.second < LOADED_AT:
        return _loading(blank)
    second = scene.second - scene.second % PERIOD
    ratio = round(0.12 + 0.05 * math.sin(second / 40), 3)
    cache = 28 * GIB
    return _serving(
        blank,
        second,
        41.0,
        id="vllm-8000",
        url="http://127.0.0.1:8000",
        version="0.11.0",
        model="Qwen/Qwen3-32B-FP8",
        quantization="fp8",
        context_tokens=40960,
        weights_bytes=31 * GIB,
        kv_cache_bytes=cache,
        kv_cache_used_bytes=int(cache * ratio),
        kv_cache_ratio=ratio,
        kv_cache_mean_ratio=ratio,
        requests_running=3,
        requests_waiting=0,
        time_to_first_token_seconds=0.42,
        sleeping=False,
        gpu_fraction=0.6,
        quality=Quality.DERIVED,
    )


def rtx4090(scene: Scene) -> Engine:
    """llama.cpp with a model of 24 billion weights in 4 bits. It does not report the use of its cache."""
    blank = Engine("llama.cpp-31337", "llama.cpp", "llama.cpp", Absent.NOT_AVAILABLE, 31337, (31337,), "ada")
    if scene.second < LOADED_AT:
        return _loading(blank)
    return _serving(
        blank,
        scene.second - scene.second % PERIOD,
        63.0,
        id="llama.cpp-8080",
        url="http://127.0.0.1:8080",
        version="b8000-0123456",
        model="Mistral-Small-24B-Q4_K_M.gguf",
        context_tokens=8192,
        weights_bytes=13_350 * MIB,
        kv_cache_bytes=1_280 * MIB,
        kv_cache_used_bytes=NO,
        kv_cache_ratio=NO,
        kv_cache_mean_ratio=NO,
        requests_running=1,
        requests_waiting=0,
        sleeping=False,
        quality=Quality.DERIVED,
    )


def _loading(engine: Engine) -> Engine:
    return replace(engine, notes=("It does not listen on a TCP port yet.",))


def _serving(engine: Engine, second: int, rate: float, **figures: object) -> Engine:
    """Return the engine with its counters, whose differences are its rate."""
    began = LOADED_AT - LOADED_AT % PERIOD
    generated = int((second - began) * rate)
    return replace(
        engine,
        generation_tokens_total=generated,
        prompt_tokens_total=3 * generated,
        tokens_per_second=rate,
        prompt_tokens_per_second=3 * rate,
        **figures,
    )


ENGINES: dict[str, Callable[[Scene], Engine]] = {"dgx-spark": spark, "rtx4090": rtx4090}
