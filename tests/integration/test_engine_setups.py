"""Model servers as public reports and their documentation start them: found, asked at the right port, and read.

Each row names its source. `tests/hardware/public-reports.md` has the rule by which they were chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.collectors.engines import PORT_UNKNOWN, Collector
from memwatch.core.engines import llama_cpp, ollama, openai, sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import FURTHER_NODE, UNIX_SOCKET
from memwatch.core.engines.records import Cache, Engine
from memwatch.core.engines.requests import Answers
from memwatch.core.engines.server import WANTS_KEY_FOR
from memwatch.core.model import Absent
from support import engine_texts as texts
from support.engine_host import EngineHost
from support.engine_servers import Answer, EngineSite, Handler, engine_site
from support.open_things import close_at_end

NO = Absent.NOT_SUPPORTED
Setup = Callable[[EngineHost, int], None]


def to_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def refused(status: int) -> Answer:
    return lambda handler: handler.reply(status, b'{"detail": "Not Found"}')


def unexpected(handler: Handler) -> None:
    """LM Studio answers a path that it does not know with 200 (lmstudio-ai/lmstudio-bug-tracker#618)."""
    handler.reply(200, to_json(error=f"Unexpected endpoint or method. (GET {handler.path})"))


def started_by(*argv: str, then: tuple[tuple[str, ...], ...] = ()) -> Setup:
    """Return a set-up of a server that listens at `{port}` of its options, and of processes that it started."""

    def setup(host: EngineHost, port: int) -> None:
        host.add(500, [one.format(port=port) for one in argv])
        for pid, one in enumerate(then, 501):
            host.add(pid, one, parent=500)
        host.listen(500, port, "0.0.0.0")

    return setup


def ask(tmp_path: Path, setup: Setup, answers: Mapping[str, Answer]) -> tuple[list[Engine], EngineSite]:
    with engine_site(answers) as site:
        host = EngineHost(tmp_path)
        setup(host, site.port)
        collector = close_at_end(Collector(host.roots, True, (), None, host.net))
        for _ in range(2):
            engines = collector.collect().engines
    return list(engines), site


OLD_LM_STUDIO: Mapping[str, Answer] = {
    "/api/v1/models": unexpected,
    "/api/v0/models": to_json(
        object="list",
        data=[
            {"id": "qwen2-vl-7b-instruct", "state": "not-loaded", "quantization": "4bit"},
            {
                "id": "llama-3.1-8b-instruct",
                "state": "loaded",
                "quantization": "Q4_K_M",
                "loaded_context_length": 4096,
            },
        ],
    ),
}
MEMORY = {"weight": 12.5, "kvcache": 2.5, "token_capacity": 40000}
KIMI = to_json(served_model_name="Kimi-K2", version="0.5.5", tp_size=2, internal_states=[{"memory_usage": MEMORY}])
KT = ("--model", "Kimi-K2/", "--kt-weight-path", "Kimi-K2-CPU/", "--kt-method", "AMXINT4", "--kt-cpuinfer", "56")
FIGURES = {"kv_cache_ratio": 0.97, "requests_running": 3, "requests_waiting": 1, "generation_tokens_total": 9000}
APHRODITE = {"/metrics": texts.in_form_of_vllm("aphrodite:", "m"), "/v1/models": texts.listed("m")}
GPTQ = "Qwen/Qwen2.5-3B-Instruct-GPTQ-Int4"
KEYED = ("--model", GPTQ, "--max-model-len", "8192", "--enforce-eager", "--dtype", "half", "--api-key", "k")
OLLAMA_RUNNER = (
    "/tmp/ollama12/runners/cuda_v12/ollama_llama_server",
    "--model",
    "/m/sha256-1",
    "--ctx-size",
    "8192",
)
GGUF, QWEN, R1 = "/models/7B/ggml-model-q4_0.gguf", "qwen/qwen2.5-0.5b-instruct", "nvidia/DeepSeek-R1-FP4"
DISTILL = (
    *(
        "python3",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--max-model-len",
        "1024",
        "--tensor-parallel-size",
        "2",
    ),
    *("--model", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
)
FASTDEPLOY = {"/metrics": texts.in_form_of_vllm("fastdeploy:", "m"), "/v1/models": texts.listed("m")}


@pytest.mark.parametrize(
    ("setup", "answers", "figures"),
    [
        pytest.param(
            started_by("/tmp/.mount_LM-StuAbC/lm-studio", "--run-as-service"),
            OLD_LM_STUDIO,
            {"model": "llama-3.1-8b-instruct", "quantization": "Q4_K_M", "context_tokens": 4096},
            id="lmstudio-ai/lms#210",
        ),
        pytest.param(
            started_by("/opt/nim/llm/.venv/bin/python3", "-m", "nim_llm_sdk.entrypoints.openai.api_server"),
            texts.nim(),
            {"model": "google/gemma-3-1b-it", **FIGURES},
            id="docker/model-runner#226",
        ),
        pytest.param(
            started_by("./local-ai", then=(("/tmp/localai/backend_data/backend-assets/grpc/llama-cpp", "--addr"),)),
            texts.local_ai("gpt-4"),
            {"model": "gpt-4", "pids": (500, 501)},
            id="mudler/LocalAI#1729",
        ),
        pytest.param(
            started_by("/local-ai", "run"),
            texts.local_ai(),
            {"model": Absent.NOT_AVAILABLE, "notes": (openai.NONE_LOADED.format(count=2), openai.NOTHING_MORE)},
            id="the same, with no model loaded",
        ),
        pytest.param(
            started_by("python3", "/usr/bin/trtllm-serve", "TinyLlama", "--extra_llm_api_options", "x.yaml"),
            {"/version": to_json(version="1.0.0"), "/v1/models": texts.listed("TinyLlama")},
            {"model": "TinyLlama", "notes": (tensorrt_llm.NO_METRICS,)},
            id="NVIDIA/TensorRT-LLM#7056",
        ),
        pytest.param(
            started_by("trtllm-serve", "serve", "/models/Qwen3-8B", "--port", "{port}", "--backend", "pytorch"),
            {
                "/prometheus/metrics": b"e2e_request_latency_seconds_count 1.0\n",
                "/v1/models": texts.listed("m"),
            },
            {
                "kv_cache_ratio": Absent.NOT_AVAILABLE,
                "notes": (tensorrt_llm.NO_TOKENS, tensorrt_llm.NO_CACHE_METRICS),
            },
            id="vllm-project/aibrix#2004",
        ),
        pytest.param(
            started_by("python3", "/opt/tabbyAPI/main.py", "--port", "{port}", "--model-name", "Qwen3-exl3"),
            {"/v1/models": texts.listed("Qwen3-exl3", "Llama-exl3")},
            {"model": "Qwen3-exl3"},
            id="sybil-solutions/vllm-studio#168",
        ),
        pytest.param(
            started_by("python", "-m", "sglang.launch_server", "--port", "{port}", *KT),
            {"/server_info": KIMI},
            {
                "weights_bytes": 25 << 30,
                "notes": (sglang.OFFLOADED.format(option="--kt-weight-path"), sglang.NO_METRICS),
            },
            id="KTransformers: Kimi-K2-Thinking.md",
        ),
        pytest.param(
            started_by("python3", "/usr/bin/aphrodite", "run", "m", "--host", "0.0.0.0", "--disable-log-requests"),
            APHRODITE,
            {"model": "m", **FIGURES, "notes": (openai.NO_SIZES,)},
            id="Aphrodite: Logging Metrics for Production",
        ),
        pytest.param(
            started_by("fastdeploy", "serve", "--model=ERNIE", "--port={port}", "--metrics-port={port}"),
            FASTDEPLOY,
            {"model": "m", **FIGURES},
            id="PaddlePaddle/FastDeploy#4085, with one port",
        ),
        pytest.param(
            started_by("fastdeploy", "serve", "--model=ERNIE", "--port={port}", "--metrics-port=8492"),
            {"/v1/models": texts.listed("default")},
            {"model": "default", "requests_running": NO, "notes": (openai.OWN_PORT,)},
            id="PaddlePaddle/FastDeploy#4085",
        ),
        pytest.param(
            started_by("rtp-llm", "serve", "/mnt/hf/bge-reranker-base", "--start_port", "{port}"),
            {"/v1/models": texts.listed("bge-reranker-base")},
            {"model": "bge-reranker-base"},
            id="alibaba/rtp-llm#297",
        ),
        pytest.param(
            started_by("/server", "-m", GGUF, "--port", "{port}", "--host", "0.0.0.0", "-n", "512"),
            texts.llama_cpp_of_2024(GGUF),
            {"kind": "llama.cpp", "model": "ggml-model-q4_0.gguf", "notes": (llama_cpp.NO_SLOTS,)},
            id="ggml-org/llama.cpp#5157",
        ),
        pytest.param(
            started_by("/server", "-m", GGUF, "--port", "{port}"),
            {"/metrics": texts.llama_cpp()["/metrics"]},
            {"kind": "llama.cpp", "model": "ggml-model-q4_0.gguf", "requests_running": 1},
            id="the same, of March 2024",
        ),
        pytest.param(
            started_by("/bin/ollama", "serve"),
            {"/api/version": to_json(version="0.1.30"), "/api/ps": refused(404)},
            {"version": "0.1.30", "model": Absent.NOT_AVAILABLE, "notes": (ollama.NO_LIST,)},
            id="ollama/ollama#3415",
        ),
        pytest.param(
            started_by("trtserver", "--strict-model-config", "false", "--model-store", "/models"),
            texts.triton_of_2019(),
            {"kind": "triton", "model": "modelA", "notes": (tensorrt_llm.NOT_TRTLLM,)},
            id="triton-inference-server/server#2053",
        ),
        pytest.param(
            started_by("/bin/python3", "./koboldcpp.py", "--model", "model.gguf", "--port", "{port}"),
            texts.koboldcpp(),
            {
                "version": "1.56",
                "model": "koboldcpp/model",
                "context_tokens": 2048,
                "requests_running": 1,
                "requests_waiting": 2,
                "notes": (openai.NO_MEMORY,),
            },
            id="Aryanne/koboldcpp_cpu",
        ),
        pytest.param(
            started_by("/usr/bin/python3", "/usr/bin/trtllm-serve", R1, "--backend", "pytorch", "--tp_size", "8"),
            {"/version": to_json(version="0.19.0rc0"), "/v1/models": texts.listed(R1), "/metrics": b"[]"},
            {"model": R1, "notes": (tensorrt_llm.NO_PATH,)},
            id="NVIDIA/TensorRT-LLM#3058",
        ),
        pytest.param(
            started_by(
                "/tmp/.mount_LM-StuAbC/lm-studio", "--run-as-service", then=(("lm-studio", "--type=utility"),)
            ),
            OLD_LM_STUDIO,
            {"model": "llama-3.1-8b-instruct", "pids": (500, 501)},
            id="LM Studio: its page on running without a window",
        ),
        pytest.param(
            started_by("./local-ai"),
            {"/v1/models": texts.listed("ggml-gpt4all-j.bin")},
            {"model": Absent.NOT_AVAILABLE, "notes": (openai.MAYBE_LOADED, openai.NOTHING_MORE)},
            id="mudler/LocalAI#195",
        ),
        pytest.param(
            started_by("python3", "-m", "sglang.launch_server", "--model-path", QWEN, "--port", "{port}"),
            {
                "/server_info": to_json(
                    model_path=QWEN,
                    version="0.5.10",
                    tp_size=1,
                    pp_size=1,
                    dp_size=1,
                    enable_dp_attention=False,
                    internal_states=[{"memory_usage": MEMORY}],
                )
            },
            {"model": QWEN, "weights_bytes": 25 << 29, "notes": (sglang.NO_METRICS,)},
            id="sgl-project/sglang#23679",
        ),
        pytest.param(
            started_by(*DISTILL, then=(DISTILL, DISTILL)),
            {
                "/metrics": texts.in_form_of_vllm("vllm:", DISTILL[-1]),
                "/v1/models": to_json(data=[{"id": DISTILL[-1], "max_model_len": 1024}]),
            },
            {"model": DISTILL[-1], "context_tokens": 1024, "pids": (500, 501, 502), **FIGURES},
            id="apocas/dockerode#811",
        ),
        pytest.param(
            started_by("python", "-m", "huggingfaceserver", "--model_name=llama3", "--http_port={port}"),
            texts.kserve(),
            {"model": "llama3", **FIGURES, "notes": (openai.NO_SIZES,)},
            id="KServe with vLLM",
        ),
        pytest.param(
            started_by("python", "-m", "huggingfaceserver", "--model_name=llama3", "--backend=huggingface"),
            texts.kserve(metrics=False),
            {"model": "llama3", "requests_running": NO, "notes": (openai.NOTHING_MORE,)},
            id="KServe with transformers",
        ),
        pytest.param(
            started_by("python3", "-m", vllm.API_SERVER, *KEYED),
            {"/metrics": texts.in_form_of_vllm("vllm:", GPTQ), "/v1/models": refused(401)},
            {
                "model": GPTQ,
                "context_tokens": 8192,
                **FIGURES,
                "notes": (WANTS_KEY_FOR.format(paths="/v1/models"),),
            },
            id="cd-linux.club: vLLM with a key",
        ),
        pytest.param(
            started_by("/bin/ollama", "start", then=(OLLAMA_RUNNER,)),
            texts.ollama(("llama3", 6 << 30, 6 << 30)),
            {"model": "llama3", "pids": (500, 501)},
            id="Ollama 0.3: ollama start",
        ),
        pytest.param(
            started_by("/venv/bin/python", "/venv/bin/exo"),
            {"/v1/models": texts.listed("llama-3.2-1b", "qwen3-8b")},
            {"model": Absent.NOT_AVAILABLE, "notes": (openai.NOT_LOADED.format(count=2), openai.NOTHING_MORE)},
            id="exo",
        ),
        pytest.param(
            started_by("python", "/venv/bin/transformers", "serve", "--port", "{port}"),
            {"/v1/models": texts.listed("Qwen/Qwen3-8B")},
            {"model": Absent.NOT_AVAILABLE, "notes": (openai.MAYBE_LOADED, openai.NOTHING_MORE)},
            id="transformers serve",
        ),
        pytest.param(
            started_by("infinity_emb", "--model-name-or-path", "bge-small", "--port", "{port}"),
            {"/v1/models": texts.listed("bge-small")},
            {"model": "bge-small"},
            id="Infinity of 2023",
        ),
    ],
)
def test_server_of_a_public_report_is_read(
    tmp_path: Path, setup: Setup, answers: Mapping[str, Answer], figures: Mapping[str, object]
) -> None:
    engines, site = ask(tmp_path, setup, answers)
    (found,) = engines
    assert found.url == f"http://127.0.0.1:{site.port}"
    assert {name: getattr(found, name) for name in figures} == figures


@pytest.mark.parametrize(
    ("setup", "answers", "figures"),
    [
        pytest.param(
            started_by("text-embeddings-router", "--model-id", "BAAI/bge-large-en-v1.5", "--port", "{port}"),
            texts.tei(),
            {"model": "BAAI/bge-large-en-v1.5", "requests_waiting": 3, "context_tokens": 512, "notes": ()},
            id="huggingface/text-embeddings-inference#880",
        ),
        pytest.param(
            started_by("infinity_emb", "v2", "--model-id", "gte-large", "--url-prefix", "/v1", "--port", "{port}"),
            {"/v1/models": texts.listed("gte-large")},
            {"model": "gte-large"},
            id="michaelfeil/infinity#517",
        ),
        pytest.param(
            started_by("infinity_emb", "v2", "--model-id", "gte-large", "--port", "{port}"),
            {"/models": texts.listed("gte-large")},
            {"model": "gte-large"},
            id="the same, without a prefix",
        ),
        pytest.param(
            started_by("/home/ana/.ape-1.10", "./mistral-7b.llamafile", "--server", "--port", "{port}"),
            {"/v1/models": texts.listed("mistral-7b")},
            {"model": "mistral-7b"},
            id="Significant-Gravitas/AutoGPT#7091",
        ),
        pytest.param(
            started_by("/third_party/bin/llama-box/llama-box", "--port", "{port}", "--model", "/m/qwen.gguf"),
            {"/v1/models": texts.listed("qwen2.5-14b-instruct")},
            {"model": "qwen2.5-14b-instruct"},
            id="gpustack/gpustack#1570",
        ),
        pytest.param(
            started_by("python", "/venv/bin/max", "serve", "--model", "google/gemma-3-27b-it", "--port", "{port}"),
            {"/v1/models": texts.listed("google/gemma-3-27b-it")},
            {"model": "google/gemma-3-27b-it"},
            id="Modular MAX: its page on serving",
        ),
        pytest.param(
            started_by("python3", "-m", "mlc_llm", "serve", "--mode", "local", "--port", "{port}", "/m/Qwen2.5"),
            {"/v1/models": texts.listed("Qwen2.5")},
            {"model": "Qwen2.5"},
            id="dusty-nv/jetson-containers#1116",
        ),
    ],
)
def test_server_of_a_further_report_is_read(
    tmp_path: Path, setup: Setup, answers: Mapping[str, Answer], figures: Mapping[str, object]
) -> None:
    (found,), site = ask(tmp_path, setup, answers)
    assert {name: getattr(found, name) for name in figures} == figures
    assert {path for _, path in site.requests} == set(answers)


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        pytest.param(
            ("vllm", "serve", "m", "--headless", "--data-parallel-size-local", "2"),
            FURTHER_NODE.format(option="--headless"),
            id="vllm-project/vllm-ascend#649",
        ),
        pytest.param(
            ("/app/llama-server", "--metrics", "--model", "m.gguf", "--host", "inference-runner-0.sock"),
            UNIX_SOCKET.format(path="inference-runner-0.sock"),
            id="docker/model-runner#1058",
        ),
    ],
)
def test_server_without_an_http_port_is_not_asked(tmp_path: Path, argv: tuple[str, ...], note: str) -> None:
    """Its processes may have sockets for each other."""
    (found,), site = ask(tmp_path, started_by(*argv), {})
    assert (found.url, found.notes, site.requests) == (Absent.NOT_AVAILABLE, (note,), [])


