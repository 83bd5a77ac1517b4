"""Answers of model servers with one corrupted field, and the figures that may change with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from memwatch.core.engines.command import Command
from memwatch.core.engines.kinds import KIND_BY_NAME, KINDS
from memwatch.core.engines.records import EngineReading
from memwatch.core.engines.requests import Answers
from memwatch.core.model import Absent, Quality
from support import engine_texts as texts
from support.answer_corruption import corrupt
from support.field_law import Finding

GIB = 1 << 30
Fields = Mapping[str, frozenset[str]]
ENGINES = "engines"


def figures(*names: str) -> frozenset[str]:
    return frozenset(names)


EVERY = figures(*EngineReading.__struct_fields__) - {"notes"}
USE = figures("kv_cache_ratio", "kv_cache_mean_ratio")
SIZES = figures("weights_bytes", "kv_cache_bytes", "quality")
ASLEEP = figures("sleeping", "weights_bytes", "kv_cache_bytes", "cache", "model_path", "quality", *USE)
# Figures that may change with a field. One that contains others may change theirs as well.
DEPENDENT: Mapping[str, Mapping[str, Fields]] = {
    "vllm": {
        "/metrics": {
            "vllm:kv_cache_usage_perc": USE,
            "vllm:num_requests_running": figures("requests_running"),
            "vllm:num_requests_waiting": figures("requests_waiting"),
            "vllm:cache_config_info": figures("cache", "kv_cache_bytes", "gpu_fraction"),
            "vllm:engine_sleep_state": ASLEEP,
            "vllm:prompt_tokens_total": figures("counters.prompt_tokens"),
            "vllm:generation_tokens_total": figures("counters.generation_tokens"),
            "vllm:time_to_first_token_seconds_sum": figures("counters.first_token_seconds"),
            "vllm:time_to_first_token_seconds_count": figures("counters.first_tokens"),
        },
        "/version": {"version": figures("version")},
        "/v1/models": {
            "data.id": figures("model"),
            "data.root": figures("model_path"),
            "data.max_model_len": figures("context_tokens"),
        },
    },
    "sglang": {
        "/metrics": {
            "sglang:token_usage": USE,
            "sglang:full_token_usage": USE,
            "sglang:mamba_usage": USE,
            "sglang:num_running_reqs": figures("requests_running"),
            "sglang:num_queue_reqs": figures("requests_waiting"),
            "sglang:prompt_tokens_total": figures("counters.prompt_tokens"),
            "sglang:generation_tokens_total": figures("counters.generation_tokens"),
            "sglang:time_to_first_token_seconds_sum": figures("counters.first_token_seconds"),
            "sglang:time_to_first_token_seconds_count": figures("counters.first_tokens"),
        },
        "/server_info|/get_server_info": {
            "version": figures("version"),
            "model_path": figures("model", "model_path"),
            "served_model_name": figures("model"),
            "quantization": figures("quantization"),
            "context_length": figures("context_tokens"),
            "mem_fraction_static": figures("gpu_fraction"),
            **dict.fromkeys(("tp_size", "pp_size", "nnodes", "enable_dp_attention"), SIZES),
            # More replicas than report: no mean is known.
            "dp_size": SIZES | {"kv_cache_mean_ratio"},
            "internal_states": figures("quality"),
            "internal_states.memory_usage.weight": figures("weights_bytes"),
            "internal_states.memory_usage.kvcache": figures("kv_cache_bytes"),
        },
    },
    "llama.cpp": {
        "/health": {"sleeping": ASLEEP},
        "/props": {
            "default_generation_settings.n_ctx": figures("context_tokens", "cache"),
            "total_slots": figures("cache"),
            "model_path": figures("model", "model_path"),
            "model_alias": figures("model"),
            "build_info": figures("version"),
            "is_sleeping": ASLEEP,
            "role": EVERY,
        },
        "/metrics": {
            "llamacpp:prompt_tokens_total": figures("counters.prompt_tokens"),
            "llamacpp:tokens_predicted_total": figures("counters.generation_tokens"),
            "llamacpp:requests_processing": figures("requests_running"),
            "llamacpp:requests_deferred": figures("requests_waiting"),
            "llamacpp:kv_cache_usage_ratio": USE,
        },
        "/models": {
            "data.id": figures("model"),
            "data.meta.size": figures("weights_bytes"),
            "data.meta.ftype": figures("quantization"),
        },
        "/v1/models": {"data.id": figures("model")},
    },
    "ollama": {
        "/api/ps": {
            "models": figures("weights_bytes", "kv_cache_bytes", "sleeping", "model_path"),
            "models.name": figures("model"),
            "models.details.quantization_level": figures("quantization"),
            "models.context_length": figures("context_tokens", "cache"),
        },
        "/api/version": {"version": figures("version")},
    },
    "lm-studio": {
        "/api/v1/models|/api/v0/models": {
            "models": figures("model", "weights_bytes", "kv_cache_bytes", "sleeping"),
            "models.loaded_instances": figures("quantization", "weights_bytes", "kv_cache_bytes", "sleeping"),
            "models.size_bytes": figures("weights_bytes"),
            "models.quantization.name": figures("quantization"),
            "models.loaded_instances.id": figures("model"),
            "models.loaded_instances.config.context_length": figures("context_tokens"),
        },
    },
    "tgi": {
        "/metrics": {
            "tgi_queue_size": figures("requests_waiting"),
            "tgi_batch_current_size": figures("requests_running"),
            "tgi_batch_max_total_tokens": figures("cache"),
            "tgi_request_input_length_sum": figures("counters.prompt_tokens"),
            "tgi_request_generated_tokens_sum": figures("counters.generation_tokens"),
        },
        "/info": {
            "model_id": figures("model", "model_path"),
            "max_total_tokens": figures("context_tokens"),
            "max_batch_total_tokens": figures("cache"),
            "version": figures("version"),
        },
    },
    "tensorrt-llm": {
        "/prometheus/metrics": {
            "trtllm_kv_cache_utilization": USE,
            "trtllm_kv_cache_max_blocks": figures("cache"),
            "trtllm_kv_cache_tokens_per_block": figures("cache"),
            "trtllm_num_requests_running": figures("requests_running"),
            "trtllm_num_requests_waiting": figures("requests_waiting"),
        },
        "/version": {"version": figures("version")},
        "/v1/models": {"data.id": figures("model", "model_path")},
    },
    "triton": {
        "/metrics": {
            "nv_trt_llm_kv_cache_block_metrics": figures("cache", "model", *USE),
            "nv_trt_llm_request_metrics": figures("requests_running", "requests_waiting"),
            "nv_inference_request_success": figures("model"),
            "vllm:prompt_tokens_total": figures("counters.prompt_tokens"),
            "vllm:generation_tokens_total": figures("counters.generation_tokens"),
            "vllm:time_to_first_token_seconds_sum": figures("counters.first_token_seconds"),
            "vllm:time_to_first_token_seconds_count": figures("counters.first_tokens"),
        },
    },
    "openvino": {
        "/metrics": {
            "ovms_current_graphs": figures("model", "requests_running"),
            "ovms_current_requests": figures("model", "requests_running"),
        },
    },
    "openai": {
        "/metrics": {
            "lmdeploy:gpu_cache_usage_perc": USE,
            "lmdeploy:num_requests_running": figures("requests_running"),
            "lmdeploy:num_requests_waiting": figures("requests_waiting"),
            "lmdeploy:num_api_requests_waiting": figures("requests_waiting"),
            "lmdeploy:prompt_tokens_total": figures("counters.prompt_tokens"),
            "lmdeploy:generation_tokens_total": figures("counters.generation_tokens"),
            "te_queue_size": figures("requests_waiting"),
            "vllm:gpu_cache_usage_perc": USE,
            "vllm:num_requests_running": figures("requests_running"),
            "vllm:num_requests_waiting": figures("requests_waiting"),
            "vllm:prompt_tokens_total": figures("counters.prompt_tokens"),
            "vllm:generation_tokens_total": figures("counters.generation_tokens"),
        },
        "/v1/metrics": {
            "gpu_cache_usage_perc": USE,
            "num_requests_running": figures("requests_running"),
            "num_requests_waiting": figures("requests_waiting"),
            "prompt_tokens_total": figures("counters.prompt_tokens"),
            "generation_tokens_total": figures("counters.generation_tokens"),
        },
        "/api/extra/perf": {"queue": figures("requests_waiting"), "idle": figures("requests_running")},
        "/api/extra/true_max_context_length": {"value": figures("context_tokens")},
        "/api/extra/version": {"version": figures("version")},
        "/v1/models": {"data.id": figures("model")},
        "/models": {"data.id": figures("model")},
        "/openai/v1/models": {"data.id": figures("model")},
        "/system": {"loaded_models.id": figures("model")},
        "/info": {
            "model_id": figures("model", "model_path"),
            "version": figures("version"),
            "max_input_length": figures("context_tokens"),
        },
    },
}
VLLM = Command(("vllm", "serve", "Qwen/Qwen3-32B", "-tp", "2"))
LMDEPLOY = Command(("lmdeploy", "serve", "api_server", "m"))
NIM = Command(("python3", "-m", "nim_llm_sdk.entrypoints.launch"))
TEI = Command(("text-embeddings-router", "--model-id", "BAAI/bge-large-en-v1.5"))
KOBOLD = Command(("/bin/python3", "./koboldcpp.py", "--config", "chat.kcpps"))
KSERVE = Command(("python", "-m", "huggingfaceserver", "--backend=vllm"))
INFINITY = Command(("infinity_emb", "v2", "--model-id", "m"))
LOCAL_AI = Command(("/usr/bin/local-ai", "run"))
LLAMA = Command(("llama-server", "-np", "4"))
RUNNER = Command(("/usr/lib/ollama/llama-server", "--model", "/m/sha256-1", "-np", "1"))


def replicas(count: int) -> dict[str, bytes]:
    """vLLM with several engines, of which one is full, each seen by two API servers."""
    parts = [
        texts.vllm_metrics(used=used).replace(b'engine="0"', b'engine="%d",pid="%d"' % (number, pid))
        for number in range(count)
        for pid, used in ((271, 0.998 if number == 1 else 0.3), (272, 0.0))
    ]
    return {**texts.vllm(), "/metrics": without_histograms(b"".join(parts))}


def without_histograms(text: bytes) -> bytes:
    """Most lines of vLLM are their buckets, which no figure depends on."""
    return b"".join(line for line in text.splitlines(keepends=True) if b"_bucket" not in line)


def vllm(**metrics: Any) -> dict[str, bytes]:
    return {**texts.vllm(), "/metrics": without_histograms(texts.vllm_metrics(**metrics))}


def hybrid() -> dict[str, bytes]:
    """SGLang with dp-attention and state-space layers."""
    state = {"memory_usage": {"weight": 82.5, "kvcache": 24.1, "token_capacity": 400000}}
    more = {"dp_size": 2, "enable_dp_attention": True, "internal_states": [state, state], "served_model_name": "m"}
    found = texts.sglang(tp=2, nnodes=1, **more)
    lines = [
        f'sglang:{name}{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="{rank}"}} {used}\n'
        for name, used in (("full_token_usage", 0.2), ("mamba_usage", 0.25))
        for rank in range(2)
    ]
    return {**found, "/metrics": found["/metrics"] + "".join(lines).encode()}


def ik_asleep() -> dict[str, bytes]:
    """Return the answers of a sleeping ik_llama.cpp: its /props is not asked, /models was before."""
    return {"/health": b'{"status": "ok", "sleeping": true}', "/models": texts.llama_cpp()["/models"]}


# Requests for one of several paths.
ALTERNATIVES = {
    path: one.path for kind in KINDS for one in kind.requests for path in one.path.split("|") if "|" in one.path
}


def asked(answers: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the answers by the paths of requests."""
    return {ALTERNATIVES.get(path, path): body for path, body in answers.items()}


