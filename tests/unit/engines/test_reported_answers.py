"""Answers of model servers rebuilt from public reports about wrong memory figures. Each row names its report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memwatch.core.engines import llama_cpp, ollama, openai, sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import Command
from memwatch.core.engines.records import Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers
from memwatch.core.model import Absent

GIB = 1 << 30
INCONSISTENT, NOT_SUPPORTED = Absent.INCONSISTENT, Absent.NOT_SUPPORTED


def config_info(**labels: object) -> str:
    """Return vLLM's description of its cache."""
    every = {"block_size": 16, "cache_dtype": "auto", "engine": 0, "gpu_memory_utilization": 0.9} | labels
    return "vllm:cache_config_info{" + ",".join(f'{name}="{value}"' for name, value in every.items()) + "} 1.0\n"


def of_vllm(text: str, *options: str) -> EngineReading:
    return vllm.parse(Answers({"/metrics": text.encode()}, Command(("vllm", "serve", "m", *options))))


def of_sglang(text: str, **info: Any) -> EngineReading:
    return sglang.parse(Answers({"/metrics": text.encode(), sglang.INFO: json.dumps(info).encode()}))


def of_ollama(*models: dict[str, Any]) -> EngineReading:
    return ollama.parse(Answers({"/api/ps": json.dumps({"models": models}).encode()}))


def of_llama(context: int, slots: int, *options: str) -> EngineReading:
    props = {"default_generation_settings": {"n_ctx": context}, "total_slots": slots, "model_path": "/m.gguf"}
    command = Command(("llama-server", *options), from_environment=())
    return llama_cpp.parse(Answers({"/props": json.dumps(props).encode()}, command))


def of_trtllm(text: str, *options: str) -> EngineReading:
    bodies = {"/prometheus/metrics": text.encode()}
    return tensorrt_llm.parse_serve(Answers(bodies, Command(("trtllm-serve", "m", *options))))


def of_mlx(*models: dict[str, Any], options: tuple[str, ...] = ()) -> EngineReading:
    body = json.dumps({"object": "list", "data": models}).encode()
    return openai.parse(Answers({"/v1/models": body}, Command(("mlx_vlm.server", *options))))


def of_lmdeploy(text: str) -> EngineReading:
    command = Command(("lmdeploy", "serve", "api_server", "m"))
    return openai.parse(Answers({"/metrics": text.encode(), "/v1/models": b'{"data": [{"id": "m"}]}'}, command))