XINFERENCE = ("/env/bin/python", "/env/bin/xinference-local", "--host", "0.0.0.0")
SPAWNED = ("/env/bin/python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")


def xinference(host: EngineHost, port: int, *options: str) -> None:
    """Its HTTP server is a separate process. The others have sockets of another protocol (inference#1757)."""
    host.add(500, (*XINFERENCE, *options))
    host.add(501, SPAWNED, parent=500)
    host.add(502, SPAWNED, parent=500)
    host.listen(500, 1041)
    host.listen(501, 1042)
    host.listen(502, port, "0.0.0.0")


def test_http_server_of_xinference_is_asked_at_its_port(tmp_path: Path) -> None:
    """xorbitsai/inference#4676: it lists loaded models only."""
    answers = {"/v1/models": texts.listed("bge-m3", "qwen3")}
    engines, site = ask(tmp_path, lambda host, port: xinference(host, port, "--port", str(port)), answers)
    (found,) = engines
    assert found.url == f"http://127.0.0.1:{site.port}"
    assert found.notes[0] == "It has 2 models loaded: bge-m3, qwen3."


def test_xinference_without_a_port_is_not_asked(tmp_path: Path) -> None:
    engines, site = ask(tmp_path, xinference, {"/v1/models": texts.listed("bge-m3")})
    assert ([one.notes for one in engines], site.requests) == ([(PORT_UNKNOWN,)], [])


