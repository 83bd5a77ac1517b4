"""Answers of model servers rebuilt from public reports about wrong memory figures. Each row names its report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memwatch.engines import ollama, sglang, tensorrt_llm, tgi, vllm
from memwatch.engines.answers import Answers
from memwatch.engines.command import Command
from memwatch.engines.records import Cache, EngineReading
from memwatch.model import Absent

GIB = 1 << 30
INCONSISTENT, NOT_SUPPORTED = Absent.INCONSISTENT, Absent.NOT_SUPPORTED


def config_info(**labels: object) -> str:
    """Return vLLM's description of its cache."""
    every = {"block_size": 16, "cache_dtype": "auto", "engine": 0, "gpu_memory_utilization": 0.9} | labels
    return "vllm:cache_config_info{" + ",".join(f'{name}="{value}"' for name, value in every.items()) + "} 1.0\n"


def of_vllm(text: str, *options: str) -> EngineReading:
    return vllm.parse(Answers({"/metrics": text.encode()}, Command(("vllm", "serve", "m", *options))))


def of_sglang(text: str) -> EngineReading:
    return sglang.parse(Answers({"/metrics": text.encode()}))


def of_ollama(*models: dict[str, Any]) -> EngineReading:
    return ollama.parse(Answers({"/api/ps": json.dumps({"models": models}).encode()}))


def use(engine: int, value: float) -> str:
    return f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {value}\n'


def running(engine: int, count: int) -> str:
    return f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {count}.0\n'


def rank(name: str, value: float, kind: str = "unified") -> str:
    return f'sglang:{name}{{engine_type="{kind}",model_name="m",pp_rank="0",tp_rank="0"}} {value}\n'


BELOW_ZERO = of_vllm(use(3, -0.3875395987328405))
OF_TWO = of_vllm(use(3, -0.3875395987328405) + use(4, 0.21))
PREALLOCATING = of_sglang(
    rank("num_running_reqs", 5, "decode")
    + rank("num_queue_reqs", 0, "decode")
    + rank("num_decode_prealloc_queue_reqs", 17, "decode")
    + rank("num_decode_transfer_queue_reqs", 3, "decode")
)
STATES = of_sglang(rank("token_usage", 0.8) + rank("mamba_usage", 0.8) + rank("full_token_usage", 0.1))
MAPPED_TWICE = of_ollama({"name": "gemma4:26b", "size": 28_668_906_700, "size_vram": 14_388_140_441})


@pytest.mark.parametrize(
    ("found", "figures"),
    [
        pytest.param(
            BELOW_ZERO,
            {"kv_cache_ratio": INCONSISTENT, "kv_cache_mean_ratio": INCONSISTENT},
            id="vllm-project/vllm-ascend#10048",
        ),
        pytest.param(
            OF_TWO, {"kv_cache_ratio": 0.21, "kv_cache_mean_ratio": INCONSISTENT}, id="the same, one of two"
        ),
        pytest.param(
            of_vllm(use(0, 0.0) + running(0, 4) + config_info(num_gpu_blocks=20_000)),
            {"kv_cache_ratio": INCONSISTENT, "requests_running": 4},
            id="vllm-project/vllm-omni#4802",
        ),
        pytest.param(
            of_vllm(use(0, 0.0) + running(0, 4) + config_info(num_gpu_blocks=1)),
            {"kv_cache_ratio": 0.0},
            id="the same without attention",
        ),
        pytest.param(
            of_vllm(use(0, 0.0) + running(0, 0) + use(1, 0.5) + running(1, 4) + config_info(num_gpu_blocks=9)),
            {"kv_cache_ratio": 0.5, "kv_cache_mean_ratio": 0.25},
            id="the same of an idle replica",
        ),
        pytest.param(of_vllm(use(0, float("nan"))), {"kv_cache_ratio": Absent.NOT_AVAILABLE}, id="no value yet"),
        pytest.param(of_vllm(config_info(num_gpu_blocks="None")), {"cache": None}, id="vllm-project/vllm#16560"),
        pytest.param(
            of_vllm(config_info(num_gpu_blocks=9271, num_cpu_blocks=41_000, cpu_offload_gb="0.0")),
            {"cache": Cache("blocks", 9271, 16)},
            id="vllm-project/vllm#28924",
        ),
        pytest.param(
            of_vllm(
                'vllm:vllm_config_info{attention_config="A(block_size=99, cache_dtype=fp8)",'
                'cache_config_block_size="8576",cache_config_num_gpu_blocks="7"} 1.0\n'
                + config_info(num_gpu_blocks=700, block_size=8576)
            ),
            {"cache": Cache("blocks", 700, 8576)},
            id="vllm-project/vllm#44691",
        ),
        pytest.param(PREALLOCATING, {"requests_running": 5, "requests_waiting": 17}, id="sgl-project/sglang#13203"),
        pytest.param(STATES, {"kv_cache_ratio": 0.1}, id="sgl-project/sglang#22555"),
        pytest.param(
            of_sglang(rank("token_usage", -0.02)), {"kv_cache_ratio": INCONSISTENT}, id="the same below zero"
        ),
        pytest.param(
            tensorrt_llm.parse_serve(
                Answers({"/prometheus/metrics": b'trtllm_kv_cache_utilization{model_name="m"} -0.00025\n'})
            ),
            {"kv_cache_ratio": INCONSISTENT, "kv_cache_mean_ratio": INCONSISTENT},
            id="NVIDIA/TensorRT-LLM#11879",
        ),
        pytest.param(
            tgi.parse(Answers({"/metrics": b"tgi_batch_max_total_tokens 13793\ntgi_queue_size 2\n"})),
            {
                "kv_cache_ratio": NOT_SUPPORTED,
                "kv_cache_mean_ratio": NOT_SUPPORTED,
                "cache": Cache("blocks", 13_793, 1),
                "requests_waiting": 2,
            },
            id="huggingface/text-generation-inference#2842",
        ),
        pytest.param(
            MAPPED_TWICE,
            {"weights_bytes": Absent.NOT_AVAILABLE, "kv_cache_bytes": Absent.NOT_AVAILABLE},
            id="ollama/ollama#16637",
        ),
    ],
)
def test_reported_answer_gives_its_figures(found: EngineReading, figures: dict[str, object]) -> None:
    assert {name: getattr(found, name) for name in figures} == figures


def test_impossible_use_of_a_cache_is_named() -> None:
    assert BELOW_ZERO.notes == ("1 of 1 KV caches report an impossible use.",)
    assert OF_TWO.notes == ("1 of 2 KV caches report an impossible use.",)


def test_plan_of_ollama_is_named_as_its_plan() -> None:
    """It counts weights that are mapped into RAM twice: 26.7 GiB, of which a GPU holds 13.4 and no program more."""
    assert MAPPED_TWICE.notes == (
        "Ollama plans 26.7 GiB for gemma4:26b, weights and cache together, 13.4 GiB of it on GPUs.",
    )