# Kind, answers, command line, and that of the runner.
TEXTS: Mapping[str, tuple[str, Mapping[str, bytes], Command, Command]] = {
    "vllm": ("vllm", vllm(), VLLM, Command()),
    "vllm asleep": ("vllm", vllm(awake=0, offloaded=1), VLLM, Command()),
    "vllm absolute cache": ("vllm", vllm(cache_bytes=str(20 * GIB)), VLLM, Command()),
    "vllm replicas": ("vllm", replicas(2), VLLM, Command()),
    "sglang": ("sglang", texts.sglang(), Command(), Command()),
    "sglang hybrid": ("sglang", hybrid(), Command(), Command()),
    "llama.cpp": ("llama.cpp", texts.llama_cpp(slots=4, model_alias="tiny"), LLAMA, Command()),
    "llama.cpp asleep": ("llama.cpp", texts.llama_cpp(is_sleeping=True), LLAMA, Command()),
    "ik_llama.cpp asleep": ("llama.cpp", ik_asleep(), LLAMA, Command()),
    "llama.cpp of 2024": ("llama.cpp", texts.llama_cpp_of_2024(), LLAMA, Command()),
    "ollama": ("ollama", texts.ollama(("qwen3:8b", 6 * GIB, 6 * GIB)), Command(), RUNNER),
    "ollama two": ("ollama", texts.ollama(("a:1", 4 * GIB, 0), ("b:2", 2 * GIB, GIB)), Command(), RUNNER),
    "ollama empty": ("ollama", texts.ollama(), Command(), Command()),
    "lm-studio": ("lm-studio", texts.lm_studio("qwen3-8b"), Command(), Command()),
    "lm-studio empty": ("lm-studio", texts.lm_studio(), Command(), Command()),
    "tgi": ("tgi", texts.tgi(), Command(), Command()),
    "tgi 2.0": ("tgi", texts.tgi_2(), Command(), Command()),
    "tensorrt-llm": ("tensorrt-llm", texts.trtllm_serve(), Command(), Command()),
    "triton": ("triton", texts.triton(), Command(), Command()),
    "triton without TensorRT-LLM": ("triton", texts.triton_of_2019(), Command(), Command()),
    "triton with vLLM": ("triton", texts.triton_of_vllm(), Command(), Command()),
    "openvino": ("openvino", texts.openvino(), Command(), Command()),
    "openai": ("openai", texts.openai(), Command(), Command()),
    "lmdeploy": ("openai", texts.lmdeploy(), LMDEPLOY, Command()),
    "nim": ("openai", texts.nim(), NIM, Command()),
    "kserve": ("openai", texts.kserve(), KSERVE, Command()),
    "local-ai": ("openai", texts.local_ai("gpt-4"), LOCAL_AI, Command()),
    "tei": ("openai", texts.tei(), TEI, Command()),
    "infinity": ("openai", {"/models": texts.listed("m")}, INFINITY, Command()),
    "koboldcpp": ("openai", texts.koboldcpp(), KOBOLD, Command()),
    # Many samples.
    "vllm whole": ("vllm", texts.vllm(), VLLM, Command()),
    "sglang wide": ("sglang", texts.sglang(tp=8), Command(), Command()),
}
LONG = figures("vllm whole", "vllm absolute cache", "vllm replicas", "sglang wide")