LEADER, WORKER = (("python3", "-m", f"tensorrt_llm.llmapi.mgmn_{rank}_node") for rank in ("leader", "worker"))


@pytest.mark.parametrize("is_first", [True, False], ids=["the ranks first", "the server first"])
def test_ranks_beside_trtllm_serve_are_counted_to_it(tmp_path: Path, is_first: bool) -> None:
    """`trtllm-llmapi-launch`: mpirun has a shell for each rank; the server is below another one of the first."""
    host = EngineHost(tmp_path)
    for launcher, shell in ((400, 401), (600, 601)):
        host.add(launcher, ("mpirun", "-n", "2", "trtllm-llmapi-launch"))
        host.add(shell, ("bash", "trtllm-llmapi-launch"), parent=launcher)
        host.add(shell + 1, ("bash", "trtllm-llmapi-launch"), parent=launcher)
        host.add(shell + 2, ("bash", "trtllm-llmapi-launch"), parent=shell)
    collector = close_at_end(Collector(host.roots, True, (), None, host.net))

    def start_ranks() -> None:
        host.add(900, LEADER, parent=401)
        host.add(901, WORKER, parent=402)
        host.add(902, WORKER, parent=1)  # of a launcher that ended

    if is_first:
        start_ranks()
        collector.collect()
    host.add(500, ("trtllm-serve", R1), parent=403)
    host.add(700, ("trtllm-serve", QWEN), parent=603)
    if not is_first:
        collector.collect()
        start_ranks()
    engines = collector.collect().engines
    assert {one.model: one.pids for one in engines} == {R1: (500, 900, 901), QWEN: (700,)}


