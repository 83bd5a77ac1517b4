"""The kinds of engines: how each is recognized, what it is asked, and who parses its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from memwatch.core.engines import llama_cpp, lm_studio, ollama, openai, sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import DYNAMO_VARIABLES, Command, Variable
from memwatch.core.engines.records import EngineName, EngineReading
from memwatch.core.engines.requests import Answers, Frequency, Request
from memwatch.core.model import Words


def always(_: Command) -> bool:
    return True


def asked(_: Command) -> str:
    return ""


class EngineKind(Struct, frozen=True):
    """`requests` in the order of sending. `port`: the default one. `port_options`: options that set it.

    `options_files`: options that name a file with further ones. `variables`: those of its environment that set
    options which decide on its memory. `inner_ports`: ports at which its program listens for its own parts; they
    are not asked. `has_own_port`: False for a program that may listen for another protocol; only a port that its
    command line or one of `port_variables` names is asked. `why_unasked`: why a server has no HTTP API, empty if
    it has one.
    """

    name: EngineName
    title: str
    port: int
    requests: tuple[Request, ...]
    matches: Callable[[Command], bool]
    parse: Callable[[Answers], EngineReading]
    port_options: tuple[str, ...] = ("--port",)
    options_files: tuple[str, ...] = ()
    inner_ports: frozenset[int] = frozenset()
    variables: Mapping[str, Variable] = {}
    has_own_port: Callable[[Command], bool] = always
    port_variables: Mapping[str, Variable] = {}
    why_unasked: Callable[[Command], str] = asked

    def named_port(self, command: Command) -> int | None:
        """Return the port that a command line names, None without one."""
        return next((port for port in map(command.number, self.port_options) if port), None)

    def named_model(self, command: Command, inner: Command) -> Words:
        """Return the model that the command line names, which stays while the server has not answered."""
        return self.parse(Answers({}, command, inner)).model

    def variables_of(self, command: Command) -> Mapping[str, Variable]:
        """Return the variables that are read from the environment of a server."""
        return self.variables if self.has_own_port(command) else {**self.variables, **self.port_variables}

    def requests_of(self, asked: Frequency) -> tuple[Request, ...]:
        return tuple(one for one in self.requests if one.asked == asked)


KINDS = (
    EngineKind(
        "vllm",
        "vLLM",
        vllm.PORT,
        vllm.REQUESTS,
        vllm.matches,
        vllm.parse,
        options_files=vllm.OPTIONS_FILES,
        has_own_port=vllm.has_own_port,
        port_variables=DYNAMO_VARIABLES,
        why_unasked=vllm.why_unasked,
    ),
    EngineKind(
        "sglang",
        "SGLang",
        sglang.PORT,
        sglang.REQUESTS,
        sglang.matches,
        sglang.parse,
        options_files=sglang.OPTIONS_FILES,
        has_own_port=sglang.has_own_port,
        port_variables=DYNAMO_VARIABLES,
        why_unasked=sglang.why_unasked,
    ),
    EngineKind(
        "llama.cpp",
        "llama.cpp",
        llama_cpp.PORT,
        llama_cpp.REQUESTS,
        llama_cpp.matches,
        llama_cpp.parse,
        variables=llama_cpp.VARIABLES,
        why_unasked=llama_cpp.why_unasked,
    ),
    EngineKind(
        "ollama",
        "Ollama",
        ollama.PORT,
        ollama.REQUESTS,
        ollama.matches,
        ollama.parse,
        variables=ollama.VARIABLES,
    ),
    EngineKind(
        "lm-studio",
        "LM Studio",
        lm_studio.PORT,
        lm_studio.REQUESTS,
        lm_studio.matches,
        lm_studio.parse,
        inner_ports=lm_studio.INNER_PORTS,
    ),
    EngineKind(
        "tgi", "TGI", openai.TGI_PORT, openai.TGI_REQUESTS, openai.matches_tgi, openai.parse_tgi, ("--port", "-p")
    ),
    EngineKind(
        "tensorrt-llm",
        "TensorRT-LLM",
        tensorrt_llm.SERVE_PORT,
        tensorrt_llm.SERVE_REQUESTS,
        tensorrt_llm.matches_serve,
        tensorrt_llm.parse_serve,
        options_files=tensorrt_llm.OPTIONS_FILES,
        why_unasked=tensorrt_llm.why_unasked,
    ),
    EngineKind(
        "triton",
        "Triton",
        tensorrt_llm.TRITON_PORT,
        tensorrt_llm.TRITON_REQUESTS,
        tensorrt_llm.matches_triton,
        tensorrt_llm.parse_triton,
        ("--metrics-port",),
    ),
    EngineKind(
        "openvino",
        "OpenVINO Model Server",
        openai.OVMS_PORT,
        openai.OVMS_REQUESTS,
        openai.matches_ovms,
        openai.parse_ovms,
        openai.OVMS_PORT_OPTIONS,
        has_own_port=openai.has_own_port,
    ),
    EngineKind(
        "openai",
        "OpenAI-compatible server",
        openai.PORT,
        openai.REQUESTS,
        openai.matches,
        openai.parse,
        openai.PORT_OPTIONS,
        has_own_port=openai.has_http_port,
        why_unasked=openai.why_unasked,
    ),
)
KIND_BY_NAME: Mapping[str, EngineKind] = {kind.name: kind for kind in KINDS}


def find_kind(command: Command) -> EngineKind | None:
    """Return the kind of engine that a command line starts, None for other programs."""
    return next((kind for kind in KINDS if kind.matches(command)), None)