def read(name: str, bodies: Mapping[str, bytes]) -> dict[str, Any]:
    """Return every figure of the answers by name."""
    kind, _, command, inner = TEXTS[name]
    found = KIND_BY_NAME[kind].parse(Answers(bodies, command, inner))
    shown = {field: getattr(found, field) for field in (EVERY | {"notes"}) - {"counters"}}
    return shown | {
        f"counters.{field}": getattr(found.counters, field) for field in found.counters.__struct_fields__
    }


def allowed_for(fields: Fields, field: str) -> frozenset[str]:
    """Return the figures of a field, of those that it contains, and of those that contain it as a list."""
    return frozenset().union(
        *(names for one, names in fields.items() if one == field or one.startswith(f"{field}.")),
    )


@cache
def corrupted(name: str) -> tuple[tuple[str, str, str, dict[str, Any]], ...]:
    """Return path, field, corruption and the figures of each corrupted text."""
    bodies = asked(TEXTS[name][1])
    return tuple(
        (path, field, how, read(name, {**bodies, path: changed}))
        for path, body in bodies.items()
        for field, how, changed in corrupt(body)
    )


def findings(name: str) -> Iterator[Finding]:
    """Yield the corruptions of a text that a figure follows without a mark, and those that break the law."""
    kind, sound = TEXTS[name][0], read(name, asked(TEXTS[name][1]))
    for path, field, how, found in corrupted(name):
        changed = {one for one in sound if sound[one] != found[one]} - {"notes"}
        wrong = sorted(changed - allowed_for(DEPENDENT[kind].get(path, {}), field))
        if wrong:
            yield Finding(
                ENGINES, f"{kind}: {field}", how, f"{kind} {path} {field} {how} changes {', '.join(wrong)}"
            )
        elif not is_marked(sound, found) and any(not is_unknown(found[one]) for one in changed):
            yield Finding(ENGINES, f"{kind}: {field}", how, "")


def is_marked(sound: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Check if the reading says that its figures are not sure."""
    return sound["notes"] != found["notes"] or found["quality"] is Quality.ESTIMATED is not sound["quality"]


def is_unknown(value: Any) -> bool:
    return value is None or value == () or isinstance(value, Absent)