def tgi(host: EngineHost, port: int) -> None:
    host.add(
        500, ("text-generation-launcher", "--model-id", "meta-llama/Llama-3.2-8B-Instruct", "--num-shard", "1")
    )
    host.add(501, ("/opt/conda/bin/python3.10", "/opt/conda/bin/text-generation-server", "serve"), parent=500)
    host.add(502, ("text-generation-router", "--max-total-tokens", "8192", "--port", str(port)), parent=500)
    host.listen(502, port, "0.0.0.0")


def test_room_of_the_cache_of_tgi_is_read_from_its_info(tmp_path: Path) -> None:
    """theneuralbase.com: TGI, optimized for transformers (2.0). Launcher, router and shard are one server."""
    (found,), _ = ask(tmp_path, tgi, texts.tgi_2())
    reading = openai.parse_tgi(Answers(texts.tgi_2()))
    assert (found.pids, found.context_tokens, found.requests_running) == ((500, 501, 502), 8192, 2)
    assert reading.cache == Cache("blocks", blocks=16384, block_tokens=1)


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        pytest.param((*DISTILL, "--port", "{port}"), DISTILL[-1], id="vLLM"),
        pytest.param(("python3", "-m", "sglang.launch_server", "--model-path", QWEN), QWEN, id="SGLang"),
        pytest.param(("/app/llama-server", "-m", GGUF), "ggml-model-q4_0.gguf", id="llama.cpp"),
        pytest.param(("trtllm-serve", R1, "--tp_size", "8"), R1, id="TensorRT-LLM"),
        pytest.param(("trtllm-serve", "serve", R1, "--tp_size", "8"), R1, id="TensorRT-LLM 1.0"),
        pytest.param(("trtllm-serve", "--help"), Absent.NOT_AVAILABLE, id="no model"),
        pytest.param(("text-generation-launcher", "--model-id", QWEN), QWEN, id="TGI"),
        pytest.param(("ollama", "serve"), Absent.NOT_AVAILABLE, id="Ollama"),
    ],
)
def test_model_is_that_of_the_command_line_while_no_request_is_answered(
    tmp_path: Path, argv: tuple[str, ...], model: object
) -> None:
    with engine_site({}) as site:
        site.server.server_close()
        host = EngineHost(tmp_path)
        started_by(*argv)(host, site.port)
        (found,) = close_at_end(Collector(host.roots, True, (), None, host.net)).collect().engines
    assert (found.model, found.weights_bytes, len(found.notes)) == (model, Absent.NOT_AVAILABLE, 1)