def cells(tokens: int, sequences: int = 1) -> dict[str, object]:
    return {"cache": Cache("cells", tokens=tokens, sequences=sequences, key_dtype="f16", value_dtype="f16")}


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
# Version 1.3: it counts tokens, and names the ranks of an options file.
RANKS = """\
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 1800
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 30
trtllm_parallel_config_info{gpu_count="8",model_name="m",pipeline_parallel_size="1",tensor_parallel_size="8"} 1
"""
OF_ALL_RANKS = of_trtllm(RANKS)
OF_FIRST_RANK = of_trtllm(RANKS, "--enable_attention_dp")
OF_UNKNOWN_RANKS = of_trtllm(RANKS, "--extra_llm_api_options", "/etc/trtllm.yaml")
# Servers that list what is in the cache of Hugging Face. Version 0.7 of one reports which model is loaded.
CACHED = {"id": "mlx-community/Qwen2-VL-2B-Instruct-4bit", "object": "model"}
EMBEDDER = {"id": "sentence-transformers/all-MiniLM-L6-v2", "object": "model"}
OF_PATH = of_mlx(CACHED, EMBEDDER, options=("--model", "/models/GLM-5.3"))
OF_ONE_CACHED = of_mlx(CACHED, options=("--model", "/models/GLM-5.3"))
OF_NONE = of_mlx(CACHED)
OF_LOADED = of_mlx({**CACHED, "loaded": True}, {**EMBEDDER, "loaded": False})
NONE_LOADED = of_mlx({**CACHED, "loaded": False}, {**EMBEDDER, "loaded": False})
TWO_LOADED = of_mlx({**CACHED, "loaded": True}, {**EMBEDDER, "loaded": True})
STATES = of_sglang(rank("token_usage", 0.8) + rank("mamba_usage", 0.8) + rank("full_token_usage", 0.1))
# DeepSeek V4, whose pools report no size; a field of newer servers beside the known ones (sglang #39993).
SEVERAL_POOLS = of_sglang(
    rank("token_usage", 0.31) + rank("num_running_reqs", 4),
    version="0.5.9",
    frontend="rust",
    tp_size=8,
    internal_states=[{"memory_usage": {"weight": 18.71, "kvcache": 0.0, "token_capacity": 975_424}}],
)
# Context parallelism: eight schedulers report the same requests.
WITH_CONTEXT_RANKS = of_sglang(
    "".join(
        f'sglang:{name}{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="{at}"}} {value}\n'
        for at in range(8)
        for name, value in (("num_running_reqs", 12.0), ("num_queue_reqs", 3.0), ("token_usage", 0.4))
    ),
    tp_size=8,
)
# A version whose names have no colon, as exporters that merge texts write them.
WITHOUT_COLONS = of_sglang(
    (rank("token_usage", 0.31) + rank("num_running_reqs", 4) + rank("num_queue_reqs", 2)).replace(
        "sglang:", "sglang_"
    )
)
# Two replicas, of which one is nearly full.
REPLICAS = "".join(
    f'lmdeploy:{name}{{engine="{at}",model_name="m"}} {value}\n'
    for name, values in (
        ("num_requests_running", (3.0, 2.0)),
        ("num_requests_waiting", (1.0, 0.0)),
        ("num_api_requests_waiting", (4.0, 0.0)),
        ("gpu_cache_usage_perc", (0.97, 0.31)),
        ("generation_tokens_total", (900.0, 100.0)),
    )
    for at, value in enumerate(values)
)
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
        pytest.param(
            of_vllm(use(0, 0.0) + running(0, 3)),
            {"kv_cache_ratio": INCONSISTENT, "kv_cache_mean_ratio": INCONSISTENT, "requests_running": 3},
            id="llm-d/llm-d-inference-sim#36",
        ),
        pytest.param(of_vllm(use(0, 0.0) + running(0, 0)), {"kv_cache_ratio": 0.0}, id="the same, idle"),
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
        pytest.param(
            WITHOUT_COLONS,
            {"kv_cache_ratio": 0.31, "requests_running": 4, "requests_waiting": 2, "notes": ()},
            id="sgl-project/sglang#12618, llm-d/llm-d#1970",
        ),
        pytest.param(
            of_lmdeploy(REPLICAS),
            {
                "model": "m",
                "kv_cache_ratio": 0.97,
                "kv_cache_mean_ratio": pytest.approx(0.64),
                "requests_running": 5,
                "requests_waiting": 5,
                "counters": Counters(None, 1000.0),
                "notes": (openai.NO_SIZES,),
            },
            id="InternLM/lmdeploy#3789",
        ),
        pytest.param(
            of_lmdeploy(REPLICAS.replace("lmdeploy:", "lmdeploy_")), {"kv_cache_ratio": 0.97}, id="the same, merged"
        ),
        pytest.param(
            of_lmdeploy("python_gc_objects_collected_total 1\n"),
            {"kv_cache_ratio": NOT_SUPPORTED, "requests_running": NOT_SUPPORTED},
            id="the same with metrics off",
        ),
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
            openai.parse_tgi(Answers({"/metrics": b"tgi_batch_max_total_tokens 13793\ntgi_queue_size 2\n"})),
            {
                "kv_cache_ratio": NOT_SUPPORTED,
                "kv_cache_mean_ratio": NOT_SUPPORTED,
                "cache": Cache("blocks", 13_793, 1),
                "requests_waiting": 2,
            },
            id="huggingface/text-generation-inference#2842",
        ),
        pytest.param(
            of_llama(4096, 4, "--kv-unified-per-slot", "4096"), cells(16_384), id="ggml-org/llama.cpp#24124"
        ),
        pytest.param(
            of_llama(4096, 4, "-c", "8192", "--kv-unified-per-slot", "4096"), cells(8192), id="the same of one size"
        ),
        pytest.param(of_llama(65_536, 2, "-c", "131072"), cells(65_536, 2), id="NousResearch/hermes-agent#29825"),
        pytest.param(of_llama(65_536, 2), cells(65_536, 2), id="the same by variables"),
        pytest.param(
            of_llama(262_144, 2, "-c", "524288", "--parallel", "2", "--no-kv-unified"),
            cells(262_144, 2),
            id="lemonade-sdk/lemonade#3574",
        ),
        pytest.param(
            of_llama(262_144, 2, "-c", "524288", "-np", "2", "-kvu"), cells(524_288), id="the same of one cache"
        ),
        pytest.param(of_llama(1024, 4, "-c", "1024"), cells(1024), id="ggml-org/llama.cpp#23652"),
        pytest.param(of_llama(256, 4, "-c", "1024", "-np", "4"), cells(256, 4), id="the same, divided"),
        pytest.param(of_llama(8192, 4, "-c", "8000"), cells(8192), id="ggml-org/llama.cpp#17300"),
        pytest.param(
            OF_ALL_RANKS,
            {"cache": Cache("blocks", 1000, 32, parallel=8), "rate": Absent.NOT_AVAILABLE, "notes": ()},
            id="NVIDIA/TensorRT-LLM#12545",
        ),
        pytest.param(
            OF_FIRST_RANK,
            {
                "cache": Cache("blocks", 8000, 32, replicas=8, splits_experts=True),
                "kv_cache_ratio": 0.5,
                "kv_cache_mean_ratio": Absent.NOT_AVAILABLE,
                "notes": ("Its use is that of the first of 8 ranks: with attention DP each has its own KV cache.",),
            },
            id="NVIDIA/TensorRT-LLM#13221",
        ),
        pytest.param(
            OF_UNKNOWN_RANKS,
            {
                "cache": None,
                "kv_cache_ratio": 0.5,
                "notes": (
                    "The size of its KV cache is not known: if its file of options enables attention DP, the "
                    "figures are those of the first of 8 ranks.",
                ),
            },
            id="the same by a file",
        ),
        pytest.param(OF_PATH, {"model": "/models/GLM-5.3"}, id="Blaizzy/mlx-vlm#2073"),
        pytest.param(OF_ONE_CACHED, {"model": "/models/GLM-5.3"}, id="Blaizzy/mlx-vlm#1133"),
        pytest.param(OF_NONE, {"model": Absent.NOT_AVAILABLE}, id="the same without a model"),
        pytest.param(OF_LOADED, {"model": CACHED["id"]}, id="Blaizzy/mlx-vlm#2294"),
        pytest.param(NONE_LOADED, {"model": Absent.NOT_AVAILABLE}, id="the same, idle"),
        pytest.param(TWO_LOADED, {"model": Absent.NOT_AVAILABLE}, id="the same of two"),
        pytest.param(
            of_vllm(use(0, 0.1) + use(1, 0.97) + running(0, 0) + running(1, 7)),
            {"kv_cache_ratio": 0.97, "requests_running": 7},
            id="kubernetes-sigs/gateway-api-inference-extension#2950",
        ),
        pytest.param(
            of_vllm('vllm:kv_cache_usage_perc{engine="0",model_name="a model {v2}"} 0.5 1726000000000\n'),
            {"kv_cache_ratio": 0.5},
            id="vllm-project/vllm#56919",
        ),
        pytest.param(
            of_sglang(rank("fwd_occupancy", float("nan")) + rank("token_usage", 0.3) + rank("num_running_reqs", 2)),
            {"kv_cache_ratio": 0.3, "requests_running": 2},
            id="ai-dynamo/aiperf#1025",
        ),
        pytest.param(
            SEVERAL_POOLS,
            {"kv_cache_bytes": INCONSISTENT, "weights_bytes": 160_717_676_216, "kv_cache_ratio": 0.31},
            id="sgl-project/sglang#37852",
        ),
        pytest.param(
            of_sglang(rank("num_running_reqs", 4)),
            {"kv_cache_ratio": Absent.NOT_AVAILABLE, "requests_running": 4},
            id="sgl-project/sglang#21167",
        ),
        pytest.param(
            of_vllm(use(0, 0.02) + config_info(num_gpu_blocks="None", num_cpu_blocks="None")),
            {"kv_cache_bytes": Absent.NOT_AVAILABLE, "cache": None, "kv_cache_ratio": 0.02},
            id="vllm-project/vllm#15719",
        ),
        pytest.param(
            llama_cpp.parse(
                Answers(
                    {"/metrics": b"llamacpp:requests_processing 1\nllamacpp:n_busy_slots_per_decode 1\n"},
                    Command(("llama-server", "-m", "m.gguf")),
                )
            ),
            {"kv_cache_ratio": NOT_SUPPORTED, "requests_running": 1},
            id="defilantech/LLMKube#1373",
        ),
        pytest.param(
            of_sglang(rank("num_running_reqs", 3) + rank("token_usage", 0.2), tp_size=8, dp_size=8),
            {
                "requests_running": 3,
                "kv_cache_ratio": 0.2,
                "kv_cache_mean_ratio": Absent.NOT_AVAILABLE,
                "notes": ("1 of 8 replicas report: its requests and the use of its KV cache are theirs only.",),
            },
            id="sgl-project/sglang#6892",
        ),
        pytest.param(
            of_sglang(rank("num_running_reqs", 3) + rank("token_usage", 0.2), dp_size=2, nnodes=2),
            {"kv_cache_mean_ratio": 0.2, "notes": ()},
            id="the same of two nodes",
        ),
        pytest.param(
            WITH_CONTEXT_RANKS,
            {"requests_running": 12, "requests_waiting": 3, "kv_cache_ratio": 0.4, "notes": ()},
            id="sgl-project/sglang#31896",
        ),
        pytest.param(
            of_llama(54_613, 6, "-c", "327680", "-np", "6"), cells(54_613, 6), id="ggml-org/llama.cpp#11681"
        ),
        pytest.param(
            of_llama(8192, 2, "--ctx-size", "8192", "--parallel", "2", "--kv-unified"),
            cells(8192),
            id="janhq/jan#8534",
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


def test_models_of_a_cache_are_not_said_to_be_loaded() -> None:
    assert OF_NONE.notes[0] == "It lists a model of its cache, and not whether that is loaded."
    assert NONE_LOADED.notes[0] == "None of its 2 models is loaded."
    assert TWO_LOADED.notes[0] == f"It has 2 models loaded: {CACHED['id']}, {EMBEDDER['id']}."


def test_plan_of_ollama_is_named_as_its_plan() -> None:
    """It counts weights that are mapped into RAM twice: 26.7 GiB, of which a GPU holds 13.4 and no program more."""
    assert MAPPED_TWICE.notes == (
        "Ollama counts 26.7 GiB for gemma4:26b, and may leave out a part of its cache, 13.4 GiB of it on GPUs.",
    )


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.24.0", "Ollama plans 2.8 GiB for gemma3:4b, weights and cache together."),
        # 12 GB of 90, 22 of 45, and 3 of 5.2: ollama/ollama#17251, #16763 and #17037.
        ("0.30.8", "Ollama counts 2.8 GiB for gemma3:4b, and may leave out a part of its cache."),
        ("0.32.3", "Ollama counts 2.8 GiB for gemma3:4b, and may leave out a part of its cache."),
    ],
)
def test_size_from_a_runners_log_is_not_said_to_have_the_whole_cache(version: str, words: str) -> None:
    model = {"name": "gemma3:4b", "size": 3_000_000_000, "size_vram": 3_000_000_000, "context_length": 131_072}
    bodies = {"/api/ps": json.dumps({"models": [model]}), "/api/version": json.dumps({"version": version})}

    assert ollama.parse(Answers({path: text.encode() for path, text in bodies.items()})).notes == (words,)


def test_size_without_its_part_on_gpus_is_named() -> None:
    """ollama/ollama#4840: the part is left out if it is 0."""
    model = {"name": "llama3:8b", "size": 5_137_025_024}
    bodies = {"/api/ps": json.dumps({"models": [model]}), "/api/version": json.dumps({"version": "0.1.41"})}

    found = ollama.parse(Answers({path: text.encode() for path, text in bodies.items()}))
    assert found.notes == ("Ollama plans 4.8 GiB for llama3:8b, weights and cache together.",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="vllm-project/vllm#8612"),
        pytest.param('python_gc_objects_collected_total{generation="0"} 6290.0\n', id="vllm-project/vllm#3938"),
        pytest.param('ray_vllm:num_requests_running{model_name="m"} 3.0\n', id="ray-project/ray#59071"),
    ],
)
def test_metrics_without_figures_of_vllm_are_named(text: str) -> None:
    found = of_vllm(text)

    assert (found.requests_running, found.kv_cache_ratio) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert found.notes == (vllm.NO_FIGURES,)
    assert of_vllm(running(0, 3)).notes == ()
