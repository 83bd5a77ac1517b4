"""Servers without an HTTP API, answers that are not understood, and models that are loaded or not."""

from __future__ import annotations

import pytest

from memwatch.core.engines import lm_studio, ollama, openai, sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import FURTHER_NODE, GRPC_ONLY, UNIX_SOCKET, Command
from memwatch.core.engines.kinds import KIND_BY_NAME, find_kind
from memwatch.core.engines.records import Engine
from memwatch.core.engines.requests import NOT_UNDERSTOOD, Answers
from memwatch.core.engines.tensorrt_llm import NO_CACHE_METRICS, NO_TOKENS, SERVE_METRICS
from memwatch.core.engines.unload import UNLOADS, write_unload
from memwatch.core.model import Absent


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        pytest.param(
            ("vllm", "serve", "m", "--headless", "--data-parallel-size-local", "2"),
            FURTHER_NODE.format(option="--headless"),
            id="vllm-project/vllm-ascend#649",
        ),
        pytest.param(
            ("python", "-m", "sglang.launch_server", "--nnodes", "2", "--node-rank", "1", "--port", "50000"),
            FURTHER_NODE.format(option="--node-rank"),
            id="sgl-project/sglang#10001",
        ),
        pytest.param(
            ("/app/llama-server", "--metrics", "--model", "m.gguf", "--host", "inference-runner-0.sock"),
            UNIX_SOCKET.format(path="inference-runner-0.sock"),
            id="docker/model-runner#1058",
        ),
        pytest.param(
            ("python3", "-m", "dynamo.trtllm", "--model-path", "Qwen/Qwen3-0.6B"),
            tensorrt_llm.UNASKED_DYNAMO,
            id="ai-dynamo/dynamo#6469",
        ),
        pytest.param(
            ("python3", "-m", "sglang_router.launch_server", "--model-path", "m", "--dp-size", "4"),
            sglang.UNASKED_ROUTER,
            id="SGLang: its page on the router",
        ),
        pytest.param(("python3", "-m", vllm.GRPC, "--model", "m"), GRPC_ONLY, id="vLLM with gRPC only"),
        pytest.param(("vllm", "serve", "m", "--grpc"), GRPC_ONLY, id="vLLM with gRPC by an option"),
        pytest.param(
            ("python3", "-m", "sglang.launch_server", "--model-path", "m", "--grpc-mode"),
            GRPC_ONLY,
            id="SGLang, gRPC",
        ),
        pytest.param(("trtllm-serve", "m", "--grpc"), GRPC_ONLY, id="mintlify.com: trtllm-serve"),
        pytest.param(
            ("python3", "-m", vllm.DEMONSTRATION, "--model", "m"),
            vllm.UNASKED[vllm.DEMONSTRATION],
            id="vLLM for demonstrations",
        ),
        pytest.param(
            ("trtllm-serve", "disaggregated_mpi_worker", "-c", "x.yaml"),
            tensorrt_llm.UNASKED_RANK,
            id="trtllm-serve",
        ),
        pytest.param(
            ("python3", "-m", "fastchat.serve.model_worker", "--model-path", "m"),
            openai.WORKER.format(name="FastChat"),
            id="FastChat",
        ),
        pytest.param(
            ("vllm", "serve", "m", "--uds", "/tmp/vllm.sock"),
            UNIX_SOCKET.format(path="/tmp/vllm.sock"),
            id="vLLM: its page on the command line",
        ),
        pytest.param(("vllm", "serve", "m", "--port", "8001"), "", id="vLLM"),
        pytest.param(("/app/llama-server", "-m", "m.gguf", "--host", "0.0.0.0"), "", id="llama.cpp"),
        pytest.param(("trtllm-serve", "m"), "", id="TensorRT-LLM"),
    ],
)
def test_server_without_an_http_api_has_a_reason(argv: tuple[str, ...], note: str) -> None:
    """Each row names its source. A server with one has no reason."""
    command = Command(argv)
    kind = find_kind(command)

    assert kind is not None
    assert kind.why_unasked(command) == note


def test_ports_of_lm_studio_for_its_own_commands_are_not_asked() -> None:
    """`default_api_ports` of lmstudio-python: a request would open a websocket there. Its server is at 1234."""
    kind = KIND_BY_NAME["lm-studio"]

    assert kind.inner_ports == lm_studio.INNER_PORTS == {41343, 52993, 16141, 39414, 22931}
    assert kind.port == 1234


@pytest.mark.parametrize(
    ("argv", "path", "loaded"),
    [
        # They list loaded models only: xinference of its REST API, infinity of its engines.
        (("xinference-local", "--host", "0.0.0.0"), "/v1/models", True),
        (("xinference-supervisor", "-H", "0.0.0.0"), "/v1/models", True),
        (("infinity_emb", "v2", "--model-id", "m", "--url-prefix", "/v1"), "/v1/models", True),
        (("infinity_emb", "v2", "--model-id", "m"), "/models", True),
        (("infinity_emb", "--model-name-or-path", "m", "--url-prefix", "/v1"), "/v1/models", True),
        (("koboldcpp", "--model", "m.gguf"), "/v1/models", None),
    ],
)
def test_list_of_loaded_models_only_is_one(argv: tuple[str, ...], path: str, loaded: bool | None) -> None:
    listed = openai.list_models(Answers({path: b'{"data": [{"id": "m"}]}'}, Command(argv)))

    assert [(one.id, one.loaded) for one in listed] == [("m", loaded)]


MODELS, METRICS = "/v1/models", "/metrics"


