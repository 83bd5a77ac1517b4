"""Texts of engines: answers of each kind by path, as its version prints them."""

from __future__ import annotations

import json
from typing import Any

GIB = 1 << 30
BUCKETS = ("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5")


def to_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def vllm_metrics(
    used: float = 0.12,
    running: int = 3,
    waiting: int = 0,
    prompt: float = 52_000,
    generated: float = 1_048_576,
    blocks: str = "19660",
    awake: int = 1,
    offloaded: int = 0,
    model: str = "Qwen/Qwen3-32B",
    cache_bytes: str = "None",
) -> bytes:
    """vLLM 0.11: gauges and counters of one engine core, among the histograms that are most of its text."""
    names = f'engine="0",model_name="{model}"'
    lines = ["# HELP python_gc_objects_collected_total Objects collected during gc", "python_info 1.0"]
    for histogram in ("e2e_request_latency", "inter_token_latency", "request_queue_time", "time_to_first_token"):
        name = f"vllm:{histogram}_seconds"
        lines += [f"# HELP {name} Histogram.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{names},le="{bound}"}} 12.0' for bound in BUCKETS]
        lines += [f"{name}_count{{{names}}} 40.0", f"{name}_sum{{{names}}} 8.0"]
        lines += [f"{name}_created{{{names}}} 1.7e+09"]
    lines += [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        f"vllm:num_requests_running{{{names}}} {running}.0",
        f"vllm:num_requests_waiting{{{names}}} {waiting}.0",
        f'vllm:engine_sleep_state{{{names},sleep_state="awake"}} {awake}.0',
        f'vllm:engine_sleep_state{{{names},sleep_state="weights_offloaded"}} {offloaded}.0',
        f'vllm:engine_sleep_state{{{names},sleep_state="discard_all"}} {int(not awake and not offloaded)}.0',
        f"vllm:kv_cache_usage_perc{{{names}}} {used}",
        f"vllm:prompt_tokens_total{{{names}}} {prompt}",
        f"vllm:prompt_tokens_created{{{names}}} 1.7e+09",
        f"vllm:generation_tokens_total{{{names}}} {generated}",
        f"vllm:generation_tokens_created{{{names}}} 1.7e+09",
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'gpu_memory_utilization="0.9",kv_cache_memory_bytes="{cache_bytes}",num_gpu_blocks="{blocks}",'
        'num_gpu_blocks_override="None",sliding_window="None"} 1.0',
    ]
    return ("\n".join(lines) + "\n").encode()


def vllm(root: str = "Qwen/Qwen3-32B", **metrics: Any) -> dict[str, bytes]:
    listed = {"id": "Qwen/Qwen3-32B", "object": "model", "owned_by": "vllm", "root": root, "max_model_len": 40960}
    return {
        "/metrics": vllm_metrics(**metrics),
        "/version": to_json(version="0.11.0"),
        "/v1/models": to_json(object="list", data=[listed]),
    }


def sglang(tp: int = 1, **changed: Any) -> dict[str, bytes]:
    """SGLang 0.5.5, with --enable-metrics; all schedulers print with --enable-metrics-for-all-schedulers."""
    lines = []
    for rank in range(tp):
        names = f'engine_type="unified",model_name="m",pp_rank="0",tp_rank="{rank}"'
        lines += [
            f"sglang:num_running_reqs{{{names}}} 2.0",
            f"sglang:num_queue_reqs{{{names}}} 1.0",
            f"sglang:token_usage{{{names}}} 0.25",
            f"sglang:num_used_tokens{{{names}}} 117814.0",
            f"sglang:max_total_num_tokens{{{names}}} 471258.0",
            f"sglang:gen_throughput{{{names}}} 41.5",
        ]
    lines += [
        'sglang:prompt_tokens_total{model_name="m"} 9000.0',
        'sglang:generation_tokens_total{model_name="m"} 4000.0',
        'sglang:time_to_first_token_seconds_sum{model_name="m"} 2.0',
        'sglang:time_to_first_token_seconds_count{model_name="m"} 10.0',
    ]
    state = {
        "last_gen_throughput": 41.5,
        "memory_usage": {"weight": 15.28, "kvcache": 57.53, "graph": {"decode": 0.9}},
    }
    info = {
        "model_path": "meta-llama/Llama-3.1-8B-Instruct",
        "tp_size": tp,
        "pp_size": 1,
        "quantization": "fp8",
        "mem_fraction_static": 0.83,
        "context_length": 131072,
        "internal_states": [state],
        "version": "0.5.5",
    }
    return {"/metrics": ("\n".join(lines) + "\n").encode(), "/server_info": to_json(**{**info, **changed})}


def llama_cpp(
    path: str = "/models/tiny.gguf", context: int = 4096, slots: int = 1, **props: Any
) -> dict[str, bytes]:
    """llama.cpp b8000 with --metrics."""
    settings = {"id": 0, "n_ctx": context, "params": {"n_predict": -1, "temperature": 0.8}}
    return {
        "/props": to_json(
            default_generation_settings=settings,
            total_slots=slots,
            model_path=path,
            chat_template="{% for m in messages %}…" * 200,
            build_info="b8000-0123456",
            **{"is_sleeping": False, **props},
        ),
        "/metrics": b"# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.\n"
        b"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 512\n"
        b"llamacpp:tokens_predicted_total 39080\nllamacpp:predicted_tokens_seconds 63.4\n"
        b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\nllamacpp:n_tokens_max 980\n",
        "/models": to_json(
            object="list",
            data=[
                {
                    "id": path,
                    "owned_by": "llamacpp",
                    "meta": {"n_params": 8030261312, "size": 4912898304, "ftype": "Q4_K_M"},
                }
            ],
        ),
    }


def llama_cpp_of_2024(path: str = "/models/7B/ggml-model-q4_0.gguf") -> dict[str, bytes]:
    """llama.cpp's server of January 2024: examples/server/README.md of PR #5157."""
    return {
        "/props": to_json(user_name="", assistant_name=""),
        "/v1/models": to_json(object="list", data=[{"id": path, "object": "model", "owned_by": "llamacpp"}]),
    }


def ollama(*models: tuple[str, int, int], context: int = 4096) -> dict[str, bytes]:
    """Ollama 0.12. `models`: name, size, and the part of it on GPUs."""
    listed = [
        {
            "name": name,
            "model": name,
            "size": size,
            "digest": "2ae6f6dd7a3dd734790bbbf58b8909a606e0e7e97e94b7604e0aa7ae4490e6d8",
            "details": {
                "format": "gguf",
                "family": "llama",
                "parameter_size": "8.0B",
                "quantization_level": "Q4_K_M",
            },
            "expires_at": "2026-06-04T14:38:31.83753-07:00",
            "size_vram": vram,
            "context_length": context,
        }
        for name, size, vram in models
    ]
    return {"/api/ps": to_json(models=listed), "/api/version": to_json(version="0.12.6")}


def tgi() -> dict[str, bytes]:
    """TGI 3.3."""
    return {
        "/metrics": b"tgi_queue_size 2\ntgi_batch_current_size 6\ntgi_batch_max_total_tokens 131072\n"
        b'tgi_request_input_length_bucket{le="1"} 0\ntgi_request_input_length_sum 4000\n'
        b"tgi_request_generated_tokens_sum 8000\n",
        "/info": to_json(
            model_id="mistralai/Mistral-7B-Instruct-v0.3", max_total_tokens=8192, version="3.3.4", docker_label=None
        ),
    }


def tgi_2() -> dict[str, bytes]:
    """TGI 2.0, which has the room of its cache in /info only."""
    return {
        "/metrics": b"tgi_queue_size 0\ntgi_batch_current_size 2\ntgi_batch_current_max_tokens 900\n"
        b"tgi_request_input_length_sum 100\ntgi_request_generated_tokens_sum 70\n",
        "/info": to_json(
            model_id="meta-llama/Llama-3.2-8B-Instruct",
            max_total_tokens=8192,
            max_batch_total_tokens=16384,
            version="2.0.0",
        ),
    }


def trtllm_serve() -> dict[str, bytes]:
    """trtllm-serve 1.1."""
    names = '{engine_type="trtllm",model_name="llama"}'
    text = (
        f"trtllm_kv_cache_utilization{names} 0.5\ntrtllm_kv_cache_max_blocks{names} 1000\n"
        f"trtllm_kv_cache_used_blocks{names} 500\ntrtllm_kv_cache_tokens_per_block{names} 32\n"
        f"trtllm_num_requests_running{names} 7\ntrtllm_num_requests_waiting{names} 0\n"
    )
    return {
        "/prometheus/metrics": text.encode(),
        "/version": to_json(version="1.1.0"),
        "/v1/models": to_json(data=[{"id": "llama", "owned_by": "tensorrt_llm"}]),
    }


def triton() -> dict[str, bytes]:
    """Triton 25.08 with the TensorRT-LLM backend."""

    def line(family: str, kind: str, value: str, figure: float) -> str:
        return f'nv_trt_llm_{family}{{{kind}="{value}",model="tensorrt_llm",version="1"}} {figure:g}'

    rows = [
        line("request_metrics", "request_type", "waiting", 1),
        line("request_metrics", "request_type", "active", 4),
        line("kv_cache_block_metrics", "kv_cache_block_type", "tokens_per", 64),
        line("kv_cache_block_metrics", "kv_cache_block_type", "used", 1560),
        line("kv_cache_block_metrics", "kv_cache_block_type", "max", 6239),
        line("kv_cache_block_metrics", "kv_cache_block_type", "fraction", 0.25),
    ]
    return {"/metrics": ("\n".join(rows) + "\n").encode()}


def triton_of_2019() -> dict[str, bytes]:
    """TensorRT Inference Server 19.10, of which Triton is the later name: models of other backends."""
    lines = [
        f'nv_inference_request_success{{gpu_uuid="GPU-{gpu}",model="modelA",version="1"}} 3\n' for gpu in range(2)
    ]
    return {"/metrics": ("".join(lines) + 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 100\n').encode()}


def triton_of_vllm() -> dict[str, bytes]:
    """Triton 25.08 with the vLLM backend: names of its src/utils/metrics.py, beside those of every backend."""
    labels = '{model="vllm_model",version="1"}'
    text = (
        f"nv_inference_request_success{labels} 3\n"
        f"vllm:prompt_tokens_total{labels} 10\nvllm:generation_tokens_total{labels} 16\n"
        f"vllm:time_to_first_token_seconds_count{labels} 1\nvllm:time_to_first_token_seconds_sum{labels} 0.03\n"
    )
    return {"/metrics": text.encode()}


def lm_studio(*loaded: str, size: int = 5 * GIB) -> dict[str, bytes]:
    """LM Studio 0.4: two downloaded models, and the loaded ones of them."""

    def model(key: str) -> dict[str, Any]:
        instances = [{"id": key, "config": {"context_length": 8192, "parallel": 4}}] if key in loaded else []
        return {
            "type": "llm",
            "publisher": "qwen",
            "key": key,
            "display_name": key,
            "quantization": {"name": "Q4_K_M", "bits_per_weight": 4},
            "size_bytes": size,
            "loaded_instances": instances,
            "max_context_length": 40960,
            "format": "gguf",
        }

    return {"/api/v1/models": to_json(models=[model("qwen3-8b"), model("gpt-oss-20b")])}


def openai() -> dict[str, bytes]:
    return {"/v1/models": listed("mlx-community/Qwen3-4B-4bit")}


def openvino() -> dict[str, bytes]:
    """OpenVINO Model Server 2026.2 with a text generation graph, an embeddings graph and a plain model."""
    text = (
        "# TYPE ovms_current_graphs gauge\n"
        'ovms_current_graphs{name="bge-m3"} 1\n'
        'ovms_current_graphs{name="OpenVINO/Qwen3-8B-int4-ov"} 3\n'
        'ovms_current_requests{name="resnet",version="1"} 2\n'
        'ovms_current_requests{name="resnet",version="2"} 0\n'
    )
    return {"/metrics": text.encode()}


def in_form_of_vllm(prefix: str, model: str, **further: float) -> bytes:
    """Metrics of LMDeploy, Aphrodite, FastDeploy, and of NVIDIA NIM with an empty prefix."""
    values = further | {
        "num_requests_running": 3.0,
        "num_requests_waiting": 1.0,
        "gpu_cache_usage_perc": 0.97,
        "prompt_tokens_total": 52_000.0,
        "generation_tokens_total": 9_000.0,
    }
    return "".join(
        f'{prefix}{name}{{engine="0",model_name="{model}"}} {value}\n' for name, value in values.items()
    ).encode()


def listed(*models: str) -> bytes:
    return to_json(object="list", data=[{"id": one, "object": "model"} for one in models])


def lmdeploy() -> dict[str, bytes]:
    """LMDeploy with its metrics, on by default since its PR #4108."""
    return {"/metrics": in_form_of_vllm("lmdeploy:", "m", num_api_requests_waiting=4.0), "/v1/models": listed("m")}


def nim() -> dict[str, bytes]:
    """NVIDIA NIM for language models: names of its page on observability."""
    return {
        "/v1/metrics": in_form_of_vllm("", "google/gemma-3-1b-it"),
        "/v1/models": listed("google/gemma-3-1b-it"),
    }


def kserve(metrics: bool = True) -> dict[str, bytes]:
    """KServe's server for models of Hugging Face, with vLLM or with transformers."""
    name = "llama3"
    return {
        "/metrics": in_form_of_vllm("vllm:", name) if metrics else b"request_preprocess_seconds_count 0.0\n",
        "/openai/v1/models": listed(name),
    }


def tei() -> dict[str, bytes]:
    """Hugging Face's server of embeddings."""
    return {
        "/metrics": b"te_queue_size 3\nte_embed_count 10\n",
        "/info": to_json(model_id="BAAI/bge-large-en-v1.5", version="1.8.0", max_input_length=512),
    }


def koboldcpp() -> dict[str, bytes]:
    """KoboldCpp 1.56 while it generates, and two more requests wait."""
    return {
        "/api/extra/perf": to_json(last_process=0.4, last_eval=2.1, last_token_count=90, queue=2, idle=0),
        "/api/extra/true_max_context_length": to_json(value=2048),
        "/api/extra/version": to_json(result="KoboldCpp", version="1.56"),
        "/v1/models": listed("koboldcpp/model"),
    }


def local_ai(*loaded: str) -> dict[str, bytes]:
    """LocalAI: two models in its configuration, and the loaded ones of them."""
    return {
        "/v1/models": listed("gpt-4", "llava"),
        "/system": to_json(backends=["llama-cpp"], loaded_models=[{"id": one} for one in loaded]),
    }