def test_models_of_tabby_are_llama_servers_of_their_own(tmp_path: Path) -> None:
    """TabbyML/tabby#2659, which is another program than TabbyAPI."""
    with ExitStack() as stack:
        sites = [stack.enter_context(engine_site(texts.llama_cpp())) for _ in range(2)]
        host = EngineHost(tmp_path)
        host.add(400, ("/opt/tabby/bin/tabby", "serve", "--model", "StarCoder-1B", "--device", "cuda"))
        for pid, site in enumerate(sites, 500):
            host.add(pid, ("/opt/tabby/bin/llama-server", "--port", str(site.port), "-np", "1"), parent=400)
            host.listen(pid, site.port)
        engines = close_at_end(Collector(host.roots, True, (), None, host.net)).collect().engines
    assert [(one.pid, one.url) for one in engines] == [
        (pid, f"http://127.0.0.1:{site.port}") for pid, site in enumerate(sites, 500)
    ]


def test_path_that_had_the_answer_is_asked_first_for_a_minute(tmp_path: Path) -> None:
    """LM Studio logs an error for each path that it does not know."""
    host, now = EngineHost(tmp_path), [1000.0]
    with engine_site(OLD_LM_STUDIO) as site:
        host.add(500, ("/opt/LM Studio/lm-studio",))
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), None, host.net, lambda: now[-1]))
        for seconds in (0.0, 5.0, 10.0, 61.0):
            now.append(1000.0 + seconds)
            collector.collect()
    old, new = "/api/v0/models", "/api/v1/models"
    assert [path for _, path in site.requests] == [new, old, old, old, new, old]