@pytest.mark.parametrize(
    ("path", "body", "oddity"),
    [
        (MODELS, b'{"object": "list", "data": [{"id": "m"}]}', ""),
        (MODELS, b'{"data": []}', ""),
        (MODELS, b"<html>502 Bad Gateway</html>", NOT_UNDERSTOOD),
        (MODELS, b'["m"]', NOT_UNDERSTOOD),
        (MODELS, b"null", NOT_UNDERSTOOD),
        (MODELS, b'{"detail": "Not Found"}', NOT_UNDERSTOOD),
        (MODELS, b'{"data": [{"id": 7}]}', "id in its answer was not understood."),
        (METRICS, b"vllm:num_requests_running 1.0\n", ""),
        (METRICS, b"\n", ""),
        (METRICS, b"<html>502 Bad Gateway</html>", NOT_UNDERSTOOD),
    ],
)
def test_answer_of_another_form_is_named(path: str, body: bytes, oddity: str) -> None:
    (request,) = [one for one in KIND_BY_NAME["vllm"].requests if one.path == path]

    assert request.find_oddity(body) == (f"{path}: {oddity}" if oddity else "")


USE = 'trtllm_kv_cache_utilization{model_name="m",engine_type="undefined"} '


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        # Versions before 1.2 have latencies only.
        ("trtllm_request_success_total 3.0\n", (NO_TOKENS, NO_CACHE_METRICS)),
        (USE + "0.25\n", (NO_TOKENS,)),
        (USE + "-0.25\n", ("1 of 1 KV caches report an impossible use.", NO_TOKENS)),
        (USE + "0.25\ntrtllm_generation_tokens_total 7.0\n", ()),
    ],
)
def test_metrics_of_trtllm_serve_that_are_missing_are_named(text: str, notes: tuple[str, ...]) -> None:
    command = Command(("trtllm-serve", "m"))

    assert tensorrt_llm.parse_serve(Answers({SERVE_METRICS: text.encode()}, command)).notes == notes


@pytest.mark.parametrize(
    ("kind", "url", "model", "line"),
    [
        ("vllm", "http://127.0.0.1:8000", "m", "curl -X POST http://127.0.0.1:8000/sleep"),
        ("vllm", Absent.NOT_AVAILABLE, "m", None),
        ("lm-studio", Absent.NOT_AVAILABLE, "a, b", "lms unload a && lms unload b"),
        ("lm-studio", "http://127.0.0.1:1234", "a, b and 4 more", None),
        ("lm-studio", "http://127.0.0.1:1234", Absent.NOT_AVAILABLE, None),
        ("ollama", "http://127.0.0.1:11434", "gemma3:27b", "ollama stop gemma3:27b"),
        ("ollama", "http://127.0.0.1:11435", "m", "OLLAMA_HOST=127.0.0.1:11435 ollama stop m"),
        ("ollama", Absent.NOT_AVAILABLE, "two words", "ollama stop 'two words'"),
    ],
)
def test_line_that_unloads_needs_all_names_and_the_address_in_it(
    kind: str, url: str | Absent, model: str | Absent, line: str | None
) -> None:
    engine = Engine(f"{kind}-1", kind, kind, url, model=model)

    assert write_unload(engine, UNLOADS[kind]) == line


@pytest.mark.parametrize(
    ("context", "is_known"), [(0, False), (131_072, True), (999_999_999, True), (1_000_000_000, False)]
)
def test_context_of_a_billion_tokens_is_no_cache_of_ollama(context: int, is_known: bool) -> None:
    runner = Command(("ollama", "runner", "--model", "m", "--ctx-size", str(context)))

    assert (ollama.find_cells(ollama.Loaded("m"), runner, Command(("ollama", "serve"))) is not None) is is_known


@pytest.mark.parametrize(
    ("module", "depth"),
    [
        ("tensorrt_llm.llmapi.mgmn_leader_node", 1),
        ("tensorrt_llm.llmapi.mgmn_worker_node", 2),
        ("tensorrt_llm.commands.serve", None),
    ],
)
def test_ranks_of_trtllm_share_an_ancestor_with_their_server(module: str, depth: int | None) -> None:
    """The first one has the same shell, the others the program that started all shells."""
    assert tensorrt_llm.rank_depth(Command(("python3", "-m", module, "m"))) == depth


@pytest.mark.parametrize(
    ("argv", "listed", "path"),
    [
        (("trtllm-serve", "/models/qwen"), "qwen", "/models/qwen"),
        (("trtllm-serve", "/models/qwen"), None, "/models/qwen"),
        ((), "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ((), None, ""),
    ],
)
def test_model_of_trtllm_serve_is_where_its_command_line_says(
    argv: tuple[str, ...], listed: str | None, path: str
) -> None:
    """Its list has the last part of a path only."""
    bodies = {} if listed is None else {MODELS: f'{{"data": [{{"id": "{listed}"}}]}}'.encode()}

    assert tensorrt_llm.parse_serve(Answers(bodies, Command(argv))).model_path == path


@pytest.mark.parametrize(
    ("blocks", "tokens", "is_known"),
    [
        (1e12, 64, True),
        (1.1e12, 64, False),
        (4096, 1e6, True),
        (4096, 1.1e6, False),
        (0, 64, False),
        (4096, 0, False),
    ],
)
def test_impossible_blocks_are_no_cache_of_trtllm(blocks: float, tokens: float, is_known: bool) -> None:
    text = f"trtllm_kv_cache_max_blocks {blocks}\ntrtllm_kv_cache_tokens_per_block {tokens}\n"
    found = tensorrt_llm.parse_serve(Answers({SERVE_METRICS: text.encode()}, Command(("trtllm-serve", "m"))))

    assert (found.cache is not None) is is_known
